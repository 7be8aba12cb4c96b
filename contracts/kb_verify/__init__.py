"""Whether an engine keeps its promise: the suite that `kb verify` runs against any URL.

    suite/        one test a promise, and requests generated from the contract's document
    plugin        the pytest plugin that says which engine is asked and gives each test an empty base
    run           run the suite in a process of its own
    report        what came of it, as a page to read

The suite clears the base before every test. It needs the extra `verify`; reading results needs nothing.
"""

from kb_verify.results import Outcome, Promise, Results, Status
from kb_verify.run import SuiteError, Target, run

__all__ = ["Outcome", "Promise", "Results", "Status", "SuiteError", "Target", "run"]
