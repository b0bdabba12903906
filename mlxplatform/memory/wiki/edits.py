"""Edits as proposals: what should change on a page, in words that survive other changes to it.

An edit never carries the new text of a whole page (only a person's own text does). It names sentences with
their sources, a section, a sentence to retire; applying it to today's page is a pure function, so a
hand edit between plan and apply, or a rejected neighbour, costs nothing. An edit that no longer fits
raises :class:`DoesNotFit` with the reason a person reads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

import msgspec

from mlxplatform.memory.wiki import linking, wording
from mlxplatform.memory.wiki.normalize import normalize
from mlxplatform.memory.wiki.page import (
    HISTORY,
    LEAD,
    REFERENCES,
    TURNS,
    Page,
    Section,
    bare,
    cited_hashes,
    definitions,
    lead_of,
    markers,
    parse,
    render,
    sentences,
    with_lead,
    word_count,
)

#: How a line of the History section begins.
_UNTIL = "- Until "


class DoesNotFit(ValueError):
    """The edit cannot be applied to the page as it stands; the message says why."""


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a sentence comes from: turns ``start`` to ``end`` (counted from 1) of one conversation."""

    hash: str
    date: str
    origin: str
    start: int
    end: int
    label: str
    chunk: str = ""

    def definition(self) -> str:
        turns = f"turn {self.start}" if self.start == self.end else f"turns {self.start}–{self.end}"
        return f"`conv:{self.hash}` ({self.date}, {self.origin}) {turns}: {self.label}"


class Sentence(msgspec.Struct, frozen=True):
    text: str
    sources: list[Source]


class Draft(msgspec.Struct, frozen=True):
    """A section to be: its title and cited sentences."""

    title: str
    sentences: list[Sentence]


class CreatePage(msgspec.Struct, frozen=True, tag="create"):
    title: str
    kind: str
    aliases: list[str]
    lead: list[Sentence]
    sections: list[Draft]


class AddSentences(msgspec.Struct, frozen=True, tag="add"):
    """Cited sentences for one section; ``new_section`` allows it to be made."""

    anchor: str
    sentences: list[Sentence]
    new_section: bool = False


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """A cited sentence that a later one contradicts. ``evolution`` keeps it in History, ``error`` drops it."""

    text: str
    superseded_by: str
    kind: str
    date: str


class Tighten(msgspec.Struct, frozen=True, tag="tighten"):
    """One sentence in the place of several which say the same; it takes over all their markers."""

    anchor: str
    replaces: list[str]
    text: str


class Link(msgspec.Struct, frozen=True, tag="link"):
    mentions: list[tuple[str, str]]
    see_also: list[str]


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Take out sentences that rest on these conversations only, and these sentences wherever they stand."""

    hashes: list[str]
    texts: list[str]


class ReplacePage(msgspec.Struct, frozen=True, tag="replace"):
    """A person's own text for the page, or the page's removal (None). Allowed only over ``base``."""

    text: str | None
    base: str


Edit = CreatePage | AddSentences | Retire | Tighten | Link | Forget | ReplacePage


def digest(text: str | None) -> str:
    """Short name of a page's exact content; '' for no page."""
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()[:16]


def to_json(edit: Edit) -> dict[str, object]:
    return msgspec.to_builtins(edit)


def from_json(value: dict[str, object]) -> Edit:
    return msgspec.convert(value, Edit)


def sources_of(edit: Edit) -> list[Source]:
    """Every source an edit cites, once, in order."""
    if isinstance(edit, CreatePage):
        cited = [*edit.lead, *(sentence for section in edit.sections for sentence in section.sentences)]
    elif isinstance(edit, AddSentences):
        cited = list(edit.sentences)
    else:
        cited = []
    found: dict[str, Source] = {}
    for sentence in cited:
        for source in sentence.sources:
            found.setdefault(source.definition(), source)
    return list(found.values())


def released_by(edit: Edit, before: str | None, after: str | None) -> set[str]:
    """Conversations this edit is entitled to stop citing: an error's correction, or what a person ordered."""
    if isinstance(edit, ReplacePage | Forget) or (isinstance(edit, Retire) and edit.kind == "error"):
        return cited_hashes(before or "") - cited_hashes(after or "")
    return set()


def corrected_words(edit: Edit, before: str | None) -> int:
    """Words of the sentences that a correction takes out; an error is rarely worth keeping for its length."""
    if not isinstance(edit, Retire) or edit.kind != "error" or before is None:
        return 0
    key = plain_sentence(edit.text)
    return sum(word_count(sentence) for sentence in sentences(before) if plain_sentence(sentence) == key)


def apply(text: str | None, stem: str, edit: Edit, known_stems: Collection[str] = ()) -> str | None:
    """The page after the edit; None when the page is to go.

    Raises:
        DoesNotFit: the page is missing, already there, or no longer says what the edit refers to.
    """
    if isinstance(edit, ReplacePage):
        if digest(text) != edit.base:
            raise DoesNotFit("the page was changed since this text was written for it")
        return edit.text
    if isinstance(edit, CreatePage):
        if text is not None:
            raise DoesNotFit("a page of this name exists already")
        return normalize(_created(edit), stem, known_stems).text
    if text is None:
        raise DoesNotFit("the page no longer exists")
    changed = _applied(text, edit)
    return text if changed == text else normalize(changed, stem, known_stems).text


def _applied(text: str, edit: Edit) -> str:
    if isinstance(edit, AddSentences):
        return _added(text, edit)
    if isinstance(edit, Retire):
        return _retired(text, edit)
    if isinstance(edit, Tighten):
        return _tightened(text, edit)
    if isinstance(edit, Link):
        for surface, stem in edit.mentions:
            text = linking.link_mention(text, linking.Mention(surface, stem))
        return linking.with_see_also(text, edit.see_also)
    if isinstance(edit, Forget):
        return _forgotten(text, edit)
    raise DoesNotFit("this edit needs a page of its own")


class _Notebook:
    """Footnote numbers of one page while sentences are being added to it."""

    def __init__(self, text: str):
        self.numbers: dict[str, str] = {}
        self.new: list[str] = []
        taken = [0]
        for definition in definitions(text):
            if definition.label.isdigit():
                taken.append(int(definition.label))
            for value in definition.hashes:
                turns = TURNS.search(definition.text)
                span = f"{turns[1]}-{turns[2] or turns[1]}" if turns else "all"
                self.numbers.setdefault(f"{value}:{span}", definition.label)
        self.next = max(taken) + 1

    def marker(self, source: Source) -> str:
        key = f"{source.hash}:{source.start}-{source.end}"
        if key not in self.numbers:
            self.numbers[key] = str(self.next)
            self.new.append(f"[^{self.next}]: {source.definition()}")
            self.next += 1
        return f"[^{self.numbers[key]}]"

    def write(self, sentence: Sentence) -> str:
        return sentence.text + "".join(dict.fromkeys(self.marker(source) for source in sentence.sources))


def _with_definitions(text: str, lines: list[str]) -> str:
    if not lines:
        return text
    page = parse(text)
    section = page.section(REFERENCES)
    if section is None:
        return text.rstrip("\n") + f"\n\n## {REFERENCES}\n\n" + "\n".join(lines) + "\n"
    return render(page.with_section(REFERENCES, section.body.rstrip("\n") + "\n" + "\n".join(lines) + "\n"))


def _created(edit: CreatePage) -> str:
    notebook = _Notebook("")
    info = {"kind": edit.kind, **({"aliases": ", ".join(edit.aliases)} if edit.aliases else {})}
    block = "".join(f"{key}: {value}\n" for key, value in sorted(info.items()))
    parts = [f"# {edit.title}\n", f"```info\n{block}```\n", " ".join(notebook.write(s) for s in edit.lead) + "\n"]
    parts += [f"## {draft.title}\n\n" + " ".join(notebook.write(s) for s in draft.sentences) + "\n" for draft in edit.sections]
    return _with_definitions("\n".join(parts), notebook.new)


def _appended(body: str, written: str) -> str:
    """Prose put at the end of the section's last paragraph, or as a paragraph after a list or code."""
    kept = body.rstrip("\n")
    last = kept.rsplit("\n", 1)[-1]
    flows = bool(last.strip()) and not re.match(r"[ \t]|[-*+>|#]|```|~~~|\[\^|\d+[.)]", last)
    if not kept.strip():
        return f"\n{written}\n\n"
    return f"{kept} {written}\n\n" if flows else f"{kept}\n\n{written}\n\n"


def _added(text: str, edit: AddSentences) -> str:
    page = parse(text)
    section = None if edit.anchor == LEAD else page.section(edit.anchor)
    target = lead_of(page) if edit.anchor == LEAD else section.body if section else ""
    if edit.anchor != LEAD and section is None and not edit.new_section:
        raise DoesNotFit(f"the section {edit.anchor!r} no longer exists")
    said = [bare(sentence) for sentence in sentences(target)]
    fresh = [s for s in edit.sentences if all(wording.likeness(s.text, other) < 1.0 for other in said)]
    if not fresh:
        return text
    notebook = _Notebook(text)
    written = " ".join(notebook.write(sentence) for sentence in fresh)
    if edit.anchor == LEAD:
        page = with_lead(page, _appended(target, written))
    elif section is None:
        page = Page(page.preamble, (*page.sections, Section(f"## {edit.anchor}\n", f"\n{written}\n\n")))
    else:
        page = page.with_section(edit.anchor, _appended(target, written))
    return _with_definitions(render(page), notebook.new)


def _find(text: str, wanted: str) -> str:
    """The exact sentence of the page that says ``wanted``, compared without markers and links."""
    key = plain_sentence(wanted)
    for sentence in sentences(text):
        if plain_sentence(sentence) == key:
            return sentence
    raise DoesNotFit("the page no longer has the sentence: " + wording.plain(wanted, wording.LABEL_LIMIT))


def plain_sentence(sentence: str) -> str:
    """A sentence without markers and link brackets, for comparison across the link stage."""
    return wording.plain(bare(sentence), 2 * wording.SENTENCE_LIMIT).casefold()


def _cut(text: str, sentence: str) -> str:
    """Take one sentence out, together with the space or the emptied line that it leaves."""
    start = text.index(sentence)
    before, after = text[:start], text[start + len(sentence) :]
    if before.endswith((" ", "\t")):
        return before.rstrip(" \t") + after
    line_start = before.rsplit("\n", 1)[-1]
    if not line_start.strip(" -*+0123456789.)") and (not after or after.startswith("\n")):
        return before[: len(before) - len(line_start)] + after.removeprefix("\n")
    return before + after.lstrip(" \t")


def _retired(text: str, edit: Retire) -> str:
    new = _find(text, edit.superseded_by)
    first = _find(text, edit.text)
    # A lead repeats what a section says: the statement goes wherever it stands.
    key = plain_sentence(first)
    olds = [sentence for sentence in sentences(text) if plain_sentence(sentence) == key and markers(sentence)]
    if not olds:
        raise DoesNotFit("the older sentence is a person's own and is left as it is")
    old = olds[0]
    cited = [label for sentence in olds for label in markers(sentence)]
    filled = {section.heading for section in parse(text).sections if section.body.strip()}
    for sentence in olds:
        text = _cut(text, sentence)
    page = parse(text)
    # A section that this emptied goes with what it said; one that a person left empty stays.
    text = render(Page(page.preamble, tuple(s for s in page.sections if s.body.strip() or s.heading not in filled)))
    if edit.kind == "error":
        return text
    page = parse(text)
    section = page.section(HISTORY)
    cites = "".join(dict.fromkeys(f"[^{label}]" for label in [*cited, *markers(new)]))
    line = f"{_UNTIL}{edit.date}: {bare(old)}{cites}"
    if section is None:
        return render(Page(page.preamble, (*page.sections, Section(f"## {HISTORY}\n", f"\n{line}\n\n"))))
    return render(page.with_section(HISTORY, section.body.rstrip("\n") + f"\n{line}\n\n"))


def _tightened(text: str, edit: Tighten) -> str:
    found = [_find(text, wanted) for wanted in edit.replaces]
    cites = "".join(dict.fromkeys(f"[^{label}]" for sentence in found for label in markers(sentence)))
    first, rest = found[0], found[1:]
    text = text.replace(first, edit.text + cites, 1)
    for sentence in rest:
        text = _cut(text, sentence)
    return text


def _forgotten(text: str, edit: Forget) -> str:
    gone = set(edit.hashes)
    cites = {definition.label: set(definition.hashes) for definition in definitions(text)}
    forgotten = {label for label, hashes in cites.items() if hashes and hashes <= gone}
    keys = {plain_sentence(sentence) for sentence in edit.texts}
    for sentence in sentences(text):
        used = [label for label in markers(sentence) if label in cites]
        # In History the first marker is the statement's own source, the others only tell what replaced it.
        own = used[:1] if sentence.startswith(_UNTIL) else used
        if plain_sentence(sentence) in keys or (own and set(own) <= forgotten):
            text = _cut(text, sentence)
        elif forgotten & set(used):
            kept = sentence
            for label in forgotten & set(used):
                kept = kept.replace(f"[^{label}]", "")
            text = text.replace(sentence, kept, 1)
    page = parse(text)
    kept_sections = tuple(section for section in page.sections if section.body.strip())
    return render(Page(page.preamble, kept_sections))
