"""Markdown of transcripts as HTML. Transcripts are untrusted: nothing in them may become more than text.

Three things keep that, each alone: HTML in the text stays text, the outcome is sanitised to a list of tags, and the
page's Content-Security-Policy runs no script but its own.
"""

import re
from collections.abc import Sequence

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

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


def _renderer() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
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


def html_of(text: str) -> str:
    """CommonMark, tables and strike-through as HTML that may be put into the page. Images stay as their text."""
    tokens = _markdown.parse(text)
    _lower_headings(tokens)
    return _cleaner.clean(_markdown.renderer.render(tokens, _markdown.options, {}))


def _lower_headings(tokens: Sequence[Token]) -> None:
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = _HEADINGS.get(token.tag, _LOWEST)
