"""`docs/operations.md` and the help texts say about settings and failures what is true."""

import re
from pathlib import Path

import msgspec

from app.cli.options import SETTING_HELP
from feedback import errors
from feedback.errors import FeedbackError, LogFailure
from feedback.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z_]+)` \| `?([^|`]+?)`? \|", PAGE, re.MULTILINE))


def test_the_table_has_every_setting_with_its_default() -> None:
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    assert ROWS.keys() == fields.keys()
    for name, field in fields.items():
        assert ROWS[name] == ("required" if field.required else str(field.default) or "none")


def test_every_setting_has_a_help_text() -> None:
    assert SETTING_HELP.keys() == set(Settings.__struct_fields__)


def test_every_failure_is_explained() -> None:
    """Each typed failure that an operator may meet has its row."""
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, FeedbackError) and value not in (FeedbackError, LogFailure)
    }
    table = PAGE.partition("## What each failure means")[2].partition("##")[0]
    explained = set(re.findall(r"`([A-Z][A-Za-z]+)`", table))
    assert names - explained - {"ShuttingDown"} == set()
