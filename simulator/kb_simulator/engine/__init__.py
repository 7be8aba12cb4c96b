"""The fake engine: documents, search and jobs in memory, without I/O, clock or random numbers of its own.

It is independent of the harness: the clock and the seed are passed in, and a `Call` holds the objects that a
handler needs beside its parameters.
"""
