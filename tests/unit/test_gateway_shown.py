"""Transcripts are untrusted: whatever they hold, what the page gets to insert is text and a few harmless tags."""

import sys
from collections.abc import Callable
from html.parser import HTMLParser
from types import FrameType
from typing import TypeVar

import msgspec
import pytest

from gateway.reading.markdown import MOST_EFFORT, MOST_HTML, html_of
from gateway.reading.shown import MOST_FOLDED, MOST_NAME, MOST_PARTS, MOST_RENDERED, MOST_SHOWN, ShownPart, shown
from persistence.transcripts import Message, OtherPart, Part, Reasoning, Request, Text, Title, ToolCall, ToolResult

T = TypeVar("T")

ATTACKS = [
    "<script>pwned()</script>",
    "<img src=x onerror=pwned()>",
    "<svg/onload=pwned()><style>*{display:none}</style>",
    "[a](javascript:pwned()) [b](JaVaScRiPt:pwned()) [c](java&#115;cript:pwned()) [d](java\tscript:pwned())",
    "[e](data:text/html,<script>pwned()</script>) [f](vbscript:pwned()) <javascript:pwned()>",
    "![g](javascript:pwned()) ![h](https://tracker.example/pixel.png)",
    '[i](https://a.example "x\\" onmouseover=\\"pwned()")',
    '```js" onload="pwned()\ncode\n```',
    "```x onclick=pwned()\n</code></pre><script>pwned()</script>\n```",
    "[relative](/sessions/s/feedback) [anchor](#/overview) [network](//evil.example) [up](../x)",
    "| <b onclick=pwned()>a</b> |\n|---|\n| `<script>` |",
    "<iframe srcdoc='<script>pwned()</script>'></iframe><form action=//evil.example><button>Log in</button></form>",
    "&lt;script&gt;pwned()&lt;/script&gt; \x00<scr\x00ipt>",
    "<a href='https://a.example' style='position:fixed;inset:0'>over everything</a>",
]
TAGS = {"p", "br", "hr", "strong", "em", "s", "a", "code", "pre", "blockquote", "ul", "ol", "li"}
TAGS |= {"h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"}


def said(*parts: Part) -> Message:
    """An answer of these parts."""
    return Message(seq=7, role="assistant", message_id="m", text="", parts=parts)


class Inspector(HTMLParser):
    """Collects what is not allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.found.append(tag)
        for name, value in attrs:
            harmless = {
                "href": str(value).startswith(("https://", "http://", "mailto:")),
                "class": str(value).startswith("language-"),
                "target": value == "_blank",
                "rel": value == "noopener noreferrer nofollow",
                "start": str(value).isdecimal(),
                "title": True,
            }
            if not harmless.get(name, False):
                self.found.append(f"{tag}.{name}={value}")


def test_nothing_but_text_and_harmless_tags_comes_out_of_markdown() -> None:
    for attack in [*ATTACKS, "\n\n".join(ATTACKS), "> - " + "\n> - ".join(ATTACKS)]:
        inspector = Inspector()
        inspector.feed(html_of(attack))
        assert inspector.found == [], attack


def test_markdown_is_rendered_below_the_pages_own_headings() -> None:
    assert html_of("# One\n\n**two** ~~three~~ `four`").split("\n")[:2] == [
        "<h4>One</h4>",
        "<p><strong>two</strong> <s>three</s> <code>four</code></p>",
    ]
    assert 'class="language-python"' in html_of("```python\npass\n```")


def filled(piece: str) -> str:
    """As long as a text may be that is rendered."""
    return (piece * (MOST_RENDERED // len(piece) + 1))[:MOST_RENDERED]


HOSTILE = {
    "cells": filled("|a|b|c|\n|-|-|-|\n" + "|1|2|3|\n" * 99),
    "cells that rows leave out": filled("a|" * 1000 + "\n" + "-|" * 1000 + "\n" + "a\n" * MOST_RENDERED),
    "tables": filled("|a\n|-\n"),
    "one long address, linked to often": filled(f"[a]: http://{'x' * 16_000}\n\n" + "[a]" * MOST_RENDERED),
    "addresses": filled("<http://a.b>"),
    "references": filled("[a]:\n"),
    "brackets": filled("["),
    "brackets that close": "[" * (MOST_RENDERED // 2) + "]" * (MOST_RENDERED // 2),
    "links without an end": filled("[a]("),
    "emphasis": filled("*_"),
    "strong within strong": filled("**a " * 5000 + "a**" * 5000),
    "quotes within quotes": filled(">"),
    "lines of a deep quote": filled(">" * 100 + "a\n" * MOST_RENDERED),
    "lists within lists": filled("- " * 60 + "a\n"),
    "items": filled("1. a\n"),
    "backticks": "".join(f"e{'`' * number}" for number in range(250)),
}


def calls_of(function: Callable[[], T]) -> tuple[T, int]:
    """What a function returns, and how many it calls."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        del frame, argument
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        return function(), calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_a_message_costs_is_bounded_and_nothing_of_it_is_lost(text: str) -> None:
    """In work, counted in function calls, and in HTML. What costs too much is shown as it is, and says so."""
    assert len(text) <= MOST_RENDERED
    message, calls = calls_of(lambda: shown(said(Text(text))))
    assert message is not None
    assert calls < 100 * MOST_EFFORT
    (part,) = message.parts
    if part.plain:
        assert (part.html, part.text, part.cut) == (None, text, None)
    else:
        assert 0 < len(part.html or "") <= MOST_HTML


def test_ordinary_markdown_is_rendered_whole_up_to_the_bound() -> None:
    """Prose, code and a table as they are written, over and over."""
    prose = "## A heading\n\nSome *words*, a [link](https://a.example) and `code` — as a person writes.\n\n"
    prose += "- one\n- two\n  - three\n\n```python\nprint(1 < 2)\n```\n\n"
    prose += "| month | revenue | change |\n|---|--:|--:|\n" + "| January | 1,234,567 | +12.5 % |\n" * 12 + "\n"
    message = shown(said(Text(filled(prose))))
    assert message is not None
    assert not message.parts[0].plain


def test_many_texts_are_bounded_as_one() -> None:
    """However they are spread over parts, and whatever stands between them."""
    step = (Reasoning(filled("x")), Text(filled("a ")), ToolCall("c" * 999, "n" * 999, "{}"), Text(filled("a*")))
    message = shown(said(*step * 20, *(OtherPart(filled("k")) for _ in range(2 * MOST_PARTS))))
    assert message is not None
    assert message.characters <= MOST_SHOWN + MOST_HTML
    assert len(msgspec.json.encode(message)) < 2 * MOST_SHOWN + MOST_PARTS * (MOST_NAME + 50)
    assert [part.plain for part in message.parts[1:8:2]] == [False, True, True, True]
    assert message.parts[-1] == ShownPart(kind="more", name=str(2 * MOST_PARTS + 80 - MOST_PARTS))
    last = message.parts[76]
    assert (last.text, last.cut) == ("", MOST_RENDERED)
    pieces = shown(said(*[Text("ab")] * 10_000))
    assert pieces is not None
    assert pieces.parts[0].html == f"<p>{'ab' * 10_000}</p>\n"


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_long_is_cut_unless_all_of_it_is_asked_for(whole: bool) -> None:
    long = "x" * (MOST_RENDERED + 1)
    parts = (Text("a"), Text("b"), Reasoning(long), ToolCall("c", "run", long), ToolResult("c", False, (Text(long),)))
    message = shown(said(*parts), whole=whole)
    assert message is not None
    text, thought, call, result = message.parts
    assert (text.html, text.text) == ((None, "ab") if whole else ("<p>ab</p>\n", None))
    for part in (thought, call, result.parts[0]):
        assert (len(part.text or ""), part.cut) == ((len(long), None) if whole else (MOST_FOLDED, len(long)))
    prose = shown(Message(seq=8, role="user", message_id="u", text="", parts=(Text(long),)), whole=whole)
    assert prose is not None
    assert prose.parts[0].html is None
    assert (prose.parts[0].cut, prose.parts[0].plain) == ((None, False) if whole else (len(long), True))


def test_what_is_no_message_is_not_shown() -> None:
    assert shown(Title(seq=1, title="t")) is None
    assert shown(Request(seq=1, model="m")) is None
    assert shown(Message(seq=1, role="assistant", message_id="m", text="", parts=())) is None
    system = shown(Request(seq=1, system="Be kind."))
    assert system is not None
    assert (system.role, system.parts[0].html) == ("system", "<p>Be kind.</p>\n")
