"""What a passage adds to its section: a few cited sentences, in chronological order, or nothing."""

from __future__ import annotations

from mlxplatform.memory.models import Fold
from mlxplatform.memory.stages import drafting, place
from mlxplatform.memory.stages.drafting import grounds
from mlxplatform.memory.synthesis import Ask, Notes, Synthesis, quoted
from mlxplatform.memory.wiki import wording
from mlxplatform.memory.wiki.edits import AddSentences
from mlxplatform.memory.wiki.page import LEAD, bare, lead_of, parse, prose, sentences

STAGE = "patch"
BATCH = 256
#: Characters of the present section shown to the model.
SECTION_SHOWN = 1200

TASK = (
    "You add what is new in note 1 to one section of a wiki page. Write one to three short sentences in the third person that "
    "the note states and the section does not say yet. Give note 1 for each. An empty list means nothing is new. Answer in JSON."
)


def run(syn: Synthesis) -> None:
    told = syn.report.stage(STAGE)
    settled = set(Fold.objects.filter(vault=syn.vault).values_list("chunk_ref", "stem"))
    placed: dict[str, tuple[str, str, str, bool]] = {}
    for subject, outcome in syn.decisions(place.STAGE).items():
        ref, _, stem = subject.partition(">")
        if outcome.get("anchor") and stem in syn.settled_pages and syn.scope.has_page(stem) and (ref, stem) not in settled:
            placed[subject] = (ref, stem, outcome["anchor"], outcome.get("new", False))
    told.read = len(placed)
    chunks = syn.scope.of_chunks(syn.vault.chunks.filter(ref__in=[ref for ref, *_ in placed.values()])).select_related(
        "conversation"
    )
    notes = Notes(chunks)
    time = {chunk.ref: (chunk.at, chunk.conversation_id, chunk.start) for chunk in notes.chunks.values()}
    undecided = sorted((s for s in syn.undecided(STAGE, placed) if placed[s][0] in time), key=lambda s: (time[placed[s][0]], s))
    if not undecided:
        told.because = "no passage has anything left to add to a page"
        return
    for start in range(0, len(undecided), BATCH):
        _patch(syn, undecided[start : start + BATCH], placed, notes)


def _patch(syn: Synthesis, batch: list[str], placed: dict[str, tuple[str, str, str, bool]], notes: Notes) -> None:
    told = syn.report.stage(STAGE)
    system = syn.system(STAGE, TASK)
    waiting = batch
    for attempt in (system, f"{system}\n\n{drafting.AGAIN}"):
        asks = []
        for subject in waiting:
            ref, stem, anchor, _ = placed[subject]
            section = wording.plain(prose(section_text(syn.pages.get(stem, ""), anchor)), SECTION_SHOWN) or "(empty)"
            title = "lead" if anchor == LEAD else anchor
            prompt = f"Page: {stem.replace('_', ' ')}\nSection “{title}” says now: {section}\n\nNote 1:\n"
            asks.append(
                Ask(STAGE, subject, attempt, prompt + quoted(notes.shown(ref, syn.vault.note_chars)), drafting.SCHEMA, 400)
            )
        again = []
        for subject, answer in zip(waiting, syn.ask(told, asks), strict=True):
            ref, stem, anchor, new = placed[subject]
            said = [bare(sentence) for sentence in sentences(syn.pages.get(stem, ""))]
            drafted = drafting.checked(syn, answer.value, grounds(notes, [ref]), said)
            if drafted.sentences:
                edit = AddSentences(anchor, drafted.sentences, new_section=new)
                label = notes.chunks[ref].label
                done = syn.plan(
                    told,
                    stem,
                    STAGE,
                    edit,
                    summary=f"Adds to “{stem.replace('_', ' ')}”: {label}",
                    confidence=drafted.confidence,
                    folds=[(ref, anchor)],
                )
                syn.decide(STAGE, subject, **({} if done else {"refused": "the edit did not pass the checks"}))
            elif answer.value is not None and (not answer.value["sentences"] or set(drafted.dropped) == {"said already"}):
                told.count("nothing new")
                syn.decide(STAGE, subject, nothing=True)
            elif attempt is system:
                again.append(subject)
            else:
                reason = "; ".join(sorted(set(drafted.dropped))) or answer.error or "no usable sentence"
                told.refuse(subject, reason)
                syn.decide(STAGE, subject, refused=reason[:200])
        told.count("drafts asked for again", len(again))
        waiting = again


def section_text(text: str, anchor: str) -> str:
    page = parse(text)
    if anchor == LEAD:
        return lead_of(page)
    section = page.section(anchor)
    return section.body if section else ""
