"""What a template is: fields, sources, and how one source becomes rows.

``sources`` is deterministic in the inputs, so that a resumed run meets the same keys. ``build`` may call the
model through ``ask``, step by step; each (source, step) is one durable call. Refusing a source is an answer too:
a :class:`Drop` with a reason, which is counted and shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mlxplatform.inference.contract import Constraint, Message, Tool, ToolCall

RowFormat = Literal["messages", "prompt_completion", "dpo", "text"]
FieldType = Literal["text", "textarea", "number", "select", "json"]

#: Tokens and temperature of a call unless a template says otherwise.
MAX_TOKENS = 512
TEMPERATURE = 0.7


@dataclass(frozen=True)
class Field:
    """One input. ``number`` is a whole number within ``minimum`` and ``maximum``; ``json`` is parsed before use."""

    name: str
    type: FieldType
    label: str
    hint: str = ""
    required: bool = False
    default: str | int | None = None
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    #: Older names this field is also accepted under.
    aliases: tuple[str, ...] = ()
    #: What an order that does not name the field means, where that differs from the form's default.
    missing: str | int | None = None


@dataclass(frozen=True)
class Source:
    """One unit of work. ``key`` is short, unique and stable; ``data`` is the template's own."""

    key: str
    data: Any


@dataclass(frozen=True)
class Draft:
    """A row as the template made it, before any filter."""

    content: Mapping[str, Any]


@dataclass(frozen=True)
class Drop:
    """Something that yields no row. ``reason`` is a short code that is counted, ``detail`` a sentence or excerpt."""

    reason: str
    detail: str = ""
    where: str = ""


@dataclass(frozen=True)
class Answer:
    """What the model said. ``text`` is without its reasoning, ``raw`` is all it wrote."""

    text: str
    raw: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str = "stop"


class SourceError(Exception):
    """The sources cannot be read at all; the run fails with this sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CallFailed(Exception):
    """A call ended with an error; the source it belongs to is dropped with this reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


#: Reason of rows whose call ended with an error, before a colon and the error's code.
CALL_FAILED = "call_failed"


def failed(error: CallFailed) -> Drop:
    """What a failed call costs: the row it was for. A source of many rows drops this one and keeps the others."""
    return Drop(f"{CALL_FAILED}:{error.code}", error.message)


class Ask(Protocol):
    """One call of the model within a source; ``step`` is unique within the source."""

    @property
    def model(self) -> str: ...

    async def __call__(
        self,
        step: str,
        messages: Sequence[Message],
        *,
        max_tokens: int = MAX_TOKENS,
        temperature: float = TEMPERATURE,
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
        prompt: str | None = None,
        stop: Sequence[str] = (),
        tool_choice: str = "auto",
    ) -> Answer: ...


Inputs = Mapping[str, Any]
Made = Iterable[Draft | Drop]


#: Key of the inputs under which a run adds its project, for templates that read other things of the platform.
PROJECT = "@project"


def never(inputs: Inputs) -> bool:
    return False


def always(inputs: Inputs) -> bool:
    return True


@dataclass(frozen=True)
class Template:
    """A template. ``repeatable`` says that another round over the sources gives new rows."""

    id: str
    label: str
    description: str
    output_format: RowFormat
    fields: tuple[Field, ...]
    sources: Callable[[Inputs], Iterable[Source | Drop]]
    build: Callable[[Source, Inputs, Ask], Awaitable[Made]]
    needs_llm: bool = False
    repeatable: bool = False
    #: Rows are prompts without answers: not to be trained on as they are.
    prompts_only: Callable[[Inputs], bool] = never
    #: How strictly a row's shape is checked: "full", "answers_optional", or "types" only.
    check: Literal["full", "answers_optional", "types"] = "full"
    #: Whether these inputs make it call the model, where that depends on them.
    calls_model: Callable[[Inputs], bool] = always
    #: The format when it depends on the inputs.
    format_for: Callable[[Inputs], str] | None = None
    #: Further checks of an order, raising Refusal; given the inputs and the project.
    check_inputs: Callable[[Inputs, str], None] | None = None
    #: A new row is dropped when its ROUGE-L with an accepted one reaches this; None: no such filter.
    pool_limit: float | None = None
    #: Texts that belong to the pool from the start (the seeds).
    pool: Callable[[Inputs], Iterable[str]] | None = None
    #: Why the template cannot run here, or None.
    unavailable: Callable[[], str | None] = field(default=lambda: None)

    def describe(self) -> dict[str, Any]:
        """The metadata that forms and clients are built from."""
        shown: dict[str, Any] = {
            "id": self.id,
            "label": self.label,
            "description": self.description,
            "output_format": self.output_format,
            "needs_llm": self.needs_llm,
            "repeatable": self.repeatable,
            "fields": [_describe_field(f) for f in self.fields],
        }
        reason = self.unavailable()
        if reason:
            shown["unavailable"] = reason
        return shown


def _describe_field(f: Field) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": f.name, "type": f.type, "label": f.label, "required": f.required}
    optional = {"hint": f.hint, "default": f.default, "min": f.minimum, "max": f.maximum, "choices": list(f.choices)}
    shown |= {name: value for name, value in optional.items() if value not in (None, "", [])}
    return shown


def lines(text: str) -> list[str]:
    """Trimmed non-blank lines; a line feed, a carriage return or both end a line, and nothing else does."""
    return [line for line in map(str.strip, _ended(text)) if line]


def _ended(text: str) -> list[str]:
    # A text that was pasted from a file may bring the file's byte order mark along.
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def paragraphs(text: str) -> list[str]:
    """Blocks separated by blank lines, trimmed."""
    blocks: list[str] = []
    current: list[str] = []
    for line in [*_ended(text), ""]:
        if line.strip():
            current.append(line)
        elif current:
            blocks.append("\n".join(current).strip())
            current = []
    return blocks


def uses_model(template: Template, inputs: Inputs) -> bool:
    return template.needs_llm and template.calls_model(inputs)


def final_format(template: Template, inputs: Inputs) -> str:
    return template.format_for(inputs) if template.format_for else template.output_format


def user(text: str) -> Message:
    return Message("user", text)


def system(text: str) -> Message:
    return Message("system", text)


def chat_row(*turns: tuple[str, str], **extra: Any) -> Draft:
    """A ``messages`` row from (role, content) pairs, with further top-level keys such as ``metadata``."""
    return Draft({"messages": [{"role": role, "content": content} for role, content in turns], **extra})
