"""Typed settings from flags, environment and file, and the command that installs an optional part."""
