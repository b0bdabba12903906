"""Links between pages, and See also, by mention and shared passages. No model; a second run finds nothing to do.

What the machine linked once and a person took out again is remembered and stays out.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from mlxplatform.memory.models import ChunkEntity
from mlxplatform.memory.synthesis import Synthesis
from mlxplatform.memory.wiki import linking
from mlxplatform.memory.wiki.edits import Link
from mlxplatform.memory.wiki.page import info_of, title_of

STAGE = "link"


def run(syn: Synthesis) -> None:
    told = syn.report.stage(STAGE)
    stems = [stem for stem in sorted(syn.pages) if stem in syn.settled_pages]
    told.read = len(stems)
    surfaces = surfaces_of({stem: syn.pages[stem] for stem in stems})
    related = _related(syn)
    given = _given(syn)
    known = set(stems)
    for stem in stems:
        if not syn.scope.has_page(stem):
            continue
        syn.check()
        text = syn.pages[stem]
        have = set(linking.linked_stems(text))
        withdrawn = given.get(stem, set()) - have
        mentions = linking.find_mentions(text, stem, surfaces, withdrawn)
        for mention in mentions:
            text = linking.link_mention(text, mention)
        listed = linking.see_also(text, stem, related.get(stem, []), known, withdrawn)
        fresh = [target for target in listed if target not in linking.see_also_of(text)]
        if mentions or fresh:
            targets = ", ".join(t.replace("_", " ") for t in dict.fromkeys([*(m.stem for m in mentions), *fresh]))
            edit = Link([(mention.surface, mention.stem) for mention in mentions], fresh)
            syn.plan(told, stem, STAGE, edit, summary=f"Links to {targets}")
    if not told.proposed:
        told.because = "every mention is linked"


def surfaces_of(pages: dict[str, str]) -> dict[str, str]:
    """Titles and aliases to stems; a name two pages claim belongs to neither, unless it is a title."""
    aliases: dict[str, set[str]] = {}
    titles: dict[str, str] = {}
    for stem, text in pages.items():
        titles[title_of(text) or stem.replace("_", " ")] = stem
        for alias in info_of(text).get("aliases", "").split(","):
            if alias.strip():
                aliases.setdefault(alias.strip(), set()).add(stem)
    clear = {alias: next(iter(stems)) for alias, stems in aliases.items() if len(stems) == 1}
    return {**clear, **titles}


def _related(syn: Synthesis) -> dict[str, list[str]]:
    """Pages that share passages, most shared first."""
    by_chunk: dict[int, set[str]] = {}
    for chunk, stem in (
        ChunkEntity.objects.filter(chunk__vault=syn.vault).exclude(entity__stem="").values_list("chunk_id", "entity__stem")
    ):
        by_chunk.setdefault(chunk, set()).add(stem)
    shared: Counter[tuple[str, str]] = Counter()
    for stems in by_chunk.values():
        shared.update(combinations(sorted(stems), 2))
    found: dict[str, list[tuple[int, str]]] = {}
    for (one, other), count in shared.items():
        if count >= linking.SHARED_CHUNKS:
            found.setdefault(one, []).append((-count, other))
            found.setdefault(other, []).append((-count, one))
    return {stem: [other for _, other in sorted(pairs)] for stem, pairs in found.items()}


def _given(syn: Synthesis) -> dict[str, set[str]]:
    """Links the machine has already made, or a person has refused, by page."""
    given: dict[str, set[str]] = {}
    for stem, edit in syn.vault.changes.filter(kind=STAGE, state__in=("accepted", "rejected", "reverted")).values_list(
        "stem", "edit"
    ):
        given.setdefault(stem, set()).update(target for _, target in edit["mentions"])
        given[stem].update(edit["see_also"])
    return given
