"""Which older statements a newer one has overtaken.

Only sentences the machine wrote itself, that are older and speak of the same thing, are put to the model. A
development keeps the old statement in History with both sources; only a plain error is dropped. Doubt
counts as development. A page without contradictions stays byte-identical.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mlxplatform.memory.models import Change, Chunk
from mlxplatform.memory.report import StageReport
from mlxplatform.memory.synthesis import Ask, Notes, Synthesis, quoted
from mlxplatform.memory.wiki import edits, wording
from mlxplatform.memory.wiki.edits import AddSentences, CreatePage, Retire, plain_sentence
from mlxplatform.memory.wiki.page import HISTORY, bare, definitions, markers, parse, render, sentences

STAGE = "reconcile"
#: An older sentence is put to the model when it holds this share of the newer one's words, or the reverse. The
#: words of the page's title do not count: every sentence of a page has them.
SAME_SUBJECT = 0.4
#: Older sentences compared with one newer one.
MOST_CANDIDATES = 6

TASK = (
    "You compare one new statement with older ones about the same subject. For each older statement say: “holds” when both can "
    "be true now, “evolution” when it was true and the new one replaces it, “error” when it was wrong from the start. "
    "Answer in JSON."
)
VERDICTS = ("holds", "evolution", "error")
#: A plain error is believed only when the passage itself speaks of one; small models see errors everywhere.
_CORRECTION = re.compile(
    r"\b(?:wrong|mistake|mistaken|incorrect|correction|corrected|actually|misremember\w*|typo|never was|was not|wasn't)\b",
    re.IGNORECASE,
)
_DATE = re.compile(r"\((\d{4}-\d{2}-\d{2})")


def schema(count: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "verdicts": {
                "type": "array",
                "minItems": count,
                "maxItems": count,
                "items": {"type": "string", "enum": list(VERDICTS)},
            }
        },
        "required": ["verdicts"],
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class _Case:
    change: Change
    new: str
    date: str
    older: list[str]


def run(syn: Synthesis) -> None:
    told = syn.report.stage(STAGE)
    states = ("planned", "approved", "accepted") if syn.vault.policy == "auto" else ("accepted",)
    pending = [
        change
        for change in syn.vault.changes.filter(kind="patch", reconciled=False, state__in=states)
        if change.stem in syn.pages and syn.scope.has_page(change.stem)
    ]
    told.read = len(pending)
    if not pending:
        told.because = "no page has been added to"
        return
    written = machine_sentences(syn)
    cases = [case for change in pending for case in _cases(syn, change, written.get(change.stem, set()))]
    corrects = _corrections(syn, pending)
    system = syn.system(STAGE, TASK)
    asks = []
    for case in cases:
        lines = "\n".join(f"{n}. {text}" for n, text in enumerate(case.older, start=1))
        prompt = quoted(f"New: {case.new}\n\nOlder:\n{lines}")
        asks.append(Ask(STAGE, case.change.stem, system, prompt, schema(len(case.older)), max_tokens=100))
    for case, answer in zip(cases, syn.ask(told, asks), strict=True):
        syn.check()
        if answer.value is None:
            told.refuse(case.change.stem, f"left unresolved: {answer.error}")
            continue
        for old, verdict in zip(case.older, answer.value["verdicts"], strict=True):
            if verdict == "error" and case.change.pk not in corrects:
                verdict = "evolution"
            if verdict != "holds":
                _retire(syn, told, case, old, verdict)
    Change.objects.filter(pk__in=[change.pk for change in pending]).update(reconciled=True)


def machine_sentences(syn: Synthesis) -> dict[str, set[str]]:
    """By page: the sentences this platform wrote, in comparable form. Everything else is a person's own."""
    written: dict[str, set[str]] = {}
    for change in syn.vault.changes.filter(
        kind__in=("create", "patch", "tighten"), state__in=("planned", "approved", "accepted")
    ):
        edit = edits.from_json(change.edit)
        texts: list[str] = []
        if isinstance(edit, CreatePage):
            texts = [s.text for s in edit.lead] + [s.text for section in edit.sections for s in section.sentences]
        elif isinstance(edit, AddSentences):
            texts = [s.text for s in edit.sentences]
        elif isinstance(edit, edits.Tighten):
            texts = [edit.text]
        written.setdefault(change.stem, set()).update(plain_sentence(text) for text in texts)
    return written


def _cases(syn: Synthesis, change: Change, written: set[str]) -> list[_Case]:
    edit = edits.from_json(change.edit)
    if not isinstance(edit, AddSentences):
        return []
    text = syn.pages[change.stem]
    page = parse(text)
    present = render(type(page)(page.preamble, tuple(s for s in page.sections if s.title.casefold() != HISTORY.casefold())))
    dates = {d.label: found[1] for d in definitions(text) if (found := _DATE.search(d.text))}
    cases = []
    own = {plain_sentence(sentence.text) for sentence in edit.sentences}
    title = wording.content(change.stem.replace("_", " "))
    for sentence in edit.sentences:
        new_date = max(source.date for source in sentence.sources)
        older = []
        for other in sentences(present):
            key = plain_sentence(other)
            when = max((dates.get(label, "") for label in markers(other)), default="")
            if key in own or key not in written or not when or when >= new_date:
                continue
            shared = _shared(wording.content(sentence.text) - title, wording.content(bare(other)) - title)
            if shared >= SAME_SUBJECT:
                older.append((shared, bare(other)))
        if older:
            ranked = list(dict.fromkeys(text for _, text in sorted(older, key=lambda pair: -pair[0])))[:MOST_CANDIDATES]
            cases.append(_Case(change, sentence.text, new_date, ranked))
    return cases


def _shared(one: frozenset[str], other: frozenset[str]) -> float:
    """The larger share of the words that either has in common with the other."""
    return len(one & other) / min(len(one), len(other)) if one and other else 0.0


def _corrections(syn: Synthesis, pending: list[Change]) -> set[str]:
    """Changes whose passages speak of an error."""
    refs = {change.pk: {source.chunk for source in edits.sources_of(edits.from_json(change.edit))} for change in pending}
    wanted = set().union(*refs.values())
    notes = Notes(Chunk.objects.filter(vault=syn.vault, ref__in=wanted).select_related("conversation"))
    return {pk for pk, own in refs.items() if any(ref in notes.chunks and _CORRECTION.search(notes.text(ref)) for ref in own)}


def _retire(syn: Synthesis, told: StageReport, case: _Case, old: str, verdict: str) -> None:
    edit = Retire(old, case.new, verdict, case.date)
    summary = f"{'Corrects' if verdict == 'error' else 'Moves to History'}: {old}"
    if syn.plan(told, case.change.stem, STAGE, edit, summary=summary):
        told.count(verdict)
