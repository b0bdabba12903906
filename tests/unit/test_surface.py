"""Every field of the current SDKs has its row, and the page and schema made from the rows are true."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params, decision_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from mlxplatform.api.schema import body_schema, operation_object
from mlxplatform.api.surface import OPERATIONS, conformance

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
TABLES = {operation.path: operation.fields for operation in OPERATIONS if operation.fields is not None}
#: Fields of an SDK's request type that are not part of the body.
NOT_BODY = {"betas", "user_profile_id", "workspace_id"}


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/v1/chat/completions", chat_create_params.CompletionCreateParamsStreaming),
        ("/v1/completions", completion_create_params.CompletionCreateParamsStreaming),
        ("/v1/responses", response_create_params.ResponseCreateParamsStreaming),
        ("/v1/embeddings", embedding_create_params.EmbeddingCreateParams),
        ("/v1/decisions", decision_create_params.DecisionCreateParams),
        ("/v1/messages", message_create_params.MessageCreateParamsStreaming),
        ("/v1/messages/count_tokens", message_count_tokens_params.MessageCountTokensParams),
    ],
)
def test_every_field_of_the_sdk_has_a_row(path: str, params: Any) -> None:
    named = set(get_type_hints(params)) - NOT_BODY
    assert named - set(TABLES[path]) == set()


def test_the_page_is_what_the_tables_say() -> None:
    if os.environ.get("WRITE_DOCS"):
        PAGE.write_text(conformance())
    assert PAGE.read_text() == conformance()


def test_schemas_of_bodies() -> None:
    schema = body_schema(TABLES["/v1/chat/completions"])
    assert schema["required"] == ["messages"]
    assert schema["properties"]["temperature"]["maximum"] == 2
    assert schema["properties"]["max_tokens"] == {**schema["properties"]["max_tokens"], "type": "integer", "minimum": 1}


def test_operations_have_ids_of_their_own() -> None:
    ids = [operation_object(operation)["operationId"] for operation in OPERATIONS]
    assert len(set(ids)) == len(ids)
