"""New pages for notable subjects: an outline, a draft for each section, a lead. Oldest subject first.

Code assigns footnotes and frame; the model only writes sentences and says on which note each rests. An
existing file is never overwritten, and a subject whose page a person rejected or forgot stays without.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Min

from mlxplatform.memory.models import Change, Chunk, Entity, Tombstone
from mlxplatform.memory.report import StageReport
from mlxplatform.memory.stages import drafting
from mlxplatform.memory.stages.drafting import Drafted, Ground, grounds
from mlxplatform.memory.synthesis import Ask, Notes, Synthesis, quoted
from mlxplatform.memory.wiki import wording
from mlxplatform.memory.wiki.edits import CreatePage, Draft
from mlxplatform.memory.wiki.page import LEAD

STAGE = "create"
#: New pages in one run: a person has to read them.
MOST_PAGES = 20
#: Passages a new page is written from; later ones are patched in.
MOST_NOTES = 12
MOST_SECTIONS = 6
#: Sentences that make a lead of their own rather than a section under one.
LEAD_ONLY = 5
KINDS = ("thing", "person", "domain", "project", "standard")
#: Titles of sections that belong to the apparatus or say nothing.
NO_SECTION = frozenset({"references", "see also", "notes", "history", "lead", "introduction", "summary", "conclusion"})

OUTLINE_TASK = (
    "You plan a short wiki page. Below are numbered notes about its subject. Give the kind of the subject and two to six section "
    "titles of one to four words, each with the numbers of the notes that belong to it. Answer in JSON."
)
DRAFT_TASK = (
    "You write one section of a wiki page from numbered notes. Write one to five short sentences in the third person. State only "
    "what the notes say and give for each sentence the number of its note. Answer in JSON."
)
LEAD_TASK = (
    "You write the lead of a wiki page: one or two short sentences that say what the subject is, from the numbered sentences "
    "below. Give for each the number of the sentence it rests on. Answer in JSON."
)
OUTLINE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": list(KINDS)},
        "sections": {
            "type": "array",
            "maxItems": MOST_SECTIONS,
            "items": {
                "type": "object",
                "properties": {
                    "title": {"type": "string", "maxLength": 50},
                    "notes": {"type": "array", "maxItems": MOST_NOTES, "items": {"type": "integer"}},
                },
                "required": ["title", "notes"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["kind", "sections"],
    "additionalProperties": False,
}


@dataclass
class _Plan:
    entity: Entity
    stem: str
    refs: list[str]
    kind: str = "thing"
    sections: list[tuple[str, list[str]]] = field(default_factory=list)
    drafts: list[tuple[str, Drafted, list[str]]] = field(default_factory=list)
    lead: Drafted | None = None


def run(syn: Synthesis) -> None:
    told = syn.report.stage(STAGE)
    plans = _wanted(syn, told)
    told.read = len(plans)
    if not plans:
        told.because = told.because or "no subject waits for a page"
        return
    notes = Notes(
        Chunk.objects.filter(vault=syn.vault, ref__in=[r for p in plans for r in p.refs]).select_related("conversation")
    )
    _outline(syn, told, plans, notes)
    _draft(syn, told, plans, notes)
    _lead(syn, told, plans)
    for plan in plans:
        syn.check()
        _propose(syn, told, plan)


def _wanted(syn: Synthesis, told: StageReport) -> list[_Plan]:
    forgotten = set(Tombstone.objects.filter(vault=syn.vault, kind="page").values_list("key", flat=True))
    decided = set(Change.objects.filter(vault=syn.vault, kind=STAGE).exclude(state="withdrawn").values_list("stem", flat=True))
    entities = syn.vault.entities.filter(stem="", notable=True).annotate(first=Min("mentions__chunk__at")).order_by("first", "pk")
    plans: list[_Plan] = []
    for entity in entities:
        stem = wording.stem_of(entity.name)
        if not stem or entity.key in forgotten or stem in decided or not syn.scope.has_page(stem):
            continue
        if any(stem.casefold() == known.casefold() for known in syn.pages):
            continue
        chunks = syn.scope.of_chunks(Chunk.objects.filter(mentions__entity=entity)).order_by("at", "conversation_id", "start")
        refs = list(dict.fromkeys(chunks.values_list("ref", flat=True)))[:MOST_NOTES]
        if refs:
            plans.append(_Plan(entity, stem, refs))
    subjects = {f"{plan.stem}<{refs_digest(plan.refs)}": plan for plan in plans}
    fresh = [subjects[subject] for subject in syn.undecided(STAGE, subjects)]
    if len(fresh) > MOST_PAGES:
        told.because = f"{len(fresh) - MOST_PAGES} more subjects wait for the next run"
    elif plans and not fresh:
        told.because = f"{len(plans)} subjects wait for better drafts; nothing about them is new"
    return fresh[:MOST_PAGES]


def refs_digest(refs: list[str]) -> str:
    """Names a set of passages: a refused subject is tried again when it has other ones."""
    return hashlib.sha256("\0".join(refs).encode()).hexdigest()[:12]


def _numbered(texts: list[str]) -> str:
    return "\n\n".join(f"Note {number}:\n{text}" for number, text in enumerate(texts, start=1))


def _share(syn: Synthesis, count: int) -> int:
    return max(200, syn.vault.note_chars // max(count, 1))


def _outline(syn: Synthesis, told: StageReport, plans: list[_Plan], notes: Notes) -> None:
    several = [plan for plan in plans if len(plan.refs) > 1]
    system = syn.system("outline", OUTLINE_TASK)
    asks = []
    for plan in several:
        shown = [f"{notes.chunks[ref].label}\n{notes.shown(ref, _share(syn, len(plan.refs)))}" for ref in plan.refs]
        asks.append(
            Ask("outline", plan.stem, system, f"Subject: {plan.entity.name}\n\n{quoted(_numbered(shown))}", OUTLINE_SCHEMA, 400)
        )
    answers = dict(zip((plan.stem for plan in several), syn.ask(told, asks), strict=True))
    for plan in plans:
        value = answers[plan.stem].value if plan.stem in answers else None
        plan.kind = value["kind"] if value else "thing"
        plan.sections = _sections(value["sections"] if value else [], plan, notes)


def _sections(outlined: list[dict[str, Any]], plan: _Plan, notes: Notes) -> list[tuple[str, list[str]]]:
    """The outline with real notes: unknown numbers dropped, forgotten notes put where their words fit best."""
    sections: dict[str, list[str]] = {}
    for item in outlined[:MOST_SECTIONS]:
        title = wording.heading(item["title"])
        refs = [plan.refs[n - 1] for n in dict.fromkeys(item["notes"]) if 1 <= n <= len(plan.refs)]
        if title and refs and title.casefold() not in {*NO_SECTION, plan.entity.name.casefold()}:
            sections.setdefault(title, []).extend(refs)
    placed = {ref for refs in sections.values() for ref in refs}
    for ref in plan.refs:
        if ref not in placed:
            if sections:
                best = max(sections, key=lambda t: max(wording.likeness(notes.text(ref), notes.text(o)) for o in sections[t]))
            else:
                best = _own_title(plan, notes.chunks[ref])
            sections.setdefault(best, []).append(ref)
    return [(title, list(dict.fromkeys(refs))) for title, refs in sections.items()][:MOST_SECTIONS]


def _own_title(plan: _Plan, chunk: Chunk) -> str:
    """A section's title without the model: the passage's label, its conversation's title, or a neutral word."""
    for text in (chunk.label, chunk.conversation.title):
        found = wording.heading(text)
        if found and found.casefold() not in {*NO_SECTION, plan.entity.name.casefold()}:
            return found
    return "Overview"


def _draft(syn: Synthesis, told: StageReport, plans: list[_Plan], notes: Notes) -> None:
    waiting = [(plan, title, refs) for plan in plans for title, refs in plan.sections]
    system = syn.system("draft", DRAFT_TASK)
    for attempt in (system, f"{system}\n\n{drafting.AGAIN}"):
        asks = []
        for plan, title, refs in waiting:
            shown = quoted(_numbered([notes.shown(ref, _share(syn, len(refs))) for ref in refs]))
            asks.append(
                Ask("draft", plan.stem, attempt, f"Page: {plan.entity.name}\nSection: {title}\n\n{shown}", drafting.SCHEMA, 600)
            )
        again = []
        for (plan, title, refs), answer in zip(waiting, syn.ask(told, asks), strict=True):
            said = [sentence.text for _, drafted, _ in plan.drafts for sentence in drafted.sentences]
            drafted = drafting.checked(syn, answer.value, grounds(notes, refs), said)
            if drafted.sentences:
                plan.drafts.append((title, drafted, refs))
            else:
                again.append((plan, title, refs))
        if attempt is system and again:
            told.count("drafts asked for again", len(again))
        waiting = again
    for plan, title, _ in waiting:
        told.refuse(plan.stem, f"section “{title}”: no usable sentence after two drafts")
    for plan in plans:
        order = [title for title, _ in plan.sections]
        plan.drafts.sort(key=lambda draft: order.index(draft[0]))


def _lead(syn: Synthesis, told: StageReport, plans: list[_Plan]) -> None:
    ready = [plan for plan in plans if plan.drafts]
    system = syn.system("lead", LEAD_TASK)
    asks = []
    for plan in ready:
        lines = [f"{n}. {sentence.text}" for n, sentence in enumerate(_all(plan), start=1)]
        asks.append(
            Ask("lead", plan.stem, system, f"Subject: {plan.entity.name}\n\n{quoted(chr(10).join(lines))}", drafting.SCHEMA, 300)
        )
    for plan, answer in zip(ready, syn.ask(told, asks), strict=True):
        rests_on = [Ground(f"{plan.entity.name} {sentence.text}", sentence.sources) for sentence in _all(plan)]
        plan.lead = drafting.checked(syn, answer.value, rests_on)
        if not plan.lead.sentences:
            told.count("leads taken from the first section")
            plan.lead = Drafted(_all(plan)[:1], plan.drafts[0][1].confidence, [])


def _all(plan: _Plan) -> list[Any]:
    return [sentence for _, drafted, _ in plan.drafts for sentence in drafted.sentences]


def _propose(syn: Synthesis, told: StageReport, plan: _Plan) -> None:
    subject = f"{plan.stem}<{refs_digest(plan.refs)}"
    if not plan.drafts or plan.lead is None:
        syn.decide(STAGE, subject, refused="no usable draft")
        return
    aliases = sorted(
        {m for m in plan.entity.mentions.values_list("surface", flat=True) if m.casefold() != plan.entity.name.casefold()}
    )
    title = plan.stem.replace("_", " ")
    sections = [Draft(title, drafted.sentences) for title, drafted, _ in plan.drafts]
    lead = plan.lead.sentences[:2]
    if len(sections) == 1 and len(sections[0].sentences) <= LEAD_ONLY:
        # A lead and one section would say everything twice.
        lead, sections = sections[0].sentences, []
    edit = CreatePage(title, plan.kind, aliases[:5], lead, sections)
    cited = {source.chunk for sentence in _all(plan) for source in sentence.sources}
    folds = {ref: title if sections else LEAD for title, _, refs in plan.drafts for ref in refs if ref in cited}
    confidence = sum(drafted.confidence for _, drafted, _ in plan.drafts) / len(plan.drafts)
    parts = f"{len(sections)} sections" if sections else "a lead"
    summary = f"New page “{title}” with {parts} from {len(cited)} passages"
    if not syn.plan(told, plan.stem, STAGE, edit, summary=summary, confidence=confidence, folds=list(folds.items())):
        syn.decide(STAGE, subject, refused="the page did not pass the checks")
