"""Transcripts are untrusted: whatever they hold, what the page gets to insert is text and a few harmless tags."""

from html.parser import HTMLParser

import pytest

from gateway.reading.markdown import html_of
from gateway.reading.shown import MOST_FOLDED, MOST_RENDERED, shown
from persistence.transcripts import Message, Reasoning, Request, Text, Title, ToolCall, ToolResult

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


def test_depth_and_length_end() -> None:
    """What is nested without end, or made to be slow, is rendered all the same."""
    for text in ("> " * 10_000, "[" * 20_000, "*a " * 10_000, "- " * 5_000, "`" * 20_001, "<" * 20_000):
        assert len(html_of(text)) < 40 * len(text)


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_long_is_cut_unless_all_of_it_is_asked_for(whole: bool) -> None:
    long = "x" * (MOST_RENDERED + 1)
    parts = (Text("a"), Text("b"), Reasoning(long), ToolCall("c", "run", long), ToolResult("c", False, (Text(long),)))
    message = shown(Message(seq=7, role="assistant", message_id="m", text="", parts=parts), whole=whole)
    assert message is not None
    text, thought, call, result = message.parts
    assert (text.html, text.text) == ((None, "ab") if whole else ("<p>ab</p>\n", None))
    for part in (thought, call, result.parts[0]):
        assert (len(part.text or ""), part.cut) == ((len(long), None) if whole else (MOST_FOLDED, len(long)))
    prose = shown(Message(seq=8, role="user", message_id="u", text="", parts=(Text(long),)), whole=whole)
    assert prose is not None
    assert prose.parts[0].html is None
    assert prose.parts[0].cut == (None if whole else len(long))


def test_what_is_no_message_is_not_shown() -> None:
    assert shown(Title(seq=1, title="t")) is None
    assert shown(Request(seq=1, model="m")) is None
    assert shown(Message(seq=1, role="assistant", message_id="m", text="", parts=())) is None
    system = shown(Request(seq=1, system="Be kind."))
    assert system is not None
    assert (system.role, system.parts[0].html) == ("system", "<p>Be kind.</p>\n")
