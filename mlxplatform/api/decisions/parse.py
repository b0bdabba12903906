"""The two wires of decisions as questions: the OpenAI body (``input``) and the System One body (``state``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxplatform.api.conversation import MEDIA_PARTS, compact, join_parts, media_refusal
from mlxplatform.api.decisions.questions import MAX_OPTIONS, MAX_QUESTIONS, MAX_TOTAL_OPTIONS, Option, Question
from mlxplatform.api.fields import (
    SHOWN,
    anything,
    honoured,
    ignored,
    list_of,
    mapping,
    missing,
    one_of,
    read_fields,
    table,
    text,
    wrong_type,
    wrong_value,
)
from mlxplatform.inference.contract import Refusal

#: Levels of a System One score question.
MAX_LEVELS = 32
#: Limits of one input_json part.
JSON_BYTES = 256 * 1024


@dataclass(frozen=True)
class Decisions:
    """``model`` is the client's word for it; ``ignored`` names fields without effect."""

    model: str | None
    state: str
    questions: list[Question]
    ignored: tuple[str, ...]


OPENAI_FIELDS = table(
    honoured("input", anything, "text and JSON; images are refused", required=True),
    honoured("questions", anything, "predicate, choice, score", required=True),
    honoured("model", text()),
    ignored("prompt_cache_key", "the shared input is cached anyway"),
    ignored("prompt_cache_options", "the shared input is cached anyway"),
    ignored("safety_identifier", "no use for it"),
)
SYSTEM_ONE_FIELDS = table(
    honoured("state", anything, "text or any JSON value", required=True),
    honoured("questions", anything, "noul, choice, score; box is refused", required=True),
    honoured("model", text()),
    ignored("calibration", "probabilities are the model's own"),
    ignored("min_confidence", "every question is answered"),
)


def parse_openai(body: Mapping[str, Any]) -> Decisions:
    """
    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, OPENAI_FIELDS)
    state = _openai_input(fields["input"])
    raw = list_of(mapping, least=1, most=MAX_QUESTIONS)(fields["questions"], "questions")
    questions = [_openai_question(item, f"questions[{index}]") for index, item in enumerate(raw)]
    _check_total(questions)
    return Decisions(fields.get("model"), state, questions, fields.ignored)


def _openai_input(raw: Any) -> str:
    if isinstance(raw, str):
        return text(empty=False)(raw, "input")
    if not isinstance(raw, list):
        raise wrong_type("input", "a string or an array of input items", raw)
    if not raw:
        raise wrong_value("input", "it must not be empty.")
    calls: set[str] = set()
    return "\n\n".join(_input_item(item, f"input[{index}]", calls) for index, item in enumerate(raw))


def _input_item(raw: Any, param: str, calls: set[str]) -> str:
    item = mapping(raw, param)
    kind = item.get("type", "message" if "role" in item else None)
    if not isinstance(kind, str):
        raise wrong_type(f"{param}.type", "a string", kind)
    if kind == "message":
        role = one_of("user", "developer", "system", "assistant")(item.get("role"), f"{param}.role")
        return f"{role}: {_parts(item.get('content'), f'{param}.content')}"
    if kind in {"function_call", "custom_tool_call"}:
        calls.add(text()(item.get("call_id"), f"{param}.call_id"))
        arguments = item.get("arguments" if kind == "function_call" else "input")
        return f"call {text()(item.get('name'), f'{param}.name')}: {text()(arguments, f'{param}.arguments')}"
    if kind in {"function_call_output", "custom_tool_call_output"}:
        if text()(item.get("call_id"), f"{param}.call_id") not in calls:
            raise wrong_value(f"{param}.call_id", "it matches no call before it.")
        return f"result: {_parts(item.get('output'), f'{param}.output')}"
    raise wrong_value(f"{param}.type", f"items of type '{kind[:SHOWN]}' are not supported here.")


def _parts(raw: Any, param: str) -> str:
    if isinstance(raw, list):
        texts = []
        for index, part in enumerate(raw):
            here = f"{param}[{index}]"
            if mapping(part, here).get("type") == "input_json":
                texts.append(_json_part(part, here))
            else:
                texts.append(join_parts([part], param))
        return "".join(texts)
    return join_parts(raw, param)


def _json_part(part: Mapping[str, Any], param: str) -> str:
    value = part.get("data")
    if not isinstance(value, (dict, list)):
        raise wrong_type(param, "an object or an array of objects", value)
    shown = compact(value)
    if len(shown) > JSON_BYTES:
        raise wrong_value(param, "at most 256 KiB of JSON.")
    return shown


def _openai_question(raw: Mapping[str, Any], param: str) -> Question:
    kind = one_of("predicate", "choice", "score")(raw.get("type"), f"{param}.type")
    name = raw.get("name")
    if name is not None:
        text(256)(name, f"{param}.name")
    instructions = _parts(raw.get("instructions"), f"{param}.instructions")
    if not instructions.strip():
        raise wrong_value(f"{param}.instructions", "it must not be blank.")
    if kind == "predicate":
        return Question("predicate", name, instructions, (Option(True, ""), Option(False, "")))
    if kind == "choice":
        return Question("choice", name, instructions, _choices(raw.get("choices"), f"{param}.choices"))
    levels = list_of(mapping, least=2, most=MAX_OPTIONS)(raw.get("levels"), f"{param}.levels")
    options = []
    for index, level in enumerate(levels):
        label = text(empty=False)(level.get("label"), f"{param}.levels[{index}].label")
        options.append(Option(label, _described(label, level.get("description"), f"{param}.levels[{index}]")))
    return Question("score", name, instructions, tuple(options))


def _choices(raw: Any, param: str) -> tuple[Option, ...]:
    options: list[Option] = []
    seen: set[tuple[type, Any]] = set()
    for index, choice in enumerate(list_of(mapping, least=2, most=MAX_OPTIONS)(raw, param)):
        value = choice.get("value")
        if not isinstance(value, (str, bool)):
            raise wrong_type(f"{param}[{index}].value", "a string or a boolean", value)
        if (type(value), value) in seen:
            raise wrong_value(f"{param}[{index}]", "choices must be unique.")
        seen.add((type(value), value))
        shown = value if isinstance(value, str) else compact(value)
        options.append(Option(value, _described(shown, choice.get("description"), f"{param}[{index}]")))
    return tuple(options)


def _described(name: str, description: Any, param: str) -> str:
    return name if description is None else f"{name}: {text()(description, f'{param}.description')}"


def parse_system_one(body: Mapping[str, Any]) -> Decisions:
    """
    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, SYSTEM_ONE_FIELDS)
    raw = mapping(fields["questions"], "questions")
    if not raw:
        raise wrong_value("questions", "it must not be empty.")
    if len(raw) > MAX_QUESTIONS:
        raise wrong_value("questions", f"at most {MAX_QUESTIONS} questions.")
    questions = [_system_one_question(key, item, f"questions.{key[:SHOWN]}") for key, item in raw.items()]
    _check_total(questions)
    return Decisions(fields.get("model"), _state(fields["state"]), questions, fields.ignored)


def _state(raw: Any) -> str:
    if isinstance(raw, str):
        return text(empty=False)(raw, "state")
    if not isinstance(raw, (dict, list)):
        raise wrong_type("state", "a string, an object or an array", raw)
    _refuse_media(raw, "state")
    return compact(raw)


def _refuse_media(value: Any, param: str) -> None:
    if isinstance(value, dict):
        kind = value.get("type")
        if isinstance(kind, str) and kind in MEDIA_PARTS and any(key in value for key in (kind, "source", "url", "data")):
            raise media_refusal(kind, param)
        for child in value.values():
            _refuse_media(child, param)
    elif isinstance(value, list):
        for child in value:
            _refuse_media(child, param)


def _system_one_question(key: str, raw: Any, param: str) -> Question:
    question = mapping(raw, param)
    kind = one_of("noul", "choice", "score")(question.get("type"), f"{param}.type")
    instructions = question.get("instructions")
    shown = instructions if isinstance(instructions, str) else compact(instructions) if instructions else ""
    if not shown.strip():
        raise missing(f"{param}.instructions")
    criteria = question.get("criteria")
    if kind == "noul":
        meanings = {} if criteria is None else mapping(criteria, f"{param}.criteria")
        texts = [_criterion(meanings.get(name), f"{param}.criteria.{name}") for name in ("true", "false")]
        return Question("predicate", key, shown, (Option(True, texts[0]), Option(False, texts[1])))
    if kind == "choice":
        return Question("choice", key, shown, _labels(criteria, f"{param}.criteria"))
    levels = list_of(text(empty=False), least=2, most=MAX_LEVELS)(criteria, f"{param}.criteria")
    return Question("score", key, shown, tuple(Option(level, level) for level in levels))


def _criterion(raw: Any, param: str) -> str:
    return "" if raw is None else text()(raw, param)


def _labels(raw: Any, param: str) -> tuple[Option, ...]:
    if isinstance(raw, list):
        raw = dict.fromkeys(list_of(text(empty=False))(raw, param))
    labels = mapping(raw, param)
    if not 1 <= len(labels) <= MAX_OPTIONS:
        raise wrong_value(param, f"1 to {MAX_OPTIONS} labels.")
    return tuple(Option(label, _described(label, meaning, param)) for label, meaning in labels.items())


def _check_total(questions: list[Question]) -> None:
    if sum(len(question.options) for question in questions) > MAX_TOTAL_OPTIONS:
        raise Refusal(400, "invalid_value", f"At most {MAX_TOTAL_OPTIONS} options in all.", param="questions")
