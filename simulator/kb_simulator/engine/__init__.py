"""The fake engine itself: documents, search and jobs in memory, without I/O, time or chance of its own.

It knows nothing of the harness: the clock and the seed are handed in, and what a request may touch beside its
own parameters comes in a `Call`.
"""
