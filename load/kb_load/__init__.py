"""Load and soak tests, and their reports with plots."""
