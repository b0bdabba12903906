"""A page as HTML for people. Whatever a page holds, only markup made here comes out.

Raw HTML is shown as text, links lead to other pages of the wiki or to http(s), images are not loaded, and
footnotes become links to their definitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape

from markdown_it import MarkdownIt

from mlxplatform.memory.wiki.page import DEFINITION, MARKER, fenced_lines, without_code

_WIKILINK = re.compile(r"\[\[([^\[\]|#]+)(#[^\[\]|]*)?(?:\|([^\[\]]*))?\]\]")
#: Private-use characters stand for markup while Markdown is rendered; pages that hold them lose them.
_OPEN, _CLOSE = "\ue000", "\ue001"
_HELD = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
#: Markup never stands inside a tag, as in the title of a link.
_TAG = re.compile(r"<[^<>]*>")


def _markdown() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable("table").disable("image")
    made.validateLink = lambda url: url.startswith(("http://", "https://", "#"))  # type: ignore[method-assign]
    return made


def render(text: str, url_of: Callable[[str], str | None]) -> str:
    """HTML of a page. ``url_of`` gives the address of a wiki page, or None when there is none of that name."""
    held: list[str] = []

    def hold(markup: str) -> str:
        held.append(markup)
        return f"{_OPEN}{len(held) - 1}{_CLOSE}"

    def link(found: re.Match[str]) -> str:
        shown = escape((found[3] or found[1]).strip())
        url = url_of(found[1].strip().replace(" ", "_"))
        return hold(f'<a href="{escape(url)}">{shown}</a>' if url else f'<span class="muted" title="no such page">{shown}</span>')

    def marker(found: re.Match[str]) -> str:
        label = escape(found[1])
        return hold(f'<sup><a href="#note-{label}">{label}</a></sup>')

    lines: list[str] = []
    for line, fenced in fenced_lines(text.replace(_OPEN, "").replace(_CLOSE, "")):
        definition = None if fenced else DEFINITION.match(line)
        if definition:
            label = escape(definition[1])
            lines.append(hold(f'<span id="note-{label}" class="mono">{label}</span>') + f" {definition[2]}  \n")
        elif fenced or line.strip() == "{{stub}}":
            lines.append(line if fenced else "*This page is a stub.*\n")
        else:
            lines.append(_outside_code(line, _WIKILINK, link, MARKER, marker))
    done = _TAG.sub(lambda tag: _HELD.sub("", tag[0]), _markdown().render("".join(lines)))
    # The stand-ins can come back as character references; those that stand for nothing are dropped.
    return _HELD.sub(lambda found: held[int(found[1])] if len(found[1]) < 10 and int(found[1]) < len(held) else "", done)


def _outside_code(line: str, *rules: object) -> str:
    """Apply (pattern, replacement) pairs to a line, leaving code spans alone."""
    for pattern, replace in zip(rules[::2], rules[1::2], strict=True):
        assert isinstance(pattern, re.Pattern) and callable(replace)
        pieces, last = [], 0
        for found in pattern.finditer(without_code(line)):
            # Matched on the blanked line, so that offsets are true; the text itself comes from the line.
            true = pattern.match(line, found.start())
            if true:
                pieces += [line[last : true.start()], replace(true)]
                last = true.end()
        line = "".join(pieces) + line[last:]
    return line
