"""The commands that ask an engine. Each is a function `(options, out) -> exit status`."""
