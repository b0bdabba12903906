"""Ollama's chat, generate and embed bodies as contract requests, for apps that speak only that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxplatform.api.conversation import arguments_text, given_source, read_function, refuse_duplicates
from mlxplatform.api.fields import (
    MAX_COUNT,
    Field,
    Fields,
    anything,
    array,
    boolean,
    honoured,
    ignored,
    integer,
    list_of,
    mapping,
    missing,
    number,
    one_of,
    read_fields,
    refused,
    table,
    text,
    wrong_type,
    wrong_value,
)
from mlxplatform.api.openai.embeddings.parse import read_input
from mlxplatform.api.running import Asked
from mlxplatform.api.sampling import PENALTY_RANGE
from mlxplatform.inference.client import new_id
from mlxplatform.inference.contract import Constraint, Image, InferenceRequest, Message, Refusal, Sampling, Tool, ToolCall

ROLES = ("system", "user", "assistant", "tool")


def read_stop(raw: Any, param: str) -> list[str]:
    items = [raw] if isinstance(raw, str) else raw
    stops: list[str] = list_of(text(), most=64)(items, param)
    return [stop for stop in stops if stop]


OPTION_FIELDS = table(
    honoured("temperature", number(0, 2)),
    honoured("top_k", integer(0, MAX_COUNT)),
    honoured("top_p", number(0, 1)),
    honoured("min_p", number(0, 1)),
    honoured("seed", integer()),
    honoured("num_predict", integer(-2, MAX_COUNT), "0 and less: until the model stops"),
    honoured("stop", read_stop),
    honoured("repeat_penalty", number(*PENALTY_RANGE)),
    honoured("repeat_last_n", integer(-1, MAX_COUNT), "-1 is the whole history"),
    honoured("presence_penalty", number(-2, 2)),
    honoured("frequency_penalty", number(-2, 2)),
)


def read_options(raw: Any, param: str) -> Fields:
    """Sampling options; what only llama.cpp knows (num_ctx, num_gpu, ...) has no effect.

    Raises:
        Refusal: 400 naming ``options.<name>``.
    """
    try:
        return read_fields(mapping(raw, param), OPTION_FIELDS)
    except Refusal as refusal:
        refusal.param = f"{param}.{refusal.param}" if refusal.param else param
        raise


def read_format(raw: Any, param: str) -> Constraint | None:
    if raw == "":
        return None
    if isinstance(raw, str):
        one_of("json")(raw, param)
        return Constraint("json_object")
    if not isinstance(raw, dict):
        raise wrong_type(param, "'json' or a JSON Schema object", raw)
    return Constraint("json_schema", raw)


def read_think(raw: Any, param: str) -> bool | str:
    return raw if isinstance(raw, bool) else one_of("low", "medium", "high")(raw, param)


def read_tools(raw: Any, param: str) -> list[Tool]:
    tools = []
    for index, item in enumerate(array(raw, param)):
        tool = mapping(item, f"{param}[{index}]")
        if "function" not in tool:
            raise missing(f"{param}[{index}].function")
        tools.append(read_function(tool["function"], f"{param}[{index}].function"))
    refuse_duplicates(tools, param)
    return tools


def read_images(raw: Any, param: str) -> list[Image]:
    """Pictures in base64, which stand before the words of their turn."""
    return [
        Image(0, given_source(item, f"{param}[{index}]"), f"{param}[{index}]") for index, item in enumerate(array(raw, param))
    ]


def read_messages(raw: Any, param: str) -> list[Message]:
    """Turns; calls have no ids on this wire, so results answer them in order."""
    messages: list[Message] = []
    waiting: list[str] = []
    for index, item in enumerate(array(raw, param)):
        here = f"{param}[{index}]"
        message = mapping(item, here)
        role = one_of(*ROLES)(message.get("role"), f"{here}.role")
        images = read_images(message.get("images") or [], f"{here}.images")
        if images and role not in ("user", "tool"):
            raise wrong_value(f"{here}.images", "pictures belong to turns of the user and of tools.")
        content = "" if message.get("content") is None else text()(message["content"], f"{here}.content")
        if role == "assistant":
            calls = _calls(message.get("tool_calls") or [], f"{here}.tool_calls", index)
            waiting = [call.id for call in calls]
            thoughts = message.get("thinking")
            reasoning = None if thoughts is None else text()(thoughts, f"{here}.thinking") or None
            messages.append(Message("assistant", content or None, reasoning=reasoning, tool_calls=calls or None))
        elif role == "tool":
            answered = waiting.pop(0) if waiting else f"call_{index}"
            messages.append(Message("tool", content, tool_call_id=answered, images=images or None))
        else:
            messages.append(Message("user" if role == "user" else "system", content, images=images or None))
    return messages


def _calls(raw: Any, param: str, turn: int) -> list[ToolCall]:
    calls = []
    for index, item in enumerate(array(raw, param)):
        function = mapping(mapping(item, f"{param}[{index}]").get("function"), f"{param}[{index}].function")
        name = text(empty=False)(function.get("name"), f"{param}[{index}].function.name")
        arguments = arguments_text(function.get("arguments"), f"{param}[{index}].function.arguments")
        calls.append(ToolCall(f"call_{turn}_{index}", name, arguments))
    return calls


_COMMON: tuple[Field, ...] = (
    honoured("model", text(), "unknown names: see routing", required=True),
    honoured("stream", boolean, "true when absent"),
    honoured("options", read_options),
    honoured("format", read_format, "enforced by a grammar"),
    honoured("think", read_think),
    ignored("keep_alive", "residency is decided by memory"),
)
CHAT_FIELDS = table(honoured("messages", read_messages), honoured("tools", read_tools), *_COMMON)
GENERATE_FIELDS = table(
    honoured("prompt", text()),
    honoured("system", text()),
    honoured("raw", boolean, "no template"),
    refused("suffix", "Insertion is not available for these models.", ""),
    honoured("images", read_images, "base64; a model without eyes refuses them"),
    refused("template", "Templates come with the model.", ""),
    refused("context", "Send the conversation to /api/chat.", []),
    *_COMMON,
)
EMBED_FIELDS = table(
    honoured("model", text(), required=True),
    honoured("input", read_input),
    honoured("prompt", text(), "the older endpoint's input"),
    honoured("dimensions", integer(1, MAX_COUNT)),
    honoured("truncate", anything, "only false: over-long input is refused, never cut silently"),
    ignored("keep_alive", "residency is decided by memory"),
    ignored("options", "embeddings are not sampled"),
)


@dataclass(frozen=True)
class Shape:
    """How the answer is shown: ``chat`` has a message, ``generate`` a response text."""

    chat: bool


def parse_chat(body: Mapping[str, Any]) -> Asked:
    """
    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, CHAT_FIELDS)
    return _asked(fields, fields.get("messages", []), tools=fields.get("tools", []), shape=Shape(chat=True))


def parse_generate(body: Mapping[str, Any]) -> Asked:
    """
    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, GENERATE_FIELDS)
    prompt = fields.get("prompt", "")
    system = [Message("system", fields["system"])] if fields.get("system") else []
    images = fields.get("images", [])
    if images and fields.get("raw"):
        raise wrong_value("images", "a raw prompt has no place for them.")
    messages = [*system, Message("user", prompt, images=images or None)] if prompt or images else []
    return _asked(fields, messages, shape=Shape(chat=False), prompt=prompt if fields.get("raw") and prompt else None)


def _asked(
    fields: Fields, messages: list[Message], *, shape: Shape, tools: list[Tool] | None = None, prompt: str | None = None
) -> Asked:
    options = fields.get("options") or Fields({}, ())
    limit = options.get("num_predict", -1)
    think = fields.get("think")
    repeat = options.get("repeat_last_n")
    seed = options.get("seed")
    request = InferenceRequest(
        id=new_id("ollama-"),
        model="",
        kind="completion" if prompt is not None else "chat",
        messages=[] if prompt is not None else messages,
        prompt=prompt,
        tools=tools or [],
        template_kwargs={} if think is None else {"enable_thinking": bool(think)},
        reasoning_effort=think if isinstance(think, str) else None,
        sampling=Sampling(
            temperature=options.get("temperature"),
            top_p=options.get("top_p"),
            top_k=options.get("top_k"),
            min_p=options.get("min_p"),
            seed=None if seed is None else seed % 2**63,
            repetition_penalty=options.get("repeat_penalty"),
            repetition_context_size=None if repeat is None else max(0, repeat),
            presence_penalty=options.get("presence_penalty"),
            frequency_penalty=options.get("frequency_penalty"),
        ),
        max_tokens=limit if limit > 0 else None,
        stop=options.get("stop", []),
        constraint=fields.get("format"),
    )
    unused = (*fields.ignored, *(f"options.{name}" for name in options.ignored))
    return Asked(
        requests=(request,), model=plain_name(fields["model"]), stream=fields.get("stream", True), ignored=unused, extra=shape
    )


def parse_embed(body: Mapping[str, Any]) -> Asked | None:
    """None when there is nothing to embed, which this protocol answers with an empty list.

    Raises:
        Refusal: 400 naming the field.
    """
    if body.get("input") in ("", []) or (body.get("input") is None and body.get("prompt") == ""):
        return None
    fields = read_fields(body, EMBED_FIELDS)
    inputs = fields.get("input") or ([fields["prompt"]] if "prompt" in fields else None)
    if inputs is None:
        raise missing("input")
    request = InferenceRequest(
        id=new_id("ollama-"), model="", kind="embedding", inputs=inputs, dimensions=fields.get("dimensions")
    )
    return Asked(requests=(request,), model=plain_name(fields["model"]), ignored=fields.ignored)


def plain_name(name: str) -> str:
    """Ollama adds a tag to every name; ``:latest`` is the model itself."""
    return name.removesuffix(":latest")
