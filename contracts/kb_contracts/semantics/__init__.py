"""The exact rules of the contract, as pure functions that engine and simulator share.

Storage of documents, ranking of passages and execution of jobs are not here: for these the simulator has an
independent implementation, and the parity suite compares it with the engine.
"""
