"""Which things a passage speaks of: those the model names and the passage contains, and those written as names."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from mlxplatform.memory import names
from mlxplatform.memory.models import Alias, Chunk, ChunkEntity, Entity
from mlxplatform.memory.names import Resolver
from mlxplatform.memory.synthesis import Ask, Notes, Synthesis, quoted
from mlxplatform.memory.wiki.page import info_of, title_of

STAGE = "extract"
BATCH = 256
#: Most things one passage is filed under.
MOST_NAMES = 8
#: Names asked of the model, and their length: a small one fills whatever room it is given.
ASKED_NAMES, NAME_LENGTH = 5, 40

TASK = (
    "You list what a passage of a conversation is about: the names of products, tools, people, projects, places and fields, "
    "as they are written in the passage. Give an empty list when it is about nothing in particular. Answer in JSON."
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"names": {"type": "array", "maxItems": ASKED_NAMES, "items": {"type": "string", "maxLength": NAME_LENGTH}}},
    "required": ["names"],
    "additionalProperties": False,
}


def run(syn: Synthesis) -> None:
    told = syn.report.stage(STAGE)
    know_pages(syn)
    pending = list(syn.scope.of_chunks(syn.vault.chunks.filter(extracted_at=None)).select_related("conversation"))
    told.read = len(pending)
    if not pending:
        told.because = "every passage has been read for names"
        return
    resolver = resolver_of(syn)
    ignored = _ignored_topics(syn)
    for start in range(0, len(pending), BATCH):
        batch = pending[start : start + BATCH]
        notes = Notes(batch)
        undecided = syn.undecided(STAGE, [chunk.ref for chunk in batch])
        system = syn.system(STAGE, TASK)
        asks = [
            Ask(STAGE, ref, system, quoted(notes.shown(ref, syn.vault.note_chars)), SCHEMA, max_tokens=120) for ref in undecided
        ]
        for ref, answer in zip(undecided, syn.ask(told, asks), strict=True):
            said = answer.value["names"] if answer.value else []
            text = notes.text(ref)
            kept = [name for raw in said if (name := names.usable(raw, text, ignored))]
            told.count("names not in the passage", len(said) - len(kept))
            # What is plainly written as a name needs no model to be seen.
            written = (name for turn in notes.messages(ref) for name in names.proper_names(turn.text))
            kept += [name for raw in written if (name := names.usable(raw, text, ignored))]
            syn.decide(
                STAGE, ref, names=list(dict.fromkeys(kept))[:MOST_NAMES], **({"error": answer.error} if answer.error else {})
            )
        decided = syn.decisions(STAGE)
        for chunk in batch:
            syn.check()
            _file(syn, chunk, decided.get(chunk.ref, {}).get("names", []), notes.text(chunk.ref), resolver)
            told.count("names", len(decided.get(chunk.ref, {}).get("names", [])))


def _ignored_topics(syn: Synthesis) -> list[str]:
    lines = syn.wiki.policy("Topics_to_Ignore").splitlines()
    return [names.fold(line[2:]) for line in lines if line.startswith("- ")]


def _file(syn: Synthesis, chunk: Chunk, found: list[str], text: str, resolver: Resolver) -> None:
    with transaction.atomic():
        mentions = resolver.named_in(text)
        for name in found:
            entity = resolver.find(name)
            if entity is None:
                row, _ = Entity.objects.get_or_create(vault=syn.vault, key=names.fold(name), defaults={"name": name})
                entity = row.pk
                resolver.add(name, entity)
            else:
                Alias.objects.get_or_create(vault=syn.vault, key=names.fold(name), defaults={"entity_id": entity})
            mentions[entity] = name
        rows = [ChunkEntity(chunk=chunk, entity_id=entity, surface=surface[:120]) for entity, surface in mentions.items()]
        ChunkEntity.objects.bulk_create(rows, ignore_conflicts=True)
        Chunk.objects.filter(pk=chunk.pk).update(extracted_at=timezone.now())


def resolver_of(syn: Synthesis) -> Resolver:
    resolver = Resolver()
    for pk, name in syn.vault.entities.order_by("pk").values_list("pk", "name"):
        resolver.add(name, pk)
    for entity, key in syn.vault.aliases.order_by("pk").values_list("entity_id", "key"):
        resolver.add(key, entity)
    return resolver


def know_pages(syn: Synthesis) -> None:
    """Every page is an entity, also one a person wrote; its title and aliases are names of it."""
    known = {entity.stem: entity for entity in syn.vault.entities.exclude(stem="")}
    gone = [row.pk for stem, row in known.items() if stem not in syn.pages]
    syn.vault.entities.filter(pk__in=gone).update(stem="")
    resolver: Resolver | None = None
    for stem, text in syn.pages.items():
        info = info_of(text)
        aliases = [name.strip() for name in info.get("aliases", "").split(",") if name.strip()]
        title = title_of(text) or stem.replace("_", " ")
        entity: Entity | None = known.get(stem)
        if entity is None:
            resolver = resolver or resolver_of(syn)
            found = resolver.find(title)
            entity = Entity.objects.filter(pk=found, stem="").first() if found else None
            if entity is None:
                entity, _ = Entity.objects.get_or_create(vault=syn.vault, key=names.fold(title), defaults={"name": title[:120]})
            entity.stem, entity.notable = stem, True
            entity.save(update_fields=["stem", "notable"])
        for alias in aliases:
            if names.fold(alias):
                Alias.objects.get_or_create(vault=syn.vault, key=names.fold(alias), defaults={"entity": entity})
