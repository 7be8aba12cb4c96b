"""The contract's rules with one right answer, as pure functions that engine and simulator both call.

What stays out is what is worth a second opinion: how documents are stored, how passages are ranked, and how
jobs are carried out. There the simulator computes on its own, and the parity suite compares the two.
"""
