"""A rerank body (Cohere's and Jina's shape) as one embedding request: the query first, then the documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxplatform.api.fields import (
    MAX_COUNT,
    array,
    boolean,
    honoured,
    ignored,
    integer,
    missing,
    read_fields,
    table,
    text,
    wrong_type,
    wrong_value,
)
from mlxplatform.api.openai.embeddings.parse import MAX_INPUTS
from mlxplatform.api.running import Asked
from mlxplatform.inference.client import new_id
from mlxplatform.inference.contract import InferenceRequest


def read_documents(raw: Any, param: str) -> list[str]:
    """Strings, or objects with a ``text``; none empty."""
    items = array(raw, param)
    if not items:
        raise wrong_value(param, "it must not be empty.")
    if len(items) >= MAX_INPUTS:
        raise wrong_value(param, f"at most {MAX_INPUTS - 1} documents.")
    return [_document(item, f"{param}[{index}]") for index, item in enumerate(items)]


def _document(raw: Any, param: str) -> str:
    if isinstance(raw, dict):
        if "text" not in raw:
            raise missing(f"{param}.text")
        raw, param = raw["text"], f"{param}.text"
    if not isinstance(raw, str):
        raise wrong_type(param, "a string", raw)
    return text(empty=False)(raw, param)


FIELDS = table(
    honoured("query", text(empty=False), required=True),
    honoured("documents", read_documents, "strings, or objects with a text", required=True),
    honoured("model", text(), "an embedding model"),
    honoured("top_n", integer(1, MAX_COUNT)),
    honoured("return_documents", boolean),
    ignored("max_chunks_per_doc", "documents are embedded whole"),
    ignored("max_tokens_per_doc", "over-long documents are refused, never cut silently"),
)


@dataclass(frozen=True)
class Ranking:
    documents: list[str]
    top_n: int
    return_documents: bool


def parse(body: Mapping[str, Any]) -> Asked:
    """
    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, FIELDS)
    documents = fields["documents"]
    request = InferenceRequest(id=new_id("rank-"), model="", kind="embedding", inputs=[fields["query"], *documents])
    ranking = Ranking(documents, fields.get("top_n", len(documents)), fields.get("return_documents", False))
    return Asked(requests=(request,), model=fields.get("model"), ignored=fields.ignored, extra=ranking)
