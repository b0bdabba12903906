"""Search by meaning: one vector per section, made after a run, compared by brute force.

Ten thousand sections of 384 numbers are 15 MB and one matrix product, so no index is worth its upkeep. The
matrix is kept per process and read again when a section was added or removed. Without an embedding model
nothing here happens, and search is by words alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from asgiref.sync import async_to_sync
from django.db.models import Count, Max

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.inference import client
from mlxplatform.inference.contract import InferenceRequest, Refusal
from mlxplatform.inference.placement import find_place
from mlxplatform.memory.index import Hit
from mlxplatform.memory.models import Section, Vault
from mlxplatform.memory.report import StageReport
from mlxplatform.rows.contract import RowRequest, RowResult
from mlxplatform.rows.pool import Context
from mlxplatform.rows.run import run_rows

#: Sections embedded by one call.
TEXTS_PER_CALL = 32
#: Characters of a section that its vector stands for; embedding models read about this much.
SECTION_READ = 2000
#: Constant of reciprocal rank fusion: how little the first places count more than the next.
FUSION = 60
#: Characters of a section shown with a hit.
SNIPPET = 160


def embedding_model() -> str:
    """The current embedding model, or '' when there is none or nobody to ask."""
    try:
        return async_to_sync(find_place)(None, "embedding").model.id
    except (Refusal, *BROKER_ERRORS):
        return ""


def embed_new(ctx: Context, vault: Vault, told: StageReport) -> None:
    """Give every section that has none of the current model's a vector, below interactive priority."""
    model = embedding_model()
    if not model:
        told.because = "there is no embedding model; search is by words"
        return
    waiting = list(Section.objects.filter(page__vault=vault).exclude(vector_model=model).select_related("page").order_by("pk"))
    told.read = len(waiting)
    if not waiting:
        told.because = "every section has its vector"
        return
    groups = [waiting[start : start + TEXTS_PER_CALL] for start in range(0, len(waiting), TEXTS_PER_CALL)]
    rows = [_row(place, group, model, vault.project) for place, group in enumerate(groups)]
    told.calls += len(rows)
    results = asyncio.run(_gather(ctx, rows))
    for row, group in zip(rows, groups, strict=True):
        output = results[row.key].output
        if output is None or len(output.vectors) != len(group):
            error = results[row.key].error
            told.refuse(group[0].page.stem, error.message if error else "the embedding is incomplete")
            continue
        for section, raw in zip(group, output.vectors, strict=True):
            section.vector, section.vector_model = _unit(np.frombuffer(raw, "<f4")).tobytes(), model
        Section.objects.bulk_update(group, ["vector", "vector_model"])
        told.count("sections", len(group))


def _row(place: int, group: Sequence[Section], model: str, project: str) -> RowRequest:
    texts: list[str | list[int]] = [f"{section.page.title} · {section.title}\n{section.text}"[:SECTION_READ] for section in group]
    # Section rows are made anew with every change of their page, so their keys name their present text.
    key = f"embed:{group[0].pk}-{group[-1].pk}"
    request = InferenceRequest(
        id=f"mem_{group[0].pk}", model=model, kind="embedding", priority="row", inputs=texts, project=project
    )
    return RowRequest(key, place, request)


async def _gather(ctx: Context, rows: list[RowRequest]) -> dict[str, RowResult]:
    return {result.key: result async for result in run_rows(ctx, rows)}


def _unit(vector: Any) -> Any:
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype("<f4")


@dataclass(frozen=True)
class _Matrix:
    stamp: tuple[int | None, int]
    ids: list[int]
    rows: Any


_matrices: dict[tuple[int, str], _Matrix] = {}


def search(vault: Vault, query: str, folder: str = "", limit: int = 50) -> list[Hit]:
    """Sections closest in meaning; nothing when no embedding model answers."""
    model = embedding_model()
    if not model:
        return []
    request = InferenceRequest(
        id=client.new_id("mem_"), model=model, kind="embedding", inputs=[query[:SECTION_READ]], project=vault.project
    )
    try:
        vectors = async_to_sync(client.run)(request).vectors
    except (Refusal, *BROKER_ERRORS):
        return []
    matrix = _matrix(vault, model)
    if not matrix.ids or not vectors:
        return []
    scores = matrix.rows @ _unit(np.frombuffer(vectors[0], "<f4"))
    best = np.argsort(-scores)[: limit * 2]
    found = Section.objects.filter(pk__in=[matrix.ids[place] for place in best]).select_related("page").in_bulk()
    hits = []
    for place in best:
        section = found.get(matrix.ids[place])
        if section is not None and (not folder or section.page.folder == folder):
            page = section.page
            text = section.text[:SNIPPET]
            hits.append(Hit(page.folder, page.stem, page.title, section.title, text, float(scores[place])))
    return hits[:limit]


def _matrix(vault: Vault, model: str) -> _Matrix:
    sections = Section.objects.filter(page__vault=vault, vector_model=model)
    state = sections.aggregate(newest=Max("pk"), count=Count("pk"))
    stamp = (state["newest"], state["count"])
    known = _matrices.get((vault.pk, model))
    if known is None or known.stamp != stamp:
        pairs = list(sections.order_by("pk").values_list("pk", "vector"))
        rows = (
            np.frombuffer(b"".join(bytes(vector or b"") for _, vector in pairs), "<f4").reshape(len(pairs), -1) if pairs else None
        )
        known = _matrices[vault.pk, model] = _Matrix(stamp, [pk for pk, _ in pairs], rows)
    return known


def fused(by_words: Sequence[Hit], by_meaning: Sequence[Hit], limit: int) -> list[Hit]:
    """Both rankings as one: a section high in either comes high, one in both comes first."""
    scores: dict[tuple[str, str, str], float] = {}
    hits: dict[tuple[str, str, str], Hit] = {}
    for ranking in (by_words, by_meaning):
        for place, hit in enumerate(ranking):
            key = (hit.folder, hit.stem, hit.section)
            scores[key] = scores.get(key, 0.0) + 1.0 / (FUSION + place + 1)
            hits.setdefault(key, hit)
    ordered = sorted(scores, key=lambda key: (-scores[key], key))[:limit]
    return [replace(hits[key], score=scores[key]) for key in ordered]
