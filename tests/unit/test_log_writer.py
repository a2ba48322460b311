"""Writing format 0: byte for byte as the original, all or nothing, one writer at a time (FORMATS section 10)."""

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.errors import LogAmbiguous, LogFormatUnsupported, LogOwned, LogUnreadable
from feedback.model import SessionIdentity
from persistence.session_log import LogWriter, SessionLogs, events
from persistence.session_log.events import Event
from tests.conformance.log_corpus import FIXTURES, needs_fixtures
from tests.unit.log_examples import CREATED_AT, CWD, SESSION, Compression, frame, open_turn, seen, turn, write, writer

BOTH = pytest.mark.parametrize("compression", ["zstd", "none"])


def _real_logs() -> list[Path]:
    return sorted(FIXTURES.glob("v0/*/*/*/session.jsonl*")) if FIXTURES.is_dir() else []


def _batches(path: Path) -> list[list[bytes]]:
    """The lines of a real log by batch: a raw log keeps no boundaries and counts as one."""
    data = path.read_bytes()
    if path.suffix != ".zstd":
        return [data.splitlines(keepends=True)[1:]]
    batches = []
    while data:
        decoder = zstandard.ZstdDecompressor().decompressobj()
        batches.append(decoder.decompress(data).splitlines(keepends=True))
        data = decoder.unused_data
    return batches[1:]


@needs_fixtures
@pytest.mark.parametrize("path", _real_logs(), ids=lambda path: "/".join(path.parts[-4:-1])[:60])
def test_a_real_log_is_written_again_byte_for_byte(path: Path, tmp_path: Path) -> None:
    """Header, rows and frames are those of the original. Packed rows are left to it: writing them is optional."""
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()) if path.suffix == ".zstd" else b""
    header = json.loads((raw or path.read_bytes()).split(b"\n")[0])
    batches = [[json.loads(line) for line in batch] for batch in _batches(path)]
    if any("seq0" in row for batch in batches for row in batch):
        pytest.skip("holds packed rows")
    with LogWriter(
        tmp_path,
        header["id"],
        created_at=header["createdAt"],
        cwd=header.get("cwd"),
        compression="zstd" if path.suffix == ".zstd" else "none",
        parent_session=header.get("parentSession"),
        seed_length=header.get("seedLength"),
        origin=header.get("origin"),
        delegation_depth=header["delegationDepth"],
        agent_preset=header.get("agentPreset"),
    ) as log:
        for batch in batches:
            log.append([{key: value for key, value in row.items() if key != "seq"} for row in batch])
        assert log.path.read_bytes() == path.read_bytes()
        assert log.path.relative_to(tmp_path) == path.relative_to(path.parents[2])


def test_nothing_is_on_disk_before_the_first_batch(tmp_path: Path) -> None:
    with writer(tmp_path / "root") as log:
        assert log.append([]) == range(0)
        assert list(tmp_path.iterdir()) == []


@BOTH
def test_the_first_batch_appears_whole_and_private(tmp_path: Path, compression: Compression) -> None:
    """Log and lock file, nothing else; modes as the format says."""
    with writer(tmp_path / "root", compression) as log:
        assert log.append(turn(1)) == range(6)
        assert sorted(path.name for path in log.path.parent.iterdir()) == [log.path.name, "session.lock"]
        assert log.path.stat().st_mode & 0o777 == 0o600
        assert log.path.parent.stat().st_mode & 0o777 == 0o700


@BOTH
def test_an_existing_log_is_continued_whatever_is_asked_for(tmp_path: Path, compression: Compression) -> None:
    """Seqs go on, and the file keeps its encoding."""
    path = write(tmp_path, 2, compression)
    with writer(tmp_path, "none" if compression == "zstd" else "zstd") as log:
        assert log.append(turn(3)) == range(12, 18)
        assert log.path == path
    view = SessionLogs(tmp_path).inspect(SESSION)
    assert view is not None
    assert (list(view.message_ids), view.events) == (["a1", "a2", "a3"], 18)


def test_a_log_of_another_life_is_not_continued(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with pytest.raises(LogAmbiguous, match=str(CREATED_AT)):
        LogWriter(tmp_path, SESSION, created_at=CREATED_AT + 1, cwd=CWD)
    with pytest.raises(LogAmbiguous):
        LogWriter(tmp_path, SESSION, created_at=CREATED_AT, cwd="/elsewhere")


def test_a_log_of_a_later_format_is_not_continued(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    path.rename(path.with_name("session.v3.jsonl.zstd"))
    with pytest.raises(LogFormatUnsupported):
        writer(tmp_path)


def test_two_writers_cannot_hold_one_session(tmp_path: Path) -> None:
    """The second is refused until the first closes; readers do not care."""
    with writer(tmp_path) as first, writer(tmp_path) as late:
        first.append(turn(1))
        with pytest.raises(LogOwned):
            writer(tmp_path)
        with pytest.raises(LogOwned):
            late.append(turn(1))
        assert SessionLogs(tmp_path).inspect(SESSION) is not None
    with writer(tmp_path) as second:
        assert second.next_seq == 6


def test_a_replaced_lock_file_guards_nothing_and_is_not_taken(tmp_path: Path) -> None:
    """Whoever holds a lock file that was unlinked does not keep others from the new one."""
    with writer(tmp_path) as first:
        first.append(turn(1))
        (first.path.parent / "session.lock").unlink()
        with writer(tmp_path) as second:
            assert second.next_seq == 6


def test_a_closed_writer_writes_no_more(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.append(turn(1))
    log.close()
    with pytest.raises(LogUnreadable):
        log.append(turn(2))


@contextmanager
def _files_no_larger_than(size: int) -> Iterator[None]:
    """The kernel writes what fits and fails the rest, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@BOTH
def test_an_append_that_fails_half_way_is_taken_back(tmp_path: Path, compression: Compression) -> None:
    """A short write followed by a failure leaves the log as it was, and the writer usable."""
    with writer(tmp_path, compression) as log:
        log.append(turn(1))
        before = log.path.read_bytes()
        with _files_no_larger_than(len(before) + 50), pytest.raises(LogUnreadable):
            log.append(turn(2))
        assert log.path.read_bytes() == before
        assert log.append(turn(2)) == range(6, 12)
    view = SessionLogs(tmp_path).inspect(SESSION)
    assert view is not None
    assert list(view.message_ids) == ["a1", "a2"]


def test_a_publication_that_fails_leaves_no_log_and_may_be_repeated(tmp_path: Path) -> None:
    with writer(tmp_path) as log:
        with _files_no_larger_than(50), pytest.raises(LogUnreadable):
            log.append(turn(1))
        assert [path.name for path in log.path.parent.iterdir()] == ["session.lock"]
        assert log.append(turn(1)) == range(6)
    assert seen(SessionLogs(tmp_path)).events == 6


def no_sync(descriptor: int) -> None:
    raise OSError(5, "Input/output error")


def test_a_publication_whose_name_may_show_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory could not be synced: a second first batch could meet the one that is there."""
    with writer(tmp_path) as log:
        log.path.parent.mkdir(parents=True)
        with monkeypatch.context() as patch:
            patch.setattr("persistence.atomic_file.fsync_directory", no_sync)
            with pytest.raises(LogUnreadable, match="Input/output error"):
                log.append(turn(1))
        with pytest.raises(LogUnreadable, match="lost track"):
            log.append(turn(1))


@BOTH
def test_an_append_that_cannot_be_taken_back_is_taken_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: Compression
) -> None:
    """Append and rollback both failed: nothing more is written before the file ends where it did."""
    with writer(tmp_path, compression) as log:
        log.append(turn(1))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", no_sync)
            with pytest.raises(LogUnreadable, match="taking it back"):
                log.append(turn(2))
            with pytest.raises(LogUnreadable, match="Input/output error"):
                log.append(turn(2))
        assert log.append(turn(3)) == range(6, 12)
    view = seen(SessionLogs(tmp_path))
    assert (view.events, list(view.message_ids)) == (12, ["a1", "a3"])


@BOTH
def test_a_torn_tail_is_repaired_before_more_is_written(tmp_path: Path, compression: Compression) -> None:
    """Cut anywhere in the last batch, the log goes on from its last whole row and is sound again."""
    path = write(tmp_path, 1, compression)
    start = path.stat().st_size
    with writer(tmp_path, compression) as log:
        log.append(turn(2))
    whole = path.read_bytes()
    for cut in range(start + 1, len(whole)):
        path.write_bytes(whole[:cut])
        seen = SessionLogs(tmp_path).inspect(SESSION)
        assert seen is not None
        with writer(tmp_path, compression) as log:
            assert log.next_seq == seen.events
            log.append(turn(3))
        view = SessionLogs(tmp_path).inspect(SESSION)
        assert view is not None
        assert not view.torn
        assert set(view.message_ids) == {*seen.message_ids, "a3"}


def _torn_behind_a_message(root: Path) -> Path:
    """A log whose message "late" stands only in its torn tail: the whole block, without its checksum."""
    path = write(root, 1)
    with writer(root) as log:
        log.append([*open_turn(2), events.assistant_message("late", "still there")])
    path.write_bytes(path.read_bytes()[:-4])
    return path


def test_rows_recovered_from_a_torn_frame_survive_the_repair(tmp_path: Path) -> None:
    """Feedback may hang on such a message already. The file keeps its mode, and a link to it stays one."""
    path = _torn_behind_a_message(tmp_path / "root")
    elsewhere = tmp_path / "log"
    path.rename(elsewhere)
    elsewhere.chmod(0o640)
    path.symlink_to(elsewhere)
    with writer(tmp_path / "root") as log:
        assert log.next_seq == 10
        log.append(turn(3))
    view = SessionLogs(tmp_path / "root").inspect(SESSION)
    assert view is not None
    assert (view.eligible("late"), view.eligible("a3"), view.torn) == (True, True, False)
    assert (path.is_symlink(), elsewhere.stat().st_mode & 0o777) == (True, 0o640)


def test_rows_recovered_from_a_torn_frame_stand_in_the_log_at_each_step_of_the_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them is the last one, for want of room or by a crash."""
    path = _torn_behind_a_message(tmp_path)
    torn, steps = path.read_bytes(), list[str]()

    def step(name: str, last: int) -> Callable[..., object]:
        real: Callable[..., object] = getattr(os, name)

        def taken(*arguments: object, **options: object) -> object:
            view = SessionLogs(tmp_path).inspect(SESSION)
            assert view is not None
            assert view.eligible("late"), (name, last)
            steps.append(name)
            if len(steps) == last:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments, **options)

        return taken

    last, torn_yet = 0, True
    while len(steps) >= last:
        path.write_bytes(torn)
        steps.clear()
        last += 1
        with monkeypatch.context() as patch, suppress(LogUnreadable):
            for name in ("write", "fsync", "ftruncate", "fchmod", "replace"):
                patch.setattr(os, name, step(name, last))
            writer(tmp_path).close()
        view = SessionLogs(tmp_path).make_durable(SESSION)
        assert view is not None
        assert view.eligible("late"), last
        torn_yet = view.torn
    assert not torn_yet
    assert {"write", "fsync", "replace"} <= set(steps)
    assert sorted(path.name for path in path.parent.iterdir()) == ["session.jsonl.zstd", "session.lock"]


ID = st.text(st.characters(exclude_categories=()), min_size=1, max_size=6).map(
    lambda text: text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
)
MESSAGE = st.one_of(
    st.builds(events.assistant_message, ID, st.text(max_size=20)),
    st.builds(events.assistant_message, ID, st.just("new"), replaces=st.just((0, 0))),
    st.builds(events.empty_usage, ID),
    st.builds(events.user_message, ID, st.text(max_size=5)),
)


def _model(batches: list[list[Event]]) -> list[str]:
    """The eligible ids, by the contract's words: append origin, not empty, an assistant's."""
    messages = [event["data"]["message"] for batch in batches for event in batch  # type: ignore[index]  # JSON
                if event["type"] == "assistant/message" and event["surfaceOp"] == "append"]  # fmt: skip
    return list(dict.fromkeys(message["id"] for message in messages if message["content"]))


@settings(max_examples=60, deadline=None)
@given(
    session_id=ID, batches=st.lists(st.lists(MESSAGE, min_size=1, max_size=4), min_size=1, max_size=4), data=st.data()
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, session_id: str, batches: list[list[Event]], data: st.DataObject
) -> None:
    """Any ids, any text, any batches, read at any time between them: identity, counts and eligible ids agree."""
    root = tmp_path_factory.mktemp("root")
    compression: Compression = data.draw(st.sampled_from(["zstd", "none"]))
    cwd = data.draw(st.none() | ID)
    logs, reader_lags = SessionLogs(root), data.draw(st.booleans())
    with LogWriter(root, session_id, created_at=7, cwd=cwd, compression=compression) as log:
        for count, batch in enumerate(batches, start=1):
            log.append(batch)
            view = logs.inspect(session_id) if count == len(batches) or not reader_lags else None
            if view is not None:
                assert view.identity == SessionIdentity(created_at=7, cwd=cwd)
                assert list(view.message_ids) == _model(batches[:count])
                assert view.events == sum(map(len, batches[:count])) == log.next_seq
    assert [entry.session_id for entry in logs.sessions(limit=9)] == [session_id]


def test_a_frame_is_what_the_library_makes_of_a_batch(tmp_path: Path) -> None:
    """Header frame, then one frame a batch, checksummed, without a content size."""
    path = write(tmp_path, 2)
    lines = [zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())]
    assert path.read_bytes().startswith(frame(lines[0]))
    assert path.read_bytes().count(b"\x28\xb5\x2f\xfd\x04") == 3
