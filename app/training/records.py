"""From one Session's transcript and feedback to records. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

import msgspec
from msgspec import Struct

from app.training.conversation import Conversation, Turn, turn_of
from app.training.filters import Filters
from feedback.model import Item, Rating
from persistence.transcripts import Entry, Message

SCHEMA_VERSION = 1


class Session(Struct, frozen=True, kw_only=True, rename="camel"):
    """Whose conversation it is: the Session's id, and the identity that its ratings are bound to."""

    session_id: str
    created_at: int
    cwd: str | None


class Rated(Struct, frozen=True, kw_only=True, rename="camel"):
    """An answer and its rating. Times in milliseconds since the Unix epoch: the answer's in the log, that of its first
    rating, that of the last change. `seq` is its place in the log; one that broke off is `interrupted`. `actor` made
    the last change, where the command said who and its record is still kept.
    """

    message_id: str
    seq: int
    answered_at: int | None
    provider: str | None
    model: str | None
    interrupted: bool
    rating: Rating
    note: str | None
    actor: str | None
    version: str
    rated_at: int
    updated_at: int
    message: Turn


class AnswerRecord(Struct, frozen=True, kw_only=True, rename="camel", tag_field="schema", tag="feedback-answer/1"):
    """One rated answer, with the conversation before it."""

    session: Session
    prompt: tuple[Turn, ...]
    answer: Rated


class PairRecord(Struct, frozen=True, kw_only=True, rename="camel", tag_field="schema", tag="feedback-pair/1"):
    """A positive and a negative answer to the same prompt."""

    session: Session
    prompt: tuple[Turn, ...]
    chosen: Rated
    rejected: Rated


def answers(
    session: Session,
    entries: Iterable[Entry],
    items: Mapping[str, Item],
    actors: Mapping[str, str],
    filters: Filters,
) -> Iterator[AnswerRecord]:
    """The rated answers among a transcript's entries, in its order.

    `items` by message id, those that `filters` take; `actors` by item version. Of messages with one id, the first
    that may carry feedback counts.
    """
    conversation, missing = Conversation(), dict(items)
    for entry in entries:
        if not missing:
            return
        if isinstance(entry, Message) and entry.eligible:
            item = missing.pop(entry.message_id or "", None)
            if item is not None and filters.take_answer(entry.provider, entry.model):
                rated = _rated(entry, item, actors.get(item.version))
                yield AnswerRecord(session=session, prompt=conversation.prompt(), answer=rated)
        conversation.add(entry)


def pairs(records: Iterable[AnswerRecord]) -> Iterator[PairRecord]:
    """Every positive with every negative answer to the same prompt, among one Session's records.

    Prompts are the same when the models had the same before them: equal turns in equal order, whatever their
    ids in the log. In the order of the prompts' first answers, then of the positive ones, then of the negative ones.
    """
    by_prompt: dict[bytes, list[AnswerRecord]] = {}
    for record in records:
        key = blake2b(msgspec.msgpack.encode(record.prompt), digest_size=20).digest()
        by_prompt.setdefault(key, []).append(record)
    for alike in by_prompt.values():
        for chosen in alike:
            for rejected in alike:
                if (chosen.answer.rating, rejected.answer.rating) == ("positive", "negative"):
                    yield PairRecord(
                        session=chosen.session, prompt=chosen.prompt, chosen=chosen.answer, rejected=rejected.answer
                    )


def _rated(message: Message, item: Item, actor: str | None) -> Rated:
    return Rated(
        message_id=item.message_id,
        seq=message.seq,
        answered_at=message.time,
        provider=message.provider,
        model=message.model,
        interrupted=message.interrupted,
        rating=item.rating,
        note=item.note,
        actor=actor,
        version=item.version,
        rated_at=item.created_at,
        updated_at=item.updated_at,
        message=turn_of(message),
    )
