"""The fake engine: documents, search and jobs in memory, without its own I/O, clock or random numbers.

It is independent of the harness: the clock and the seed are passed in, and a `Call` holds the objects that a
handler needs in addition to its parameters. A refusal is an `EngineError`; the contract has
the codes of each operation (`possible_errors`).
"""
