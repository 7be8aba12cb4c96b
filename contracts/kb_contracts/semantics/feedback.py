"""Feedback on documents, and the score that results from it.

A voice is a caller: the credential of a request, with the user on whose behalf it came. It counts once for
each document, regardless of the number of its signals: its last rating counts, and an opened document remains
opened.

    click_rate = clicked / (voices + PRIOR)                     PRIOR neutral voices are added, so that
    rating_avg = (useful + PRIOR / 2) / (ratings + PRIOR)       few signals change the score little
    feedback   = click_rate * 0.5 + rating_avg * 0.5

A document without feedback has 0.25. One voice changes it to 0.40 or to 0.20; with the default weight of
feedback this changes a final score by less than a hundredth. A useful rating counts as a click too: otherwise
a good rating would lower the click rate of a document that every voice opens.
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
    """The feedback of one voice on one document; `rating` is 1 for useful, -1 for not useful, otherwise 0."""

    opened: bool = False
    rating: int = 0


@dataclass(frozen=True, slots=True)
class Votes:
    """The feedback of all voices on one document. `clicked`: opened it, or found it useful."""

    voices: int = 0
    clicked: int = 0
    useful: int = 0
    not_useful: int = 0


NO_VOTES = Votes()


def voted(standing: Vote | None, signal: m.Signal) -> Vote:
    """Return a voice's feedback after one more signal; a repeated signal changes nothing."""
    vote = standing or Vote()
    if signal == "clicked":
        return replace(vote, opened=True)
    return replace(vote, rating=1 if signal == "useful" else -1)


def tally(votes: Iterable[Vote]) -> Votes:
    """Return the totals of all votes for one document."""
    given = list(votes)
    return Votes(
        voices=len(given),
        clicked=sum(vote.opened or vote.rating > 0 for vote in given),
        useful=sum(vote.rating > 0 for vote in given),
        not_useful=sum(vote.rating < 0 for vote in given),
    )


def feedback_score(votes: Votes) -> float:
    """Return the feedback score, from 0 to 1."""
    click_rate = votes.clicked / (votes.voices + PRIOR)
    rating_avg = (votes.useful + PRIOR / 2) / (votes.useful + votes.not_useful + PRIOR)
    return round(click_rate * CLICK_SHARE + rating_avg * RATING_SHARE, _DECIMALS)


def feedback_of(document_id: int, votes: Votes) -> m.Feedback:
    """Return the response of `giveFeedback`."""
    return m.Feedback(
        document_id=document_id,
        voices=votes.voices,
        clicked=votes.clicked,
        useful=votes.useful,
        not_useful=votes.not_useful,
        score=feedback_score(votes),
    )
