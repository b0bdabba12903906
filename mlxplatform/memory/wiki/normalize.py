"""The one shape every machine-edited page has. Deterministic; a second pass changes nothing.

In order: closed fences, title, sorted info keys, section order, footnotes gathered and renumbered, wiki
links to known pages in one spelling, the stub template. A source that a marker cites is never lost. A
step that cannot finish leaves a note and the others go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from mlxplatform.memory.wiki.page import (
    APPARATUS,
    DEFINITION,
    FENCE,
    HISTORY,
    MARKER,
    NOTES,
    REFERENCES,
    SEE_ALSO,
    Definition,
    Page,
    Section,
    anchor_of,
    closes,
    definitions,
    fenced_lines,
    front_matter_lines,
    parse,
    render,
    split_preamble,
    without_code,
    word_count,
)

#: A page with fewer body sections or fewer words than this is a stub.
STUB_SECTIONS = 2
STUB_WORDS = 40

_ORDER = {anchor_of(name): place for place, name in enumerate((HISTORY, SEE_ALSO, NOTES, REFERENCES), start=1)}
_WIKILINK = re.compile(r"\[\[([^\[\]|#]+)(#[^\[\]|]*)?(\|[^\[\]]*)?\]\]")


@dataclass(frozen=True)
class Normalized:
    text: str
    notes: tuple[str, ...] = ()


def normalize(text: str, stem: str, known_stems: Collection[str] = ()) -> Normalized:
    notes: list[str] = []
    steps: tuple[tuple[str, Callable[[str], str]], ...] = (
        ("line endings", lambda t: t.replace("\r\n", "\n").replace("\r", "\n")),
        ("fences", close_fences),
        ("title", lambda t: _title(t, stem.replace("_", " "))),
        ("info block", _info),
        ("section order", _order_sections),
        ("footnotes", renumber),
        ("links", lambda t: _canonical_links(t, known_stems)),
        ("stub", _stub),
        ("spacing", _spacing),
    )
    for name, step in steps:
        try:
            text = step(text)
        except (ValueError, IndexError, KeyError) as error:
            notes.append(f"{name} left as it was: {error}")
    return Normalized(text, tuple(notes))


def close_fences(text: str) -> str:
    """Close a fence that was left open before the next section, so that one slip cannot swallow a page."""
    open_fence = ""
    lines: list[str] = []
    front = front_matter_lines(text.split("\n"))
    for place, line in enumerate(text.split("\n")):
        found = FENCE.match(line) if place >= front else None
        if open_fence and line.startswith("## ") and not _closes_later(text, lines, open_fence):
            lines.append(open_fence)
            open_fence = ""
        if open_fence:
            if closes(found, open_fence):
                open_fence = ""
        elif found and not (found[1][0] == "`" and "`" in found[2]):
            open_fence = found[1]
        lines.append(line)
    if open_fence:
        while lines and not lines[-1]:
            lines.pop()
        lines += [open_fence, ""]
    return "\n".join(lines)


def _closes_later(text: str, done: list[str], fence: str) -> bool:
    rest = text.split("\n")[len(done) :]
    # A closing line before another opening one means that the heading is inside a fence on purpose.
    for line in rest:
        found = FENCE.match(line)
        if found and found[1][0] == fence[0] and len(found[1]) >= len(fence):
            return not found[2].strip()
    return False


def _title(text: str, wanted: str) -> str:
    lines = list(fenced_lines(text))
    front = front_matter_lines([line for line, _ in lines])
    for index in range(front, len(lines)):
        line, fenced = lines[index]
        if not fenced and line.startswith("## "):
            break
        if not fenced and line.startswith("# "):
            lines[index] = (f"# {wanted}\n", False)
            return "".join(line for line, _ in lines)
    head, rest = "".join(line for line, _ in lines[:front]), "".join(line for line, _ in lines[front:])
    if head and not head.endswith("\n"):
        head += "\n"
    return f"{head}# {wanted}\n\n{rest.lstrip(chr(10))}"


def snake(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", key.casefold()).strip("_")


def _info(text: str) -> str:
    """Sort the info block's keys; a line that is no fact stays after them."""
    lines = list(fenced_lines(text))
    start = next((i for i, (line, fenced) in enumerate(lines) if fenced and line.strip() in {"```info", "~~~info"}), None)
    if start is None:
        return text
    opening = lines[start][0].strip()[:3]
    closing = (i for i in range(start + 1, len(lines)) if closes(FENCE.match(lines[i][0].rstrip("\n")), opening))
    end = next(closing, None)
    if end is None:
        raise ValueError("the info block is not closed")
    facts: dict[str, str] = {}
    others: list[str] = []
    for line, _ in lines[start + 1 : end]:
        key, colon, value = line.partition(":")
        if colon and snake(key) and snake(key) not in facts:
            facts[snake(key)] = value.strip()
        elif line.strip():
            others.append(line.rstrip("\n") + "\n")
    block = [f"{key}: {facts[key]}".rstrip() + "\n" for key in sorted(facts)] + others
    return "".join([*(line for line, _ in lines[: start + 1]), *block, *(line for line, _ in lines[end:])])


def _order_sections(text: str) -> str:
    """History, See also, Notes, References at the end, in this order; doubles of the apparatus merged."""
    page = parse(text)
    placed: list[Section] = []
    for section in page.sections:
        twin = next((s for s in placed if anchor_of(s.title) == anchor_of(section.title) and anchor_of(s.title) in _ORDER), None)
        if twin is None:
            placed.append(section)
        else:
            merged = replace(twin, body=twin.body.rstrip("\n") + "\n" + section.body.lstrip("\n"))
            placed[placed.index(twin)] = merged
    placed.sort(key=lambda section: _ORDER.get(anchor_of(section.title), 0))
    return render(_spaced(replace(page, sections=tuple(placed))))


def _spaced(page: Page) -> Page:
    """Blank lines around headings; nothing inside a body changes."""
    head, lead = split_preamble(page.preamble)
    head, lead = head.strip("\n"), lead.strip("\n")
    preamble = "\n\n".join(part for part in (head, lead) if part)
    sections = []
    for section in page.sections:
        body = section.body.strip("\n")
        sections.append(Section(section.heading.strip() + "\n", f"\n{body}\n\n" if body else "\n"))
    return Page(preamble + "\n\n" if preamble else "", tuple(sections))


def _spacing(text: str) -> str:
    return render(_spaced(parse(text))).rstrip("\n") + "\n"


def _without_definitions(text: str) -> str:
    kept: list[str] = []
    open_definition = False
    for line, fenced in fenced_lines(text):
        if not fenced and DEFINITION.match(line):
            open_definition = True
            continue
        if open_definition and not fenced and line.startswith(("    ", "\t")) and line.strip():
            continue
        open_definition = False
        kept.append(line)
    return "".join(kept)


def _replace_markers(text: str, new_label: Callable[[str], str | None]) -> str:
    """Rewrite markers outside code; a label that maps to None disappears."""
    out: list[str] = []
    for line, fenced in fenced_lines(text):
        if fenced:
            out.append(line)
            continue
        blanked = without_code(line)
        pieces, last = [], 0
        for found in MARKER.finditer(blanked):
            pieces.append(line[last : found.start()])
            label = new_label(found[1])
            pieces.append("" if label is None else f"[^{label}]")
            last = found.end()
        out.append("".join(pieces) + line[last:])
    return "".join(out)


def renumber(text: str) -> str:
    """Footnotes numbered by first use, definitions last; orphans of the machine go, a person's stay.

    Numeric labels without a definition mark nothing and are taken out; named labels and definitions
    without a conversation belong to people and are kept whatever they point to.
    """
    found: dict[str, Definition] = {}
    for definition in definitions(text):
        found.setdefault(definition.label, definition)
    body = _without_definitions(text)
    order: list[str] = []
    for line, fenced in fenced_lines(body):
        if not fenced:
            order += MARKER.findall(without_code(line))
    used = [label for label in dict.fromkeys(order) if label in found]
    numeric = [label for label in used if label.isdigit()]
    numbers = {label: str(number) for number, label in enumerate(numeric, start=1)}
    kept_orphans = [label for label in found if label not in used and not found[label].hashes]
    for label in kept_orphans:
        if label.isdigit():
            numbers[label] = str(len(numbers) + 1)

    def new_label(label: str) -> str | None:
        if not label.isdigit():
            return label
        return numbers.get(label) if label in used else None

    body = _replace_markers(body, new_label)
    lines = [f"[^{numbers[label]}]: {found[label].text}" for label in numbers]
    lines += [
        f"[^{label}]: {found[label].text}" for label in found if not label.isdigit() and (label in used or label in kept_orphans)
    ]
    page = parse(body)
    references = page.section(REFERENCES)
    if references is None:
        if not lines:
            return body
        page = replace(page, sections=(*page.sections, Section(f"## {REFERENCES}\n", "\n")))
        references = page.sections[-1]
    own = references.body.strip("\n")
    text_of = "\n\n".join(part for part in (own, "\n".join(lines)) if part)
    if found and not text_of:
        # The last source went: so does the heading that stood over it.
        rest = tuple(section for section in page.sections if section is not references)
        return render(_spaced(replace(page, sections=rest))).rstrip("\n") + "\n"
    return render(_spaced(page.with_section(REFERENCES, f"\n{text_of}\n")))


def _canonical_links(text: str, known_stems: Collection[str]) -> str:
    by_key = {stem.casefold(): stem for stem in known_stems}

    def spelled(found: re.Match[str]) -> str:
        target = found[1].strip()
        stem = by_key.get(target.replace(" ", "_").casefold())
        if stem is None:
            return found[0]
        shown = found[3] or ("" if stem == target else f"|{target.replace('_', ' ')}")
        return f"[[{stem}{found[2] or ''}{shown}]]"

    out: list[str] = []
    for line, fenced in fenced_lines(text):
        if fenced:
            out.append(line)
            continue
        blanked = without_code(line)
        pieces, last = [], 0
        for found in _WIKILINK.finditer(blanked):
            pieces += [line[last : found.start()], spelled(found)]
            last = found.end()
        out.append("".join(pieces) + line[last:])
    return "".join(out)


def _stub(text: str) -> str:
    page = parse(text)
    head, lead = split_preamble(page.preamble)
    lines = [line for line, fenced in fenced_lines(head) if fenced or line.strip() != "{{stub}}"]
    words = word_count(lead) + sum(
        word_count(section.body) for section in page.sections if anchor_of(section.title) not in _APPARATUS
    )
    if len(page.body_sections) < STUB_SECTIONS or words < STUB_WORDS:
        lines = ["".join(lines).rstrip("\n"), "\n\n{{stub}}\n\n"]
    return render(replace(page, preamble="".join(lines) + lead))


_APPARATUS = frozenset(anchor_of(name) for name in APPARATUS)
