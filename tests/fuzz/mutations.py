"""Damage: to the bytes of a log, to its frames, to its rows and to its header, all from a given random source."""

import json
import random
from collections.abc import Callable, Sequence

from tests.unit.log_examples import bomb, frame

MAGIC = b"\x28\xb5\x2f\xfd"
ODD_VALUES: Sequence[object] = (
    None,
    True,
    -1,
    0.5,
    -0.0,
    2**53,
    10**400,
    "",
    "\x00",
    "\ud800",
    "assistant/message",
    "append",
    [],
    [[]],
    {},
    {"op": "replace", "start": 0, "end": 0},
    [[0, 3]],
)
ODD_LINES = (b"", b"null", b"{", b"[1]", b"\xff\xfe", b'{"seq":NaN}', b"[" * 5000, b'{"type":"turn/end"}', b" \r")


def damaged(source: random.Random, log: bytes, rows: Sequence[bytes], *, is_zstd: bool) -> bytes:
    """The log after one to three kinds of damage; `rows` are its plain lines, the header first."""
    if source.random() < 0.5:
        lines = list(rows)
        for _ in range(source.randint(1, 2)):
            _damage_lines(source, lines)
        log = packed(source, lines) if is_zstd else b"".join(line + b"\n" for line in lines)
    if source.random() < 0.6:
        log = _damage_bytes(source, log)
    if is_zstd and source.random() < 0.4:
        log = _damage_frames(source, log)
    return log


def packed(source: random.Random, lines: Sequence[bytes]) -> bytes:
    """The lines as frames: mostly the header alone and then batches, sometimes cut anywhere."""
    if source.random() < 0.1:
        text = b"".join(line + b"\n" for line in lines)
        cut = source.randrange(len(text) + 1)
        return frame(text[:cut]) + frame(text[cut:])
    frames, at = [frame(lines[0] + b"\n")] if lines else [], 1
    while at < len(lines):
        size = source.randint(1, 8)
        frames.append(frame(b"".join(line + b"\n" for line in lines[at : at + size])))
        at += size
    return b"".join(frames)


def _damage_bytes(source: random.Random, log: bytes) -> bytes:
    at = source.randrange(len(log) + 1)
    length = source.choice((1, 1, 2, 4, 16, 300))
    before, here, after = log[:at], log[at : at + length], log[at + length :]
    flipped = bytes([here[0] ^ (1 << source.randrange(8))]) + here[1:] if here else b""
    tail = source.choice((b"\0" * 70, MAGIC, source.randbytes(length), here + after))
    kinds = (
        before,
        before + flipped + after,
        before + after,
        before + source.randbytes(length) + here + after,
        before + here + here + after,
        before + bytes(length) + after,
        log + tail,
    )
    return source.choice(kinds)


def _damage_frames(source: random.Random, log: bytes) -> bytes:
    """Frames left out, repeated, moved; or one that nobody wrote, also one that never ends."""
    parts = [MAGIC + part for part in log.split(MAGIC)[1:]]
    if not parts:
        return log
    at, to = source.randrange(len(parts)), source.randrange(len(parts) + 1)
    match source.randrange(5):
        case 0:
            del parts[at]
        case 1:
            parts.insert(to, parts[at])
        case 2:
            parts.insert(to if to < len(parts) else 0, parts.pop(at))
        case 3:
            parts.insert(to, frame(source.choice(ODD_LINES) + source.choice((b"", b"\n"))))
        case _:
            parts.insert(to, bomb(source.choice((1 << 20, 64 << 20))))
    return b"".join(parts)


def _damage_lines(source: random.Random, lines: list[bytes]) -> None:
    if not lines:
        return
    at, to = source.randrange(len(lines)), source.randrange(len(lines))
    damage: Callable[[], None] = source.choice(
        (
            lambda: lines.__delitem__(at),
            lambda: lines.insert(to, lines[at]),
            lambda: lines.insert(to, source.choice(ODD_LINES)),
            lambda: lines.__setitem__(slice(at, at + 2), lines[at : at + 2][::-1]),
            lambda: lines.__setitem__(at, _damage_row(source, lines[at])),
            lambda: lines.__setitem__(at, _damage_row(source, lines[at])),
            lambda: lines.__setitem__(0, _damage_row(source, lines[0])),
        )
    )
    damage()


def _damage_row(source: random.Random, line: bytes) -> bytes:
    """One member of the row, at any depth, gets an odd value, goes, or is joined by another."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return source.choice(ODD_LINES)
    place = row
    while isinstance(place, dict) and place:
        key = source.choice(sorted(place))
        below = place[key]
        if isinstance(below, list) and below and isinstance(below[0], dict):
            below = below[0]
        if isinstance(below, dict) and below and source.random() < 0.6:
            place = below
            continue
        match source.randrange(4):
            case 0:
                del place[key]
            case 1:
                place[source.choice(("extra", "id", "surfaceOp", "seq"))] = source.choice(ODD_VALUES)
            case _:
                place[key] = source.choice(ODD_VALUES)
        break
    return json.dumps(row, separators=(",", ":"), ensure_ascii=source.random() < 0.5).encode(errors="surrogatepass")
