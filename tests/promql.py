"""As much of PromQL as it takes to say which metrics and labels an expression is about."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_NAME = re.compile(r"(?<![\w:$.])([a-zA-Z_:][\w:]*)(\s*\{[^}]*\})?(?!\s*[\w(:])")
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan"})


class Named(NamedTuple):
    """A metric that an expression selects, and the labels that it is selected by."""

    metric: str
    labels: frozenset[str]


def metrics_of(expression: str) -> list[Named]:
    """Every selected metric. Raises `AssertionError` for what is no expression of any."""
    bare = _GROUPING.sub(" ", re.sub(r"\[[^\]]*\]", "", _STRING.sub('""', expression)))
    assert bare.count("(") == bare.count(")"), expression
    found = [
        Named(name, frozenset(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector or "")))
        for name, selector in _NAME.findall(bare)
        if name not in _WORDS
    ]
    assert found, expression
    return found


def grouping_labels(expression: str) -> Iterator[str]:
    """The labels that an expression groups or matches by."""
    for labels in _GROUPING.findall(_STRING.sub('""', expression)):
        yield from re.findall(r"\w+", labels)
