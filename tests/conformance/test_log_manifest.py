"""Our reader against everything that was recorded of the original's."""

from pathlib import Path

import pytest

from tests.conformance.log_corpus import Answer, Kind, Question, answer, deviations, needs_fixtures, place, questions

QUESTIONS = questions()
KINDS = deviations()

pytestmark = needs_fixtures


def _is_as_expected(ours: Answer, expected: Answer) -> bool:
    if expected.outcome == "failed":
        return isinstance(ours.outcome, str) and ours.outcome != "not found"
    return ours.outcome == expected.outcome and expected.events in (None, ours.events)


def _kind_of(question: Question) -> Kind | None:
    return next((kind for kind in KINDS if kind.covers(question)), None)


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_every_recorded_question_has_the_original_answer_or_a_listed_one(question: Question, tmp_path: Path) -> None:
    """Eligible ids, event counts, "not found" and failures are the reference's, or stand in log_deviations.toml."""
    ours = answer(place(question.root, tmp_path), question.session_id)
    if not _is_as_expected(ours, question.expected):
        kind = _kind_of(question)
        assert kind is not None, (ours, question.expected)
        assert ours.outcome == kind.ours


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.logs[0])
def test_every_listed_deviation_is_one(kind: Kind, tmp_path: Path) -> None:
    """Each pattern of the list names at least one log whose answer really differs."""
    for pattern in kind.logs:
        covered = [question for question in QUESTIONS if Kind([pattern], [], "").covers(question)]
        assert any(
            not _is_as_expected(
                answer(place(question.root, tmp_path / str(at)), question.session_id), question.expected
            )
            for at, question in enumerate(covered)
        ), pattern


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q.bystander is not None], ids=str)
def test_a_broken_log_does_not_touch_its_neighbours(question: Question, tmp_path: Path) -> None:
    """The healthy Session in the same root is answered for, whatever lies beside it."""
    assert question.bystander is not None
    ours = answer(place(question.root, tmp_path), question.bystander)
    assert isinstance(ours.outcome, list)
    assert ours.outcome
