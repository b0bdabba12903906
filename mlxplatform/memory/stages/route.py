"""Which subjects get a page. Counting only: no model, no judgement of usefulness.

A subject with enough passages becomes notable. The others are captured: findable under the page they are
mentioned with most, never dropped, and counted again every night.
"""

from __future__ import annotations

from collections import Counter

from mlxplatform.memory.models import ChunkEntity, Redirect, Tombstone
from mlxplatform.memory.synthesis import Synthesis

STAGE = "route"


def run(syn: Synthesis) -> None:
    told = syn.report.stage(STAGE)
    forgotten = set(Tombstone.objects.filter(vault=syn.vault, kind="page").values_list("key", flat=True))
    mentions: dict[int, set[int]] = {}
    speaks_of: dict[int, set[int]] = {}
    for spoken_of, chunk in ChunkEntity.objects.filter(chunk__vault=syn.vault).values_list("entity_id", "chunk_id"):
        mentions.setdefault(spoken_of, set()).add(chunk)
        speaks_of.setdefault(chunk, set()).add(spoken_of)
    entities = {entity.pk: entity for entity in syn.vault.entities.all()}
    told.read = len(entities)
    redirects: dict[str, tuple[str, str]] = {}
    for pk, entity in entities.items():
        if entity.stem:
            redirects[entity.key] = (entity.stem, "fold")
            continue
        wanted = len(mentions.get(pk, ())) >= syn.vault.min_chunks and entity.key not in forgotten
        if wanted != entity.notable:
            entity.notable = wanted
            entity.save(update_fields=["notable"])
        if wanted:
            told.count("notable")
            continue
        beside = Counter(entities[o].stem for c in mentions.get(pk, ()) for o in speaks_of[c] if o != pk and entities[o].stem)
        home = max(sorted(beside), key=beside.__getitem__) if beside else ""
        redirects[entity.key] = (home, "capture")
        told.count("captured")
    for alias in syn.vault.aliases.select_related("entity"):
        redirects.setdefault(alias.key, (alias.entity.stem, "fold"))
    _store(syn, redirects)
    if not told.counts.get("notable"):
        told.because = f"no new subject has {syn.vault.min_chunks} passages yet"


def _store(syn: Synthesis, redirects: dict[str, tuple[str, str]]) -> None:
    have = {row.surface: row for row in syn.vault.redirects.all()}
    fresh = [
        Redirect(vault=syn.vault, surface=surface, stem=stem, kind=kind)
        for surface, (stem, kind) in redirects.items()
        if surface not in have
    ]
    changed = []
    for surface, row in have.items():
        stem, kind = redirects.get(surface, (row.stem, row.kind))
        if (row.stem, row.kind) != (stem, kind):
            row.stem, row.kind = stem, kind
            changed.append(row)
    Redirect.objects.bulk_create(fresh)
    Redirect.objects.bulk_update(changed, ["stem", "kind"])
