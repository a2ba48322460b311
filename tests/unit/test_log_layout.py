"""Paths: what text becomes a directory name, and which file names are logs (FORMATS sections 1 and 2)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.session_log.layout import LogName, parse_log_name, project_dir, session_id_of, session_segment
from tests.conformance.log_corpus import FIXTURES, needs_fixtures

ANY_TEXT = st.text(st.characters(exclude_categories=()), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("session_id", "segment"),
    [
        ("../x", "..~002Fx"),
        (".", "~002E"),
        ("..", "~002E~002E"),
        ("...", "..."),
        ("~002E", "~007E002E"),
        ("C:\\x", "C~003A~005Cx"),
        ("\U0001f680", "~D83D~DE80"),
        ("\ud800", "~D800"),
        ("\u00e9", "~00E9"),
        ("e\u0301", "e~0301"),
        ("nul\0", "nul~0000"),
    ],
)
def test_a_session_id_is_escaped_as_the_format_says(session_id: str, segment: str) -> None:
    assert session_segment(session_id) == segment
    assert session_id_of(segment) == session_id


@pytest.mark.parametrize(
    ("cwd", "directory"),
    [
        (None, "_no-cwd"),
        ("/home/dev/project", "--home-dev-project--"),
        ("/srv//app", "--srv-app--"),
        ("//srv:/app", "--srv-app--"),
        ("C:\\Users\\dev\\proj", "--C-Users-dev-proj--"),
        ("/", "--root--"),
        ("---", "--root--"),
        ("/a/b/", "--a-b---"),
        ("/~u/.c", "--~007Eu-.c--"),
        ("/" + 400 * "d", "--" + 251 * "d" + "--"),
        ("/" + 250 * "d" + "\u00e9", "--" + 250 * "d" + "~--"),
    ],
)
def test_a_cwd_becomes_a_project_directory_as_the_format_says(cwd: str | None, directory: str) -> None:
    assert project_dir(cwd) == directory


def test_an_empty_id_or_cwd_names_no_directory() -> None:
    with pytest.raises(ValueError, match="empty"):
        session_segment("")
    with pytest.raises(ValueError, match="empty"):
        project_dir("")


@given(ANY_TEXT)
def test_a_segment_is_one_harmless_path_component_and_gives_its_id_back(session_id: str) -> None:
    """No id leaves the project directory, and no two ids share a directory."""
    segment = session_segment(session_id)
    assert segment.isascii()
    assert segment not in {"", ".", ".."}
    assert not set(segment) & {"/", "\\", "\0", "~"} - {"~"}
    one_unit_each = session_id.encode("utf-16-le", "surrogatepass")
    back = session_id_of(segment)
    assert back is not None
    assert back.encode("utf-16-le", "surrogatepass") == one_unit_each


@pytest.mark.parametrize("segment", ["", ".", "..", "~0074arget", "a~002e", "~00", "\u00e9"])
def test_a_directory_that_no_id_maps_to_names_no_session(segment: str) -> None:
    assert session_id_of(segment) is None


@given(st.one_of(st.none(), ANY_TEXT))
def test_a_project_directory_fits_a_file_name(cwd: str | None) -> None:
    directory = project_dir(cwd)
    assert directory.isascii()
    assert len(directory) <= 255
    assert "/" not in directory


@needs_fixtures
def test_log_names_are_those_of_the_released_grammar() -> None:
    """Every name of fixtures/filenames.json, with and without the Zstandard suffix."""
    for name, generation in json.loads((FIXTURES / "filenames.json").read_text())["names"].items():
        if name.endswith(".zstd"):
            continue  # the grammar is asked after that suffix is off
        raw, compressed = parse_log_name(name), parse_log_name(f"{name}.zstd")
        assert raw == (None if generation is None else LogName(generation, False))
        assert compressed == (None if generation is None else LogName(generation, True))
        assert raw is None or str(raw) == name
