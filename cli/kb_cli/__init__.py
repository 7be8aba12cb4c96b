"""The command `kb`: thin, and it imports the part it runs only when it runs it."""
