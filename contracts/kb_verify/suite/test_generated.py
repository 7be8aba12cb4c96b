"""What the contract's document promises, held against requests that are generated from it.

Every answer has a status, a content type, headers and a body that the document describes; what does not fit
is refused; what fits is taken; without the key nothing is; what was removed is gone.
"""

from __future__ import annotations

import pytest

from kb_verify import generated
from kb_verify.generated import Findings, Phase
from kb_verify.served import Served
from kb_verify.tally import Tally
from kb_verify.target import Target

pytestmark = [pytest.mark.generated, pytest.mark.usefixtures("kb")]


def run(phase: Phase, target: Target, tally: Tally, served: Served) -> Findings:
    """Send the requests of one phase."""
    findings = generated.run(target, phase, tally, served.operations)
    assert findings.requests > 0
    assert not findings.failures, f"{findings}\n(seed {target.seed})"
    return findings


def test_the_examples_of_the_document_are_answered(target: Target, tally: Tally, served: Served) -> None:
    """As the document describes it."""
    run(Phase.EXAMPLES, target, tally, served)


def test_values_at_and_beyond_every_edge_are_answered(target: Target, tally: Tally, served: Served) -> None:
    """Taken within, refused beyond; other methods are refused, and so is whoever has no key."""
    run(Phase.COVERAGE, target, tally, served)


def test_random_values_are_answered(target: Target, tally: Tally, served: Served) -> None:
    """Those that fit and those that do not."""
    run(Phase.FUZZING, target, tally, served)


def test_random_walks_along_the_links_are_answered(target: Target, tally: Tally, served: Served) -> None:
    """What was made is there, what was removed is gone."""
    run(Phase.STATEFUL, target, tally, served)
