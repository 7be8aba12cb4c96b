"""Load, soak and benchmarks: everything that measures, and the reports with their plots."""
