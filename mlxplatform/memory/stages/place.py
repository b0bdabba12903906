"""Where a passage belongs on a page that exists: one choice among its sections, a new one, or nowhere.

The choice is kept, "nowhere" included, so a passage is asked about once per page.
"""

from __future__ import annotations

from typing import Any

from mlxplatform.memory.models import Chunk, ChunkEntity, Fold
from mlxplatform.memory.stages.extract import know_pages
from mlxplatform.memory.synthesis import Ask, Notes, Synthesis, quoted
from mlxplatform.memory.wiki import wording
from mlxplatform.memory.wiki.page import LEAD, bare, lead_of, parse, sentences

STAGE = "place"
NOWHERE, NEW, IN_LEAD = "(nowhere)", "(new section)", "(lead)"
#: Sections offered; a page with more is overdue for a split.
MOST_OFFERED = 20
#: Questions in one batch.
BATCH = 256

TASK = (
    "You decide to which section of a wiki page a note belongs. Answer with one of the given sections; with “(new section)” and "
    "a title of two to five words when none fits, or with “(nowhere)” when the note says nothing about the subject. "
    "Answer in JSON."
)


def schema(offered: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"section": {"type": "string", "enum": offered}, "title": {"type": "string", "maxLength": 50}},
        "required": ["section", "title"],
        "additionalProperties": False,
    }


def subject_of(ref: str, stem: str) -> str:
    return f"{ref}>{stem}"


def run(syn: Synthesis) -> None:
    told = syn.report.stage(STAGE)
    know_pages(syn)
    pairs = _pairs(syn)
    told.read = len(pairs)
    by_subject = {subject_of(ref, stem): (ref, stem) for ref, stem in pairs}
    undecided = syn.undecided(STAGE, by_subject)
    if not undecided:
        told.because = "every passage about an existing page has its place"
        return
    notes = Notes(
        Chunk.objects.filter(vault=syn.vault, ref__in=[by_subject[s][0] for s in undecided]).select_related("conversation")
    )
    system = syn.system(STAGE, TASK)
    for start in range(0, len(undecided), BATCH):
        batch = undecided[start : start + BATCH]
        asks = []
        for subject in batch:
            ref, stem = by_subject[subject]
            offered = offers(syn.pages[stem])
            page = f"Page: {stem.replace('_', ' ')}\nSections:\n{_shown(syn.pages[stem], offered)}"
            prompt = f"{page}\n\n{quoted(notes.shown(ref, syn.vault.note_chars))}"
            asks.append(Ask(STAGE, subject, system, prompt, schema([*offered, NEW, NOWHERE]), max_tokens=80))
        for subject, answer in zip(batch, syn.ask(told, asks), strict=True):
            anchor = _anchor(answer.value, notes.chunks[by_subject[subject][0]])
            told.count("placed" if anchor else "nowhere")
            syn.decide(
                STAGE, subject, anchor=anchor, new=bool(answer.value and answer.value["section"] == NEW and anchor != LEAD)
            )


def _pairs(syn: Synthesis) -> list[tuple[str, str]]:
    """(passage, page) in order of time, for pages that stand in the vault and passages not yet dealt with."""
    settled = set(Fold.objects.filter(vault=syn.vault).values_list("chunk_ref", "stem"))
    mentions = ChunkEntity.objects.filter(chunk__in=syn.scope.of_chunks(syn.vault.chunks.all())).exclude(entity__stem="")
    found = mentions.order_by("chunk__at", "chunk__conversation_id", "chunk__start").values_list("chunk__ref", "entity__stem")
    return [
        (ref, stem)
        for ref, stem in dict.fromkeys(found)
        if stem and stem in syn.settled_pages and (ref, stem) not in settled and syn.scope.has_page(stem)
    ]


def offers(text: str) -> list[str]:
    return [IN_LEAD, *(section.title for section in parse(text).body_sections if section.title)][:MOST_OFFERED]


def _shown(text: str, offered: list[str]) -> str:
    page = parse(text)
    lines = []
    for title in offered:
        section = page.section(title)
        said = sentences(lead_of(page) if title == IN_LEAD else section.body if section else "")
        lines.append(f"- {title}: {wording.plain(bare(said[0]), 120) if said else ''}")
    return "\n".join(lines)


def _anchor(value: Any, chunk: Chunk) -> str:
    if not value or value["section"] == NOWHERE:
        return ""
    if value["section"] == IN_LEAD:
        return LEAD
    if value["section"] == NEW:
        # A title that is none must not cost the note its place.
        titles = (value["title"], chunk.label, chunk.conversation.title)
        return next((title for text in titles if (title := wording.heading(text))), LEAD)
    return str(value["section"])
