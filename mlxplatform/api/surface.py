"""The wire protocols as one list: path, method, fields. The conformance table and the API schema are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from mlxplatform.api import adapters
from mlxplatform.api.anthropic import parse as anthropic
from mlxplatform.api.audio import parse as audio
from mlxplatform.api.conversation import MEDIA_PARTS, PICTURES, TEXT_PARTS
from mlxplatform.api.decisions import parse as decisions
from mlxplatform.api.fields import Table
from mlxplatform.api.ollama import parse as ollama
from mlxplatform.api.openai.chat import parse as chat
from mlxplatform.api.openai.completions import parse as completions
from mlxplatform.api.openai.conversations import views as conversations
from mlxplatform.api.openai.embeddings import parse as embeddings
from mlxplatform.api.openai.responses import items
from mlxplatform.api.openai.responses import parse as responses
from mlxplatform.api.rerank import parse as rerank


@dataclass(frozen=True)
class Operation:
    """One operation. ``fields`` are those of its JSON body (or form), None for an operation without one.

    ``media`` are the types of its answers.
    """

    method: str
    path: str
    tag: str
    title: str
    fields: Table | None = None
    media: tuple[str, ...] = ("application/json",)
    form: bool = False


#: Media types of answers that may be streams: of events, of lines, of text.
EVENTS = ("application/json", "text/event-stream")
LINES = ("application/json", "application/x-ndjson")
SPOKEN = (*EVENTS, "text/plain")

OPERATIONS: tuple[Operation, ...] = (
    Operation("post", "/v1/chat/completions", "OpenAI", "Chat completions", chat.FIELDS, media=EVENTS),
    Operation("get", "/v1/chat/completions", "OpenAI", "Stored chat completions"),
    Operation("get", "/v1/chat/completions/{completion_id}", "OpenAI", "A stored chat completion, or its stream", media=EVENTS),
    Operation("delete", "/v1/chat/completions/{completion_id}", "OpenAI", "Delete a stored chat completion"),
    Operation("get", "/v1/chat/completions/{completion_id}/messages", "OpenAI", "Messages of a stored chat completion"),
    Operation("post", "/v1/completions", "OpenAI", "Legacy completions", completions.FIELDS, media=EVENTS),
    Operation("post", "/v1/responses", "OpenAI", "Responses", responses.FIELDS, media=EVENTS),
    Operation("post", "/v1/responses/input_tokens", "OpenAI", "Count the input tokens of a response", responses.FIELDS),
    Operation("get", "/v1/responses/{response_id}", "OpenAI", "A stored response, or its stream", media=EVENTS),
    Operation("delete", "/v1/responses/{response_id}", "OpenAI", "Delete a stored response"),
    Operation("post", "/v1/responses/{response_id}/cancel", "OpenAI", "Cancel a response that runs"),
    Operation("get", "/v1/responses/{response_id}/input_items", "OpenAI", "Input items of a response"),
    Operation("post", "/v1/conversations", "OpenAI", "Conversations", conversations.FIELDS),
    Operation("get", "/v1/conversations/{conversation_id}", "OpenAI", "One conversation"),
    Operation("delete", "/v1/conversations/{conversation_id}", "OpenAI", "Delete a conversation"),
    Operation("get", "/v1/conversations/{conversation_id}/items", "OpenAI", "Items of a conversation"),
    Operation("post", "/v1/conversations/{conversation_id}/items", "OpenAI", "Add items to a conversation", conversations.FIELDS),
    Operation("post", "/v1/audio/transcriptions", "OpenAI", "Transcription", audio.TRANSCRIPTION_FIELDS, media=SPOKEN, form=True),
    Operation(
        "post", "/v1/audio/translations", "OpenAI", "Translation of speech", audio.TRANSLATION_FIELDS, media=SPOKEN, form=True
    ),
    Operation("post", "/v1/rerank", "OpenAI", "Rerank", rerank.FIELDS),
    Operation("post", "/v1/embeddings", "OpenAI", "Embeddings", embeddings.FIELDS),
    Operation("get", "/v1/models", "OpenAI", "Models, in OpenAI's and Anthropic's shape"),
    Operation("get", "/v1/models/{model_id}", "OpenAI", "One model"),
    Operation("delete", "/v1/models/{model_id}", "OpenAI", "Delete a fine-tuned model"),
    Operation("get", "/v1/adapters", "Adapters", "Adapters that are mounted"),
    Operation("get", "/v1/adapters/available", "Adapters", "Adapters that may be mounted"),
    Operation("post", "/v1/adapters", "Adapters", "Mount an adapter", adapters.FIELDS),
    Operation("delete", "/v1/adapters/{adapter_id}", "Adapters", "Unmount an adapter"),
    Operation("post", "/v1/decisions", "Decisions", "Decisions, OpenAI's wire", decisions.OPENAI_FIELDS),
    Operation("post", "/v1/systemone", "Decisions", "Decisions, System One's wire", decisions.SYSTEM_ONE_FIELDS),
    Operation("post", "/v1/messages", "Anthropic", "Messages", anthropic.FIELDS, media=EVENTS),
    Operation("post", "/v1/messages/count_tokens", "Anthropic", "Count the tokens of a message", anthropic.COUNT_FIELDS),
    Operation("post", "/api/chat", "Ollama", "Ollama chat", ollama.CHAT_FIELDS, media=LINES),
    Operation("post", "/api/generate", "Ollama", "Ollama generate", ollama.GENERATE_FIELDS, media=LINES),
    Operation("post", "/api/embed", "Ollama", "Ollama embeddings", ollama.EMBED_FIELDS),
    Operation("get", "/api/tags", "Ollama", "Ollama's list of models"),
    Operation("get", "/api/requests", "Platform", "Finished requests of the project"),
    Operation(
        "get", "/api/requests/export", "Platform", "The same as JSON Lines, with what was said", media=("application/jsonl",)
    ),
    Operation("get", "/api/requests/{request_id}", "Platform", "One finished request with what was said"),
    Operation("delete", "/api/requests/{request_id}", "Platform", "Remove a finished request"),
    Operation("get", "/health", "Status", "Whether requests would be answered"),
    Operation("get", "/readyz", "Status", "The same, with reasons"),
    Operation("get", "/stats", "Status", "What the hosts say of themselves"),
)


#: Kinds of things inside bodies: (title, what is done with them, their names).
KINDS: tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...] = (
    ("Roles of chat messages", (("honoured", chat.ROLES), ("refused", ("function",)))),
    (
        "Content parts, in every protocol of OpenAI's",
        (
            ("honoured", tuple(sorted(TEXT_PARTS))),
            ("honoured by models that see, refused by others", tuple(sorted(PICTURES))),
            ("refused", tuple(sorted(set(MEDIA_PARTS) - PICTURES))),
        ),
    ),
    (
        "Items of a response's input",
        (("honoured", items.SUPPORTED), ("refused", items.REFUSED)),
    ),
    (
        "Blocks of Anthropic's messages",
        (
            ("honoured", ("text", "tool_use", "tool_result", "thinking", "redacted_thinking", "search_result")),
            ("accepted, of which text is used", ("server_tool_use", "mcp_tool_use", "*_tool_result")),
            ("honoured by models that see, refused by others", ("image",)),
            ("refused", ("document", *sorted(anthropic.REFUSED_BLOCKS))),
        ),
    ),
)


def conformance() -> str:
    """The conformance table in Markdown: every field of every body, and what becomes of it."""
    lines = [
        "# What becomes of every field",
        "",
        "Made from the tables that check requests; a test keeps this page equal to them. *Honoured* fields have their",
        "effect; *refused* ones answer 400 with the field's name unless they hold a neutral value; *ignored* ones, and",
        "names that are not listed, have no effect and are named in the answer's `x-mlxplatform-ignored` header.",
        "`null` always means absent.",
    ]
    for operation in OPERATIONS:
        if operation.fields is None:
            continue
        lines += ["", f"## {operation.title}", "", f"`{operation.method.upper()} {operation.path}`", ""]
        lines += ["| field | becomes | notes |", "|---|---|---|"]
        for name, field in operation.fields.items():
            needed = "required. " if field.required else ""
            lines.append(f"| `{name}` | {field.effect} | {needed}{field.note} |")
    lines += [
        "",
        "## Kinds inside bodies",
        "",
        "Kinds that are not listed are refused by name.",
        "",
        "| of | becomes | kinds |",
        "|---|---|---|",
    ]
    for title, effects in KINDS:
        for effect, names in effects:
            lines.append(f"| {title} | {effect} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines) + "\n"
