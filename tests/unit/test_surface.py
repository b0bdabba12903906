"""Every field of the current SDKs has its row, and the page and schema made from the rows are true."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from anthropic.types import ContentBlockParam, message_count_tokens_params, message_create_params
from anthropic.types.beta import BetaContentBlockParam
from openai.types import completion_create_params, decision_create_params, embedding_create_params
from openai.types.chat import ChatCompletionContentPartParam, ChatCompletionMessageParam
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import ResponseInputContentParam, ResponseInputItemParam, response_create_params

from mlxplatform.api.schema import body_schema, operation_object
from mlxplatform.api.surface import KINDS, OPERATIONS, conformance

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


def kinds(union: Any, key: str = "type") -> set[str]:
    """The literal values of ``key`` in the members of a union of the SDK's types."""
    found: set[str] = set()
    for member in get_args(union):
        if not hasattr(member, "__required_keys__"):
            continue
        hint = get_type_hints(member).get(key)
        for literal in (hint, *get_args(hint)):
            if get_origin(literal) is Literal:
                found |= set(get_args(literal))
    return found


def listed(title: str) -> set[str]:
    return {kind for name, effects in KINDS if name == title for _, kinds in effects for kind in kinds}


@pytest.mark.parametrize(
    ("title", "union", "key"),
    [
        ("Roles of chat messages", ChatCompletionMessageParam, "role"),
        ("Content parts, in every protocol of OpenAI's", ChatCompletionContentPartParam, "type"),
        ("Content parts, in every protocol of OpenAI's", ResponseInputContentParam, "type"),
        ("Items of a response's input", ResponseInputItemParam, "type"),
        ("Blocks of Anthropic's messages", ContentBlockParam, "type"),
        ("Blocks of Anthropic's messages", BetaContentBlockParam, "type"),
    ],
)
def test_every_kind_the_sdk_can_send_has_its_place(title: str, union: Any, key: str) -> None:
    sent = {name for name in kinds(union, key) if not name.endswith("_tool_result")}
    assert sent, "the SDK's types are read in another way now"
    assert sent - listed(title) == set()


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
