"""The command `kb`: thin, and it imports the part it runs only when it runs it."""

VERSION = "v3.0.0"
"""What `kb --version` says. Written here rather than read from the distribution: reading takes longer than
the whole rest of the start."""
