"""Verification of an engine against the contract: the suite that `kb verify` runs against any URL.

    suite/        one test for each promise, and requests generated from the contract's document
    plugin        the pytest plugin that connects to the engine and gives each test an empty base
    run           run the suite in a process of its own
    report        the results as a page to read

The suite clears the base before every test. It needs the extra `verify`; reading results needs no extra.
"""

from kb_verify.results import Outcome, Promise, Results, Status
from kb_verify.run import SuiteError, Target, run

__all__ = ["Outcome", "Promise", "Results", "Status", "SuiteError", "Target", "run"]
