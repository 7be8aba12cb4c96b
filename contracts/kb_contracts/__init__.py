"""The promise that every engine keeps: operations, wire models, error codes and requirements."""

from kb_contracts.api.errors import ERRORS, EngineError, ErrorKind, Fault, Problem, Retry
from kb_contracts.api.operations import API_VERSION, BASE, BY_ID, OPERATIONS, AnyOperation, Operation

__all__ = [
    "API_VERSION",
    "BASE",
    "BY_ID",
    "ERRORS",
    "OPERATIONS",
    "AnyOperation",
    "EngineError",
    "ErrorKind",
    "Fault",
    "Operation",
    "Problem",
    "Retry",
]
