"""The command `kb`: each part is imported only when it runs."""

VERSION = "v3.0.0"
"""Output of `kb --version`. A constant: reading the distribution takes longer than the rest of the start."""
