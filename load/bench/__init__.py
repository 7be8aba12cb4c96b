"""Benchmarks behind `kb bench`: each compares in one run, in turns, and says on what machine."""
