"""Logs damaged at random: a typed answer each time, in bounded memory, and never a message that was not written."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.errors import LogFailure
from persistence.session_log import LogView, SessionLogs
from tests.unit.log_examples import SESSION, Compression, bomb, frame, open_turn, turn, write, writer

WRITTEN = {"a1", "a2", "a3"}


def _log(root: Path, compression: Compression) -> Path:
    """Two closed turns, then an open one whose answer is there."""
    path = write(root, 2, compression)
    with writer(root, compression) as log:
        log.append([*open_turn(3), turn(3)[3]])
    return path


def _ask(root: Path) -> LogView | None:
    """One reading with a small cap. Anything but a LogFailure goes through to the test."""
    try:
        return SessionLogs(root, max_row_bytes=1 << 16).inspect(SESSION)
    except LogFailure:
        return None


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_of_a_zstd_log_is_believed(tmp_path: Path, bit: int) -> None:
    """Each bit of each byte: the log is refused, or it says what was written, and no closed turn is missing."""
    path = _log(tmp_path, "zstd")
    sound = path.read_bytes()
    last = sound.rindex(b"\x28\xb5\x2f\xfd")
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ (1 << bit)]) + sound[at + 1 :])
        view = _ask(tmp_path)
        if view is not None:
            assert at >= last or view.events == 16, f"rows vanished with the damaged byte {at}"
            assert {"a1", "a2"} <= set(view.message_ids) <= WRITTEN


@pytest.mark.parametrize("bit", [0, 5, 7])
def test_flipped_bits_of_a_raw_log_get_a_typed_answer(tmp_path: Path, bit: int) -> None:
    """A raw log has no checksums, so an id may read differently; the structure around it is still judged."""
    path = _log(tmp_path, "none")
    sound = path.read_bytes()
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ (1 << bit)]) + sound[at + 1 :])
        view = _ask(tmp_path)
        assert view is None or view.events <= 16


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_every_prefix_is_the_log_as_it_once_was(tmp_path: Path, compression: Compression) -> None:
    """Cut at each byte, the log is not there yet, or holds a prefix of what was written; never an error."""
    path = _log(tmp_path, compression)
    sound, logs, last = path.read_bytes(), SessionLogs(tmp_path), -1
    for cut in range(len(sound) + 1):
        path.write_bytes(sound[:cut])
        view = logs.inspect(SESSION)
        count = -1 if view is None else view.events
        assert count >= last
        assert view is None or set(view.message_ids) == {"a1", "a2", "a3"} & {
            f"a{n}" for n in range(1, (count + 8) // 6)
        }
        last = count
    assert last == 16


PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\n", b"null\n", b"{}\n", b'{"type":"turn/end","seq":12}\n', b"\0" * 100, b"\x28\xb5\x2f\xfd"]),
    st.sampled_from([frame(b"{}\n"), frame(b""), frame(b"[" * 5000 + b"\n"), bomb(1 << 20), frame(b"x\n")[:-3]]),
    st.builds(struct.pack, st.just("<I"), st.integers(0, 2**32 - 1)),
)


@settings(max_examples=300, deadline=None)
@given(
    compression=st.sampled_from(["zstd", "none"]),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60), PIECES), min_size=1, max_size=3),
)
def test_any_edit_gets_a_typed_answer(
    tmp_path_factory: pytest.TempPathFactory, compression: Compression, edits: list[tuple[float, int, bytes]]
) -> None:
    """Bytes cut out and others put in, anywhere, several times over."""
    root = tmp_path_factory.mktemp("root")
    path = _log(root, compression)
    data = path.read_bytes()
    for place, cut, piece in edits:
        at = int(place * len(data))
        data = data[:at] + piece + data[at + cut :]
    path.write_bytes(data)
    _ask(root)
