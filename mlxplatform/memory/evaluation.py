"""Frozen questions about a wiki: can it answer what it should, and only that? No model is asked.

A question is answered when one of the sections found for it holds one of the expected texts. A negative one
is failed when its text stands anywhere: what must not be known must not be written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlxplatform.memory.models import Question
from mlxplatform.memory.wiki import wording
from mlxplatform.memory.wiki.page import lead_of, parse, prose

#: Sections looked at for one question, as a reader would.
LOOKED_AT = 5


@dataclass(frozen=True)
class Scored:
    """Share of questions passed (1.0 without any), and the texts of those failed."""

    score: float
    failed: list[str]


def score(pages: Mapping[str, str], questions: Sequence[Question]) -> Scored:
    if not questions:
        return Scored(1.0, [])
    sections = []
    for stem, text in sorted(pages.items()):
        page = parse(text)
        title = stem.replace("_", " ")
        for heading, body in [("", lead_of(page)), *((section.title, section.body) for section in page.sections)]:
            plain = prose(body)
            sections.append((plain.casefold(), wording.content(f"{title} {heading} {plain}")))
    spread = Counter(word for _, words in sections for word in words)
    failed = [question.text for question in questions if not _passes(question, sections, spread)]
    return Scored(1.0 - len(failed) / len(questions), failed)


def _passes(question: Question, sections: Sequence[tuple[str, frozenset[str]]], spread: Counter[str]) -> bool:
    expected = [str(text).casefold() for text in question.expected if str(text).strip()]
    if question.negative:
        return not any(text in plain for text in expected for plain, _ in sections)
    asked = wording.content(question.text)
    ranked = sorted(sections, key=lambda s: -sum(math.log(1 + len(sections) / spread[w]) for w in asked & s[1]))[:LOOKED_AT]
    return any(text in plain for text in expected for plain, _ in ranked)
