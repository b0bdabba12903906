"""Sentences of one section that say the same become one, which carries the markers of all. No model."""

from __future__ import annotations

from mlxplatform.memory.stages.reconcile import machine_sentences
from mlxplatform.memory.synthesis import Synthesis
from mlxplatform.memory.wiki import wording
from mlxplatform.memory.wiki.edits import Tighten, plain_sentence
from mlxplatform.memory.wiki.page import LEAD, bare, markers, parse, sentences

STAGE = "tighten"


def run(syn: Synthesis) -> None:
    told = syn.report.stage(STAGE)
    for stem, written in machine_sentences(syn).items():
        if stem not in syn.pages or stem not in syn.settled_pages or not syn.scope.has_page(stem):
            continue
        for section in parse(syn.pages[stem]).body_sections:
            told.read += 1
            group = _same(section.body, written)
            if group:
                syn.check()
                keep = max(group, key=lambda s: (len(wording.content(s)), -group.index(s)))
                edit = Tighten(section.title or LEAD, [bare(s) for s in group], bare(keep))
                syn.plan(told, stem, STAGE, edit, summary=f"Says once what {len(group)} sentences said: {bare(keep)}")
    if not told.proposed:
        told.because = "no section says a thing twice"


def _same(body: str, written: set[str]) -> list[str]:
    """The first group of cited machine sentences that say the same."""
    own = [s for s in sentences(body) if markers(s) and plain_sentence(s) in written]
    for place, sentence in enumerate(own):
        group = [sentence, *(o for o in own[place + 1 :] if wording.likeness(bare(sentence), bare(o)) >= wording.SAME)]
        if len(group) > 1:
            return group
    return []
