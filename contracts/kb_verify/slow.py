"""Jobs that have not ended yet. An engine may be too fast for them to be seen; then a test is skipped."""

from __future__ import annotations

import pytest

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import Client, decode, problem

_ATTEMPTS = 2
_WORDS = 40_000
_WORDS_TO_AWAIT = 3_000


def long_note(number: int, words: int = _WORDS) -> str:
    """A note that takes any engine a while; each `number` gives another one."""
    return " ".join(f"long{number}x{word}" for word in range(words))


def note_to_await(number: int) -> str:
    """A note whose end can be waited for: a moment with a quick model, some seconds with a real one."""
    return long_note(number, _WORDS_TO_AWAIT)


def cancelled(kb: Client) -> m.Job:
    """A job that was cancelled before it had ended, as the cancel answered it."""
    for number in range(_ATTEMPTS):
        response = kb.request(ops.CANCEL_JOB, kb.submit(long_note(number)).id)
        if response.status_code == 200:
            return decode(response, m.Job)
        problem(response, "job_finished")
    pytest.skip(f"each of {_ATTEMPTS} long notes was taken in before it could be cancelled")
