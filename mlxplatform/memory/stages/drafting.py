"""Turning what a model drafts into sentences that may stand on a page.

The model writes short sentences and says which numbered note each rests on. Code cleans each one, checks
that the note really contains its words (and moves the citation to the note that does, if another fits
better), and drops what repeats, what a person asked to forget, and what talks about the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlxplatform.memory.synthesis import Notes, Synthesis
from mlxplatform.memory.wiki import wording
from mlxplatform.memory.wiki.edits import Sentence, Source
from mlxplatform.memory.wiki.page import sentences

#: Characters of one drafted text; decoding stops there, in mid-word if it must.
TEXT_LIMIT = 300
#: Most sentences of one draft.
MOST_SENTENCES = 8

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sentences": {
            "type": "array",
            "maxItems": MOST_SENTENCES,
            "items": {
                "type": "object",
                "properties": {"text": {"type": "string", "maxLength": TEXT_LIMIT}, "note": {"type": "integer"}},
                "required": ["text", "note"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["sentences"],
    "additionalProperties": False,
}
AGAIN = "Write about the subject only, in the words of the notes."


@dataclass(frozen=True)
class Drafted:
    """Sentences that passed, how well the notes carry them (0 to 1), and why others did not."""

    sentences: list[Sentence]
    confidence: float
    dropped: list[str]


@dataclass(frozen=True)
class Ground:
    """One numbered note of a question: what it says and what to cite for it."""

    text: str
    sources: list[Source]


def grounds(notes: Notes, refs: Sequence[str]) -> list[Ground]:
    return [Ground(notes.text(ref), [notes.source(ref)]) for ref in refs]


def _single(drafted: Any) -> Iterator[tuple[str, int]]:
    """(sentence, note) of an answer; small models put several sentences, or one many times, into one text."""
    for item in (drafted or {}).get("sentences", []):
        first_line = next((line for line in item["text"].splitlines() if line.strip()), "")
        found = sentences(first_line)
        if len(item["text"]) >= TEXT_LIMIT:
            found = found[:-1]  # Cut off by the limit: half a sentence may say the opposite of the whole.
        for sentence in found[:MOST_SENTENCES]:
            yield sentence, item["note"]


def checked(syn: Synthesis, drafted: Any, notes: Sequence[Ground], said: Sequence[str] = ()) -> Drafted:
    """What of an answer may be used. ``drafted`` is the answer's value or None; ``said`` stands already."""
    kept: list[Sentence] = []
    scores: list[float] = []
    dropped: list[str] = []
    for raw, note in _single(drafted):
        text = wording.sentence(raw)
        if not text or text.endswith(("?", "？")):
            dropped.append("not a statement about the subject")
            continue
        named = note - 1
        best = max(range(len(notes)), key=lambda n: (wording.grounding(text, notes[n].text), n == named))
        if 0 <= named < len(notes) and wording.grounding(text, notes[named].text) >= wording.GROUNDED:
            best = named
        score = wording.grounding(text, notes[best].text)
        if not wording.numbers(text) <= wording.numbers(notes[best].text):
            dropped.append("a number in it is not in its notes")
        elif score < wording.GROUNDED:
            dropped.append("its notes do not say that")
        elif wording.comes_back(text, syn.forgotten):
            dropped.append("a person asked to forget it")
        elif any(wording.likeness(text, other) >= wording.SAME for other in [*said, *(s.text for s in kept)]):
            dropped.append("said already")
        else:
            kept.append(Sentence(text, list(notes[best].sources)))
            scores.append(score)
    return Drafted(kept, sum(scores) / len(scores) if scores else 0.0, dropped)
