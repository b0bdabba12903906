"""Wiki links without a model: which mentions of other pages to link, and what to see also.

Only the first clear mention of a page is linked, as a whole word, never inside links, code, footnotes,
the info block, headings or the apparatus, and never to the page itself. Links a person made or removed
are left so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mlxplatform.memory.wiki.page import (
    APPARATUS,
    DEFINITION,
    MARKER,
    SEE_ALSO,
    Page,
    Section,
    anchor_of,
    fenced_lines,
    parse,
    render,
    split_preamble,
    without_code,
)

#: Most entries of a See also section.
SEE_ALSO_LIMIT = 12
#: Pages that share at least this many chunks belong together.
SHARED_CHUNKS = 2
#: Shorter names than this are no clear mention.
SHORTEST_SURFACE = 3

_LINK = re.compile(r"!?\[\[[^\[\]]*\]\]|!?\[[^\[\]]*\]\([^()]*\)|<[^<>]*>|https?://\S+")
_TARGET = re.compile(r"\[\[([^\[\]|#]+)(?:#[^\[\]|]*)?(?:\|[^\[\]]*)?\]\]")
_ITEM = re.compile(r"^[-*+]\s+\[\[([^\[\]|#]+)(?:\|[^\[\]]*)?\]\]\s*$")


@dataclass(frozen=True)
class Mention:
    """A surface form as written in the page, and the page it names."""

    surface: str
    stem: str


def linked_stems(text: str) -> list[str]:
    """Pages that this text links to, in order, outside code; the See also section counts as well."""
    found: list[str] = []
    for line, fenced in fenced_lines(text):
        if not fenced:
            for target in _TARGET.findall(without_code(line)):
                stem = target.strip().replace(" ", "_")
                if stem not in found:
                    found.append(stem)
    return found


def see_also_of(text: str) -> list[str]:
    section = parse(text).section(SEE_ALSO)
    return linked_stems(section.body) if section else []


def _body(text: str) -> str:
    """The page without its See also section."""
    page = parse(text)
    return render(Page(page.preamble, tuple(s for s in page.sections if anchor_of(s.title) != anchor_of(SEE_ALSO))))


def _open_spans(line: str) -> str:
    """The line with everything that must not be linked blanked out."""
    line = without_code(line)
    for pattern in (_LINK, MARKER):
        line = pattern.sub(lambda found: " " * len(found[0]), line)
    return line


def _pattern(surface: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(surface)}(?![\w-])", re.IGNORECASE)


def find_mentions(text: str, stem: str, surfaces: Mapping[str, str], withdrawn: Collection[str] = ()) -> list[Mention]:
    """New links this page deserves. ``surfaces`` maps titles and aliases to stems; longer names win."""
    done = {target.casefold() for target in linked_stems(_body(text))} | {stem.casefold(), *(w.casefold() for w in withdrawn)}
    found: list[Mention] = []
    probe = text
    for surface in sorted(surfaces, key=lambda s: (-len(s), s)):
        target = surfaces[surface]
        if len(surface) < SHORTEST_SURFACE or target.casefold() in done:
            continue
        linked = link_mention(probe, Mention(surface, target))
        if linked != probe:
            probe = linked
            found.append(Mention(surface, target))
            done.add(target.casefold())
    return found


def link_mention(text: str, mention: Mention) -> str:
    """Turn the first clear mention into a wiki link; the text unchanged when there is none."""
    pattern = _pattern(mention.surface)
    page = parse(text)
    head, lead = split_preamble(page.preamble)
    linked = _link_first(lead, pattern, mention.stem)
    if linked is not None:
        return render(Page(head + linked, page.sections))
    hidden = {anchor_of(name) for name in APPARATUS}
    for index, section in enumerate(page.sections):
        if anchor_of(section.title) in hidden:
            continue
        linked = _link_first(section.body, pattern, mention.stem)
        if linked is not None:
            changed = Section(section.heading, linked)
            return render(Page(page.preamble, (*page.sections[:index], changed, *page.sections[index + 1 :])))
    return text


def _link_first(body: str, pattern: re.Pattern[str], stem: str) -> str | None:
    out: list[str] = []
    done = False
    for line, fenced in fenced_lines(body):
        found = None if done or fenced or line.startswith("#") or DEFINITION.match(line) else pattern.search(_open_spans(line))
        if found:
            shown = line[found.start() : found.end()]
            link = f"[[{stem}]]" if shown == stem else f"[[{stem}|{shown}]]"
            line = line[: found.start()] + link + line[found.end() :]
            done = True
        out.append(line)
    return "".join(out) if done else None


def see_also(text: str, stem: str, related: Sequence[str], known: Collection[str], withdrawn: Collection[str] = ()) -> list[str]:
    """The See also list: what stands there, then pages mentioned in the body, then related ones."""
    have = see_also_of(text)
    wanted = [target for target in have if target in known]
    for target in [*linked_stems(_body(text)), *related]:
        if target in known and target != stem and target not in wanted and target not in withdrawn:
            wanted.append(target)
    return wanted[: max(SEE_ALSO_LIMIT, len(have))]


def with_see_also(text: str, stems: Sequence[str]) -> str:
    """The page with these entries listed; lines a person wrote there, and their entries, stay in place."""
    page = parse(text)
    section = page.section(SEE_ALSO)
    own = section.body.strip("\n").split("\n") if section and section.body.strip() else []
    there = {found[1].strip().replace(" ", "_") for line in own if (found := _ITEM.match(line))} | set(see_also_of(text))
    added = [f"- [[{stem}|{stem.replace('_', ' ')}]]" if "_" in stem else f"- [[{stem}]]" for stem in stems if stem not in there]
    if not added:
        return text
    body = "\n" + "\n".join([*own, *added]) + "\n\n"
    if section:
        return render(page.with_section(SEE_ALSO, body))
    return render(Page(page.preamble, (*page.sections, Section(f"## {SEE_ALSO}\n", body))))
