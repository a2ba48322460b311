"""Records as Parquet: one file, whose row groups are written as part files and put together in the end.

A Parquet file cannot be gone on with, for it ends with its index. So each row group is a complete file of its own
beside the output until then, and a checkpoint counts those that stand. Where a row group ends follows from the
records alone: an export that was interrupted has the same ones. Among them lies the file that they are put together
in, empty until then: when it has gone to the output's place, the checkpoint counts no more.
"""

import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from app.training.conversation import Turn
from app.training.output import Checkpoint, Record, Unfinished
from app.training.records import AnswerRecord, PairRecord
from persistence.atomic_file import fsync_directory, make_directories, staged_file

_GROUP_RECORDS = 5_000
_GROUP_WEIGHT = 64 << 20  # characters of text, roughly
_BATCH_WEIGHT = 4 << 20
_TURN_WEIGHT = 64


def _fields(required: str = "", **kinds: pa.DataType) -> list[pa.Field]:
    """Fields in the order of the JSON members; those that are not `required` may be null, as there."""
    return [pa.field(name, kind, nullable=name not in required.split()) for name, kind in kinds.items()]


_TEXT, _COUNT, _FLAG = pa.string(), pa.int64(), pa.bool_()
_CALL = pa.struct(_fields("id name arguments", id=_TEXT, name=_TEXT, arguments=_TEXT))
_TURN = pa.struct(
    _fields(
        "role text toolCalls attachments",
        role=_TEXT,
        text=_TEXT,
        reasoning=_TEXT,
        toolCalls=pa.list_(_CALL),
        toolCallId=_TEXT,
        isError=_FLAG,
        attachments=_COUNT,
    )
)
_SESSION = pa.struct(_fields("sessionId createdAt", sessionId=_TEXT, createdAt=_COUNT, cwd=_TEXT))
_RATED = pa.struct(
    _fields(
        "messageId seq interrupted rating version ratedAt updatedAt message",
        messageId=_TEXT,
        seq=_COUNT,
        answeredAt=_COUNT,
        provider=_TEXT,
        model=_TEXT,
        interrupted=_FLAG,
        rating=_TEXT,
        note=_TEXT,
        actor=_TEXT,
        version=_TEXT,
        ratedAt=_COUNT,
        updatedAt=_COUNT,
        message=_TURN,
    )
)


def schema_of(record: type[Record]) -> pa.Schema:
    """The columns of a kind of record; the file's metadata names it, as `schema` does in JSON."""
    rated = ("answer",) if record is AnswerRecord else ("chosen", "rejected")
    columns = {"session": _SESSION, "prompt": pa.list_(_TURN)} | dict.fromkeys(rated, _RATED)
    name = str(record.__struct_config__.tag)
    return pa.schema(_fields(" ".join(columns), **columns), metadata={"session_feedback.schema": name})


class ParquetOutput:
    """One file, put together from part files of one row group each, compressed with Zstandard."""

    def __init__(
        self, path: Path, plan: str, *, pairs: bool, restart: bool = False, group_records: int = _GROUP_RECORDS
    ) -> None:
        """Raises SettingsInvalid as `Unfinished.load`, OSError."""
        self._path = path
        self._unfinished = Unfinished(path)
        self._parts = self._unfinished.partial
        self._whole = self._parts / "whole.parquet"
        self._schema = schema_of(PairRecord if pairs else AnswerRecord)
        self._group_records = group_records
        self.checkpoint = self._unfinished.load(plan, restart=restart, counts=self._holds)
        make_directories(self._parts)
        self._whole.touch(mode=0o600)  # with the first part on stable storage, and so before any checkpoint
        self._written = self.checkpoint.written
        self._rows: list[object] = []
        self._batches: list[pa.RecordBatch] = []
        self._records, self._weight, self._batch_weight = 0, 0, 0

    def write(self, record: Record) -> None:
        """One more row. A Session that is larger than a row group gets several."""
        self._rows.append(msgspec.to_builtins(record))
        self._records += 1
        weight = weight_of(record)
        self._weight += weight
        self._batch_weight += weight
        if self._batch_weight >= _BATCH_WEIGHT:
            self._batch()
        if self._weight >= _GROUP_WEIGHT:
            self._end_group()

    def end_session(self, session_id: str) -> None:
        """A checkpoint when a row group is full, or was ended inside of this Session."""
        inside = self._written > self.checkpoint.written
        if self._records < self._group_records and not inside:
            return
        self._end_group()
        self.checkpoint.last_session, self.checkpoint.written = session_id, self._written
        self._unfinished.save(self.checkpoint)

    def finish(self) -> None:
        """Puts the row groups together, one in memory at a time; the file appears whole."""
        self._end_group()
        with (
            staged_file(self._whole, replace=True) as staged,
            pq.ParquetWriter(staged, self._schema, compression="zstd") as writer,
        ):
            for number in range(self._written):
                with pq.ParquetFile(self._part(number)) as part:
                    group = part.read()
                writer.write_table(group, row_group_size=group.num_rows)
        self._whole.replace(self._path)
        fsync_directory(self._path.parent)
        fsync_directory(self._parts)
        self._unfinished.forget()
        shutil.rmtree(self._parts, ignore_errors=True)

    def close(self) -> None:
        """Nothing is open between two row groups."""

    def _holds(self, checkpoint: Checkpoint) -> bool:
        parts = map(self._part, range(checkpoint.written))
        return self._whole.exists() and all(part.exists() for part in parts)  # not `_whole`: it has become the output

    def _batch(self) -> None:
        """Rows as columns take a fraction of the memory."""
        if self._rows:
            self._batches.append(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
        self._rows, self._batch_weight = [], 0

    def _end_group(self) -> None:
        self._batch()
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, schema=self._schema)
        with staged_file(self._part(self._written), replace=True) as staged:
            pq.write_table(table, staged, compression="zstd", row_group_size=table.num_rows)
        self._written += 1
        self._batches, self._records, self._weight = [], 0, 0

    def _part(self, number: int) -> Path:
        return self._parts / f"{number:06}.parquet"


def weight_of(record: Record) -> int:
    """How much memory its text takes, roughly; a tool call's arguments may be most of it."""
    rated = (record.answer,) if isinstance(record, AnswerRecord) else (record.chosen, record.rejected)
    return sum(_turn_weight(turn) for turn in (*record.prompt, *(answer.message for answer in rated)))


def _turn_weight(turn: Turn) -> int:
    calls = sum(len(call.arguments) + _TURN_WEIGHT for call in turn.tool_calls)
    return len(turn.text) + len(turn.reasoning or "") + calls + _TURN_WEIGHT
