"""A page as text: where its parts begin and end, and what it cites.

Parsing is lossless: ``render(parse(text)) == text`` for every text, so that an edit of one section leaves
every other byte of the page as a person wrote it. Knows fences, headings, footnotes and the ``info`` block;
refuses to know what a good page looks like (:mod:`.normalize`) or which edit may pass (:mod:`.gate`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

#: Anchor of the text between the head of the page and its first section.
LEAD = "__lead__"

HISTORY = "History"
SEE_ALSO = "See also"
NOTES = "Notes"
REFERENCES = "References"
#: Sections that hold no claims of their own; never routed to, never drafted.
APPARATUS = (SEE_ALSO, NOTES, REFERENCES)

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
DEFINITION = re.compile(r"^\[\^([^\]\s]+)\]:[ \t]*(.*?)\s*$")
MARKER = re.compile(r"\[\^([^\]\s]+)\]")
CITED = re.compile(r"`conv:([0-9a-f]{8})`")
TURNS = re.compile(r"turns? (\d+)(?:–(\d+))?")
_CODE_SPAN = re.compile(r"(`+)(?:(?!`).|(?!\1)`)*?\1")
_HEAD_LINE = re.compile(r"^(\{\{(?:stub|series\b[^}]*)\}\}|\[\[:?[Cc]ategory:[^\]]+\]\])\s*$")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)\]]*(?:\[\^[^\]\s]+\])*(?=\s|$)")


@dataclass(frozen=True)
class Section:
    """One ``##`` section; ``heading`` is its whole line, ``body`` everything to the next one."""

    heading: str
    body: str

    @property
    def title(self) -> str:
        return self.heading.strip().lstrip("#").strip().rstrip("#").strip()


@dataclass(frozen=True)
class Page:
    """``preamble`` is everything before the first section: front matter, title, info block, lead."""

    preamble: str
    sections: tuple[Section, ...]

    def section(self, anchor: str) -> Section | None:
        wanted = anchor_of(anchor)
        return next((section for section in self.sections if anchor_of(section.title) == wanted), None)

    def with_section(self, anchor: str, body: str) -> Page:
        """The page with the first section of that anchor given a new body."""
        target = self.section(anchor)
        return replace(self, sections=tuple(replace(s, body=body) if s is target else s for s in self.sections))

    @property
    def body_sections(self) -> tuple[Section, ...]:
        """Sections with claims: neither apparatus nor history."""
        hidden = {anchor_of(name) for name in (*APPARATUS, HISTORY)}
        return tuple(section for section in self.sections if anchor_of(section.title) not in hidden)


@dataclass(frozen=True)
class Definition:
    """One footnote definition; ``hashes`` are the conversations its text cites in backticks."""

    label: str
    text: str

    @property
    def hashes(self) -> list[str]:
        return CITED.findall(self.text)


def anchor_of(title: str) -> str:
    """The key sections are compared by: case and spacing do not count."""
    return title if title == LEAD else " ".join(title.casefold().split())


def closes(found: re.Match[str] | None, open_fence: str) -> bool:
    """Whether a matched fence line ends the fence that ``open_fence`` began."""
    return bool(found and found[1][0] == open_fence[0] and len(found[1]) >= len(open_fence) and not found[2].strip())


def fenced_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Every line with its ending, and whether it is code or front matter (their own marks included)."""
    open_fence = ""
    lines = list(io.StringIO(text, newline="\n"))
    front = front_matter_lines(lines)
    for place, line in enumerate(lines):
        if place < front:
            yield line, True
            continue
        found = FENCE.match(line.rstrip("\r\n"))
        if open_fence:
            yield line, True
            if closes(found, open_fence):
                open_fence = ""
        elif found and not (found[1][0] == "`" and "`" in found[2]):
            open_fence = found[1]
            yield line, True
        else:
            yield line, False


def parse(text: str) -> Page:
    parts: list[list[str]] = [[]]
    for line, fenced in fenced_lines(text):
        if not fenced and line.startswith("## "):
            parts.append([])
        parts[-1].append(line)
    return Page("".join(parts[0]), tuple(Section(lines[0], "".join(lines[1:])) for lines in parts[1:]))


def render(page: Page) -> str:
    return page.preamble + "".join(section.heading + section.body for section in page.sections)


def front_matter_lines(lines: list[str]) -> int:
    """How many leading lines are YAML front matter, as note editors write it; 0 without one."""
    if not lines or lines[0].strip() != "---":
        return 0
    for index, line in enumerate(lines[1:], start=1):
        if line.strip() == "---":
            return index + 1
    return 0


def split_preamble(preamble: str) -> tuple[str, str]:
    """(head, lead): head is front matter, title, info block and template lines; lead the prose after them."""
    lines = list(fenced_lines(preamble))
    index = front_matter_lines([line for line, _ in lines])
    titled = informed = False
    while index < len(lines):
        line, fenced = lines[index]
        if fenced:
            opening = FENCE.match(line.rstrip("\r\n"))
            if informed or not opening or opening[2].strip() != "info":
                break
            informed = True
            index += 1
            while index < len(lines) and lines[index][1]:
                closing = FENCE.match(lines[index][0].rstrip("\r\n"))
                index += 1
                if closes(closing, opening[1]):
                    break
        elif not titled and line.startswith("# "):
            titled = True
            index += 1
        elif not line.strip() or _HEAD_LINE.match(line):
            index += 1
        else:
            break
    return "".join(line for line, _ in lines[:index]), "".join(line for line, _ in lines[index:])


def lead_of(page: Page) -> str:
    return split_preamble(page.preamble)[1]


def with_lead(page: Page, lead: str) -> Page:
    return replace(page, preamble=split_preamble(page.preamble)[0] + lead)


def title_of(text: str) -> str:
    """The first ``#`` heading outside fences, or ''."""
    for line, fenced in fenced_lines(text):
        if not fenced and line.startswith("# "):
            return line[2:].strip()
    return ""


def info_of(text: str) -> dict[str, str]:
    """Key and value lines of the info block."""
    facts: dict[str, str] = {}
    inside = False
    for line, fenced in fenced_lines(text):
        opening = FENCE.match(line.rstrip("\r\n")) if fenced else None
        if not inside:
            inside = bool(opening and opening[2].strip() == "info")
            continue
        if opening or not fenced:
            break
        key, colon, value = line.partition(":")
        if colon and key.strip():
            facts[key.strip()] = value.strip()
    return facts


def without_code(line: str) -> str:
    """The line with code spans blanked, at the same length, so that offsets stay true."""
    return _CODE_SPAN.sub(lambda found: " " * len(found[0]), line)


def markers(text: str) -> list[str]:
    """Footnote labels in order of use; those in code and in definitions do not count."""
    labels: list[str] = []
    for line, fenced in fenced_lines(text):
        if not fenced and not DEFINITION.match(line):
            labels += MARKER.findall(without_code(line))
    return labels


def definitions(text: str) -> list[Definition]:
    """Footnote definitions in order, each with its indented continuation lines."""
    found: list[Definition] = []
    open_definition = False
    for line, fenced in fenced_lines(text):
        match = None if fenced else DEFINITION.match(line)
        if match:
            found.append(Definition(match[1], match[2]))
            open_definition = True
        elif open_definition and not fenced and line.startswith(("    ", "\t")) and line.strip():
            found[-1] = Definition(found[-1].label, found[-1].text + "\n    " + line.strip())
        else:
            open_definition = False
    return found


def cited_hashes(text: str) -> set[str]:
    """Conversations which the definitions of the page cite."""
    return {value for definition in definitions(text) for value in definition.hashes}


def prose(text: str) -> str:
    """The text people read: no fences, headings, definitions, template lines or markers."""
    kept = []
    for line, fenced in fenced_lines(text):
        if fenced or line.startswith("#") or DEFINITION.match(line) or _HEAD_LINE.match(line):
            continue
        kept.append(MARKER.sub("", line))
    return "".join(kept)


def word_count(text: str) -> int:
    return len(_WORD.findall(prose(text)))


def sentences(body: str) -> list[str]:
    """Sentences with their markers, each an exact piece of ``body``; a sentence never spans lines."""
    found: list[str] = []
    for line, fenced in fenced_lines(body):
        if fenced or not line.strip() or line.startswith("#") or DEFINITION.match(line) or _HEAD_LINE.match(line):
            continue
        start = 0
        for end in _SENTENCE_END.finditer(line):
            piece = line[start : end.end()].strip()
            start = end.end()
            if piece:
                found.append(piece)
        if rest := line[start:].strip():
            found.append(rest)
    return found


def bare(sentence: str) -> str:
    """A sentence without its markers and list bullet."""
    return re.sub(r"^(?:[-*+]|\d+[.)])\s+", "", MARKER.sub("", sentence).strip()).strip()
