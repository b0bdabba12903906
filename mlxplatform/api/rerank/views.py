"""``POST /v1/rerank``: documents by their similarity to a query, on an embedding model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponseBase

from mlxplatform.api.openai.embeddings.views import floats
from mlxplatform.api.rerank.parse import Ranking, parse
from mlxplatform.api.running import Choices, gather, place_call
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.http.views import endpoint


def relevance(query: Sequence[float], document: Sequence[float]) -> float:
    """Cosine similarity; 0 for a zero vector."""
    length = math.hypot(*query) * math.hypot(*document)
    return sum(a * b for a, b in zip(query, document, strict=True)) / length if length else 0.0


def ranked(ranking: Ranking, query: Sequence[float], documents: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    scores = [relevance(query, document) for document in documents]
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: ranking.top_n]
    shown = ranking.return_documents
    return [
        {"index": i, "relevance_score": scores[i], **({"document": {"text": ranking.documents[i]}} if shown else {})}
        for i in order
    ]


async def create(request: HttpRequest) -> HttpResponseBase:
    call = await place_call(request, parse(await read_json(request)))
    (answer,) = await gather(call, await Choices.submit(call.requests))
    query, *documents = (floats(vector) for vector in answer.vectors)
    usage = {"prompt_tokens": answer.usage.prompt, "total_tokens": answer.usage.prompt}
    results = ranked(call.asked.extra, query, documents)
    return json_response({"id": call.id, "model": call.model, "results": results, "usage": usage}, headers=call.headers)


rerank = endpoint(POST=create)
