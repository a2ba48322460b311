"""Markdown of transcripts as HTML. Transcripts are untrusted: nothing in them may become more than text.

Three things keep that, each alone: HTML in the text stays text, the outcome is sanitised to a list of tags, and the
page's Content-Security-Policy runs no script but its own.

A few thousand characters can be made to mean megabytes of HTML, or seconds of work: cells that a table's rows leave
out, one long address that many links refer to, quotes within quotes. So what a text costs is counted while it is read
(`Effort`), and a text that costs too much is refused: it is shown as it is.
"""

import re
from collections.abc import Sequence
from typing import Literal

import nh3
from markdown_it import MarkdownIt
from markdown_it.parser_block import ParserBlock
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType

MOST_EFFORT = 16 * 1024
"""Steps of the parser, and tokens that it makes, for one message. Prose takes one for ten characters, a table four for
each cell."""
MOST_HTML = 192 * 1024
"""Characters of HTML that one text may become."""
_DEEPEST = 32
"""Levels of quotes and lists (two each) within each other; the parser leaves out what is deeper than `maxNesting`."""

_SCHEMES = frozenset({"http", "https", "mailto"})
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_LANGUAGE = re.compile(r"language-[A-Za-z0-9_+#.-]{1,32}")
_TAGS = frozenset(
    {
        *("p", "br", "hr", "strong", "em", "s", "a", "code", "pre", "blockquote", "ul", "ol", "li"),
        *("h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
    }
)
# A message is a part of the page: its headings stand below the page's own.
_HEADINGS = {"h1": "h4", "h2": "h5"}
_LOWEST = "h6"


def _sanitised_attribute(tag: str, name: str, value: str) -> str | None:
    if (tag, name) == ("code", "class"):
        return value if _LANGUAGE.fullmatch(value) else None
    return value


class TooMuchMarkdown(Exception):
    """A text would take too much work, or too much room, or is nested too deeply to be shown whole."""


class Effort:
    """What is left to spend on the texts of one message."""

    def __init__(self, left: int = MOST_EFFORT) -> None:
        self.left = left

    def spend(self) -> None:
        """One step, or one token. Raises TooMuchMarkdown when there is none left."""
        self.left -= 1
        if self.left < 0:
            raise TooMuchMarkdown


_EFFORT = "effort"
"""Where the parser's environment has it."""


class _CountingState(StateBlock):
    def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
        # One step of the table rule makes all of a table's tokens.
        self.env[_EFFORT].spend()
        return super().push(ttype, tag, nesting)


class _CountingBlocks(ParserBlock):
    """As the parser of blocks is, with another state."""

    def parse(self, src: str, md: MarkdownIt, env: EnvType, outTokens: list[Token]) -> list[Token]:  # noqa: N803  its name
        state = _CountingState(src, md, env, outTokens)
        self.tokenize(state, state.line, state.lineMax)
        return state.tokens


def _count_block(state: StateBlock, line: int, end_line: int, silent: bool) -> bool:
    """A rule that is asked first, at every line and at every look ahead, and never matches."""
    del line, end_line, silent
    if state.level >= _DEEPEST:
        raise TooMuchMarkdown
    state.env[_EFFORT].spend()
    return False


class _CountingInline(ParserInline):
    """As the parser of what is in a block is."""

    def skipToken(self, state: StateInline) -> None:  # noqa: N802  its name
        # A label is looked for from each of many brackets on.
        state.env[_EFFORT].spend()
        super().skipToken(state)


def _count_inline(state: StateInline, silent: bool) -> bool:
    """As `_count_block`, at every piece of text."""
    if not silent:
        state.env[_EFFORT].spend()
    return False


def _renderer() -> MarkdownIt:
    options = {"html": False, "maxNesting": 2 * _DEEPEST}
    markdown = MarkdownIt("commonmark", options).enable(["table", "strikethrough"]).disable("image")
    markdown.block.ruler.before(
        "table", "count", _count_block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    markdown.inline.ruler.before("text", "count", _count_inline)
    block, inline = _CountingBlocks(), _CountingInline()
    block.ruler, inline.ruler, inline.ruler2 = markdown.block.ruler, markdown.inline.ruler, markdown.inline.ruler2
    markdown.block, markdown.inline = block, inline
    # Relative links would lead into this gateway, wherever a transcript says.
    markdown.validateLink = lambda url: _LINK.match(url) is not None  # type: ignore[method-assign]  # its own way to set it
    return markdown


_markdown = _renderer()
_cleaner = nh3.Cleaner(
    tags=set(_TAGS),
    attributes={"a": {"href"}, "code": {"class"}, "ol": {"start"}},
    attribute_filter=_sanitised_attribute,
    set_tag_attribute_values={"a": {"target": "_blank"}},
    url_schemes=set(_SCHEMES),
    url_relative="deny",
    link_rel="noopener noreferrer nofollow",
)


def html_of(text: str, effort: Effort | None = None) -> str:
    """CommonMark, tables and strike-through as HTML that may be put into the page. Images stay as their text.

    Raises TooMuchMarkdown: `effort` (that of a message of its own, where it is None) is spent, or it would be too long.
    """
    tokens = _markdown.parse(text, {_EFFORT: effort or Effort()})
    _lower_headings(tokens)
    if sum(map(_room, tokens)) > MOST_HTML:
        raise TooMuchMarkdown
    html = _cleaner.clean(_markdown.renderer.render(tokens, _markdown.options, {}))
    if len(html) > MOST_HTML:
        raise TooMuchMarkdown
    return html


def _room(token: Token) -> int:
    """Characters that a token takes, at least: many links may bear the same long address."""
    if token.children is not None:
        return sum(map(_room, token.children))
    return len(token.content) + sum(len(str(value)) for value in token.attrs.values())


def _lower_headings(tokens: Sequence[Token]) -> None:
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = _HEADINGS.get(token.tag, _LOWEST)
