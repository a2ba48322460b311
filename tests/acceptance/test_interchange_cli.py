"""`feedback import` and `feedback export` as their users run them: exit codes, documents, files."""

import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from app.cli import main
from feedback import FeedbackClient, keys
from feedback.model import SessionIdentity
from feedback.partitions import Topology
from persistence.interchange.single import document_of
from persistence.sidecar import SidecarStore, open_store
from tests.acceptance.command_line import Answer, feedback
from tests.conformance.interchange_corpus import tree
from tests.harness import CREATED_AT, serving, settings_for, write_session
from tests.interchanging import PARTITIONS, item, row, set_up
from worker.topology import publish

ROWS = (row("7", item("m1", note="é")), row("s/1", item("m1"), item("m2", version=2)))
DOCUMENT = b"".join(document_of(ROWS))


class Place:
    """A store that was set up and serves nobody, and a directory of media, where commands are run."""

    def __init__(self, home: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.url = f"sqlite:///{home / 'sidecar.sqlite3'}"
        self._capture = capture
        self._patch = patch

    def feedback(self, *words: str | Path) -> Answer:
        """Run a command in this process: a new one takes longer than most of them."""
        places = ("--sidecar-url", self.url, "--data", str(self.home / "none"))
        self._patch.setattr(sys, "argv", ["feedback", *map(str, words), *places])
        try:
            code = main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Answer(code, *self._capture.readouterr())

    def write(self, name: str, data: bytes) -> Path:
        path = self.home / name
        path.write_bytes(data)
        return path


@pytest.fixture
def place(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path, capfd, monkeypatch)
    with closing(open_store(place.url)) as store:
        set_up(store)
    monkeypatch.chdir(tmp_path)
    return place


@pytest.fixture
def store(place: Place) -> Iterator[SidecarStore]:
    with closing(open_store(place.url)) as store:
        yield store


def test_a_medium_comes_in_and_goes_out_again(place: Place, store: SidecarStore) -> None:
    """A check writes nothing, a second run changes nothing, and the file is the same to the byte."""
    place.write("message_feedback.json", DOCUMENT)
    checked = place.feedback("import", "--format", "json", place.home, "--check", "--json")
    assert checked.code == 0
    assert checked.document == {
        "ok": True,
        "format": "json",
        "source": str(place.home),
        "checked": True,
        "sessions": 2,
        "added": 3,
        "updated": 0,
        "unchanged": 0,
        "kept": 0,
        "refused": 0,
        "ignored": 0,
        "refusals": [],
        "ignoredEntries": [],
    }
    assert store.session_ids(0, 9) == []
    assert place.feedback("import", "--format", "json", "message_feedback.json").out == (
        "imported from message_feedback.json, 2 Sessions: 3 ratings added, 0 updated, 0 unchanged, "
        "0 kept as they are here\n"
    )
    again = place.feedback("import", "--format", "json", "message_feedback.json", "--json")
    assert (again.code, again.document["unchanged"], again.document["added"]) == (0, 3, 0)

    data = place.home / "none"
    words = ("export", "--format", "json", "--output", "out.json", "--json", "--sidecar-url", place.url, "--data", data)
    exported = feedback(*words, cwd=place.home)
    assert exported.code == 0
    assert exported.document == {
        "ok": True,
        "format": "json",
        "output": "out.json",
        "checked": False,
        "sessions": 2,
        "items": 3,
        "unchanged": 0,
        "refused": 0,
        "refusals": [],
    }
    assert (place.home / "out.json").read_bytes() == DOCUMENT
    assert (place.home / "out.json").stat().st_mode & 0o777 == 0o600


def test_what_is_there_is_not_overwritten_unless_asked(place: Place) -> None:
    """Refused before anything is read; `--overwrite` replaces it as a whole; nothing else is left behind."""
    place.write("in.json", DOCUMENT)
    place.write("out.json", b"somebody's")
    assert place.feedback("import", "--format", "json", "in.json").code == 0
    refused = place.feedback("export", "--format", "json", "-o", "out.json", "--json")
    assert (refused.code, refused.out) == (2, "")
    assert "--overwrite replaces it" in refused.err
    assert (place.home / "out.json").read_bytes() == b"somebody's"
    assert place.feedback("export", "--format", "json", "-o", "out.json", "--overwrite", "--check").code == 0
    assert (place.home / "out.json").read_bytes() == b"somebody's"
    assert place.feedback("export", "--format", "json", "-o", "out.json", "--overwrite").code == 0
    assert (place.home / "out.json").read_bytes() == DOCUMENT
    assert {path.name for path in place.home.iterdir()} - {"in.json", "out.json"} <= {
        f"sidecar.sqlite3{suffix}" for suffix in ("", "-wal", "-shm")
    }


def test_refused_records_are_listed_and_the_others_taken(place: Place, store: SidecarStore) -> None:
    """Exit code 1, with path and reason; of the per-record layout a Session whose id is no key is refused, too."""
    bad = DOCUMENT.replace(b'"positive"', b'"meh"', 1)
    source = place.write("bad.json", bad)
    answer = place.feedback("import", "--format", "json", source, "--json")
    assert (answer.code, answer.document["ok"], answer.document["added"]) == (1, False, 2)
    path = '$.tables.sessions["7"].items[0].rating'
    assert answer.document["refusals"] == [{"path": path, "reason": "expected positive or negative"}]
    assert source.read_bytes() == bad
    assert f"refused {path}: expected positive" in place.feedback("import", "--format", "json", source).out

    place.write("good.json", DOCUMENT)
    assert place.feedback("import", "--format", "json", "good.json").code == 0
    written = place.feedback("export", "--format", "per-record", "-o", "root", "--json")
    assert (written.code, written.document["sessions"], written.document["refused"]) == (1, 1, 1)
    assert tree(place.home / "root").keys() == {"message_feedback/sessions/7.json"}
    resumed = place.feedback("export", "--format", "per-record", "-o", "root", "--json")
    assert (resumed.code, resumed.document["unchanged"]) == (1, 1)
    assert store.stored_sessions(["7"])["7"].revision == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("import", "--format", "json", "nothing.json"), 2, "SOURCE"),
        (("import", "--format", "yaml", "in.json"), 2, "invalid choice"),
        (("import", "--format", "per-record", "in.json"), 2, "no directory"),
        (("import", "--format", "sqlite", "in.json"), 3, "malformed-medium"),
        (("import", "--format", "json", "cut.json"), 3, "malformed-medium"),
        (("import", "--format", "json", "in.json", "--actor", "a" * 300), 2, "--actor"),
        (("export", "--format", "json", "-o", "out.json", "--pairs"), 2, "not for --format json"),
    ],
)
def test_what_cannot_be_done_says_why(place: Place, words: tuple[str, ...], code: int, said: str) -> None:
    """2 for what the user named, 3 for a medium that is damaged."""
    place.write("in.json", DOCUMENT)
    place.write("cut.json", DOCUMENT[:-5])
    answer = place.feedback(*words, "--json")
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err


def test_a_system_is_told_of_its_own_store_only(place: Place, redis_client: Redis, valkey_url: str) -> None:
    """With its server named, events are published at once; another system's server is refused."""
    place.write("in.json", DOCUMENT)
    topology = Topology(generation=1, partitions=len(PARTITIONS), max_note_bytes=8192)
    publish(redis_client, topology, deployment=99)
    words = ("import", "--format", "json", "in.json", "--redis-url", valkey_url)
    refused = place.feedback(*words)
    assert refused.code == 2
    assert "SettingsInvalid" in refused.err
    publish(redis_client, topology, deployment=7)
    assert place.feedback(*words).code == 0
    assert sum(redis_client.xlen(keys.events(partition)) for partition in PARTITIONS) == 3
    dead = place.feedback("import", "--format", "json", "in.json", "--redis-url", "redis://127.0.0.1:1/0")
    assert dead.code == 3
    assert "QueueUnavailable" in dead.err


def test_a_database_that_is_open_is_not_replaced(place: Place) -> None:
    """A log beside it belongs to the database that is there."""
    place.write("in.json", DOCUMENT)
    place.write("out.sqlite-wal", b"")
    assert place.feedback("import", "--format", "json", "in.json").code == 0
    refused = place.feedback("export", "--format", "sqlite", "-o", "out.sqlite")
    assert refused.code == 3
    assert "another program has it open" in refused.err
    (place.home / "out.sqlite-wal").unlink()
    assert place.feedback("export", "--format", "sqlite", "-o", "out.sqlite").code == 0
    assert place.feedback("import", "--format", "sqlite", "out.sqlite", "--json").document["unchanged"] == 3


@pytest.mark.process
def test_an_import_that_is_killed_is_taken_over_and_done_again(
    redis_client: Redis, valkey_url: str, tmp_path: Path
) -> None:
    """Before its commit nothing of it is there; after it, what nobody was told of yet is published by the partition's
    next owner. Workers go on either way, and the next run does what is left."""
    settings = settings_for(valkey_url, tmp_path, lease_ttl=1.0)
    write_session(settings, "7", "m1", "m2")
    life = SessionIdentity(created_at=CREATED_AT, cwd="/w")
    (tmp_path / "in.json").write_bytes(b"".join(document_of([row("7", item("m1"), life=life), ROWS[1]])))
    words = ("import", "--format", "json", "in.json", "--redis-url", valkey_url, "--sidecar-url", settings.sidecar_url)
    with (
        serving(settings, projector=False),
        FeedbackClient.from_url(valkey_url) as client,
        closing(open_store(settings.sidecar_url)) as store,
    ):
        for point, sessions in (("after-fence", 0), ("after-commit", 2)):
            killed = feedback(*words, env={"FEEDBACK_CRASHPOINT": f"{point}:kill"}, cwd=tmp_path)
            assert killed.code == -signal.SIGKILL
            assert len(store.session_ids(0, 9)) == sessions
        assert client.put("7", "m2", "positive", timeout=20).ok
        again = feedback(*words, "--json", cwd=tmp_path).document
        assert (again["added"], again["unchanged"]) == (0, 3)
        for partition in PARTITIONS:
            stored = [(b"%d-0" % sequence, event) for sequence, event in store.outcomes(partition, 0, 99)]
            entries = redis_client.execute_command("XRANGE", keys.events(partition), "-", "+")
            assert [(entry, fields[b"event"]) for entry, fields in entries] == stored
        assert sum(store.heads(PARTITIONS).values()) == 4
