"""What voices say of a document, and the score that it makes.

A voice is a caller: the credential of a request, with the user on whose behalf it came. It counts once a
document, however often it is heard: its last rating stands, and what it has opened stays opened.

    click_rate = clicked / (voices + PRIOR)                     PRIOR voices are added, that neither opened
    rating_avg = (useful + PRIOR / 2) / (ratings + PRIOR)       nor rated it, so that a few move little
    feedback   = click_rate * 0.5 + rating_avg * 0.5

A document of which nobody has said anything has 0.25. One voice takes it to 0.40 or to 0.20; with the default
weight of feedback that moves a final score by less than a hundredth. Found useful counts as opened too: else
a good word would lower the rate of a document that everybody opens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kb_contracts.api import models as m

PRIOR = 4
CLICK_SHARE = 0.5
RATING_SHARE = 0.5

_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Vote:
    """What one voice has said of one document; `rating` is 1 for useful, -1 for not useful, 0 for none."""

    opened: bool = False
    rating: int = 0


@dataclass(frozen=True, slots=True)
class Votes:
    """What all voices have said of one document. `clicked`: opened it, or found it useful."""

    voices: int = 0
    clicked: int = 0
    useful: int = 0
    not_useful: int = 0


NO_VOTES = Votes()


def voted(standing: Vote | None, signal: m.Signal) -> Vote:
    """What a voice has said, after one more signal; the same again changes nothing."""
    vote = standing or Vote()
    if signal == "clicked":
        return replace(vote, opened=True)
    return replace(vote, rating=1 if signal == "useful" else -1)


def tally(votes: Iterable[Vote]) -> Votes:
    """All votes for one document, counted."""
    given = list(votes)
    return Votes(
        voices=len(given),
        clicked=sum(vote.opened or vote.rating > 0 for vote in given),
        useful=sum(vote.rating > 0 for vote in given),
        not_useful=sum(vote.rating < 0 for vote in given),
    )


def feedback_score(votes: Votes) -> float:
    """From 0 to 1."""
    click_rate = votes.clicked / (votes.voices + PRIOR)
    rating_avg = (votes.useful + PRIOR / 2) / (votes.useful + votes.not_useful + PRIOR)
    return round(click_rate * CLICK_SHARE + rating_avg * RATING_SHARE, _DECIMALS)


def feedback_of(document_id: int, votes: Votes) -> m.Feedback:
    """The answer of `giveFeedback`."""
    return m.Feedback(
        document_id=document_id,
        voices=votes.voices,
        clicked=votes.clicked,
        useful=votes.useful,
        not_useful=votes.not_useful,
        score=feedback_score(votes),
    )
