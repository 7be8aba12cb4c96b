"""Votes on a document, and their score."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api import models as m
from kb_contracts.semantics.feedback import NO_VOTES, Vote, Votes, feedback_of, feedback_score, tally, voted
from kb_contracts.semantics.ranking import DEFAULT_WEIGHTS

signals = st.sampled_from(["useful", "not_useful", "clicked"])


def after(*given_signals: m.Signal) -> Vote:
    vote: Vote | None = None
    for signal in given_signals:
        vote = voted(vote, signal)
    assert vote is not None
    return vote


@pytest.mark.requirement("R29")
def test_a_score_is_half_the_rate_of_clicks_and_half_the_mean_of_ratings() -> None:
    """With so many voices that the prior no longer matters."""
    votes = Votes(voices=1_000_000, clicked=400_000, useful=600_000, not_useful=200_000)
    assert feedback_score(votes) == pytest.approx(0.5 * 0.4 + 0.5 * 0.75, abs=1e-4)


def test_the_last_rating_stands_and_what_was_opened_stays_opened() -> None:
    assert after("useful", "not_useful") == Vote(rating=-1)
    assert after("not_useful", "useful") == Vote(rating=1)
    assert after("clicked", "not_useful") == after("not_useful", "clicked") == Vote(opened=True, rating=-1)


@given(st.lists(signals, min_size=1))
def test_a_repeated_signal_changes_no_vote(given_signals: list[m.Signal]) -> None:
    vote = after(*given_signals)
    assert voted(vote, given_signals[-1]) == vote


@given(st.lists(signals, min_size=1), st.lists(st.lists(signals, min_size=1), max_size=5))
def test_one_voice_moves_a_final_score_by_less_than_a_hundredth(
    hostile: list[m.Signal], others: list[list[m.Signal]]
) -> None:
    """For any number of signals and any other votes, with the default weights."""
    standing = [after(*each) for each in others]
    before, now = feedback_score(tally(standing)), feedback_score(tally([*standing, after(*hostile)]))
    assert abs(now - before) * DEFAULT_WEIGHTS.feedback < 0.01


@given(st.lists(st.lists(signals, min_size=1), max_size=8))
def test_a_good_word_never_lowers_a_score_and_a_bad_one_never_raises_it(others: list[list[m.Signal]]) -> None:
    standing = [after(*each) for each in others]
    before = feedback_score(tally(standing))
    assert feedback_score(tally([*standing, after("useful")])) >= before
    assert feedback_score(tally([*standing, after("not_useful")])) <= before


@given(st.lists(st.lists(signals, min_size=1), max_size=8))
def test_a_score_lies_between_0_and_1(voices: list[list[m.Signal]]) -> None:
    votes = tally(after(*each) for each in voices)
    assert 0 <= feedback_score(votes) <= 1
    assert votes.voices == len(voices) >= max(votes.clicked, votes.useful + votes.not_useful)


def test_a_document_without_votes_has_the_neutral_feedback_score() -> None:
    assert feedback_score(NO_VOTES) == 0.25
    assert feedback_of(7, NO_VOTES) == m.Feedback(
        document_id=7, voices=0, clicked=0, useful=0, not_useful=0, score=0.25
    )


def test_votes_are_counted_by_voice() -> None:
    votes = [after("useful"), after("clicked"), after("clicked", "not_useful"), after("not_useful")]
    assert tally(votes) == Votes(voices=4, clicked=3, useful=1, not_useful=2)
