"""Constraints to grammars, and their refusal before anything runs.

A grammar that does not compile is refused with the keyword at fault; nothing degrades to free text. Needs
llguidance, never mlx. The engine only turns the compiled text into masks.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from mlxplatform.inference.contract import Constraint, InferenceRequest, Refusal, Tool
from workers.engine.tool_parsers import family
from workers.engine.tool_parsers.layout import Family, Json, Literal, OneOf, Piece, Until
from workers.prepare.finite import has_finite_answer
from workers.prepare.resolve import forces_call

#: White space between JSON tokens: at most a line break and an indentation, so that a model cannot dawdle in it.
JSON_WHITE_SPACE = r"\n?[ ]{0,16}"

#: Calls in one forced answer at most.
FORCED_CALLS = 8

#: Processor time for building a grammar and its first mask (seconds). The engine pays it again, between two tokens.
TRIAL_SECONDS = 0.5

#: Longest grammar, schema or pattern (characters).
LONGEST_SPEC = 256 * 1024

#: The request field each kind comes from, for error answers.
PARAMS = {
    "json_object": "response_format",
    "json_schema": "response_format",
    "regex": "guided_regex",
    "choice": "guided_choice",
    "grammar": "guided_grammar",
    "tool_call": "tool_choice",
    "strict": "tools",
}

#: Characters with a meaning in regular expressions.
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: \[(.*?)\]")
_JSON_OPTIONS = {"whitespace_pattern": JSON_WHITE_SPACE}


def _refuse(kind: str, message: str) -> Refusal:
    return Refusal(400, "unsupported_constraint", message, param=PARAMS.get(kind))


def _schema_text(schema: Any, kind: str) -> str:
    try:
        text = json.dumps(schema)
    except (RecursionError, ValueError, TypeError):
        raise _refuse(kind, "The JSON schema is nested too deeply or is not JSON.") from None
    if len(text) > LONGEST_SPEC:
        raise _refuse(kind, f"The JSON schema is longer than {LONGEST_SPEC} characters.")
    return text


def _json_text(schema: Any, kind: str) -> str:
    """A schema with our options in it. A client's own would switch enforcement off."""
    if schema is True or schema is None:
        schema = {}
    if not isinstance(schema, dict):
        raise _refuse(kind, "The JSON schema must be an object.")
    if not has_finite_answer(schema):
        raise _refuse(kind, "The JSON schema allows no answer that ends: what it requires refers to itself.")
    return _schema_text({**schema, "x-guidance": _JSON_OPTIONS}, kind)


def _json_rule(schema: Any, kind: str) -> str:
    """A schema as the inside of a Lark rule."""
    return "%json " + _json_text(schema, kind)


class _Lark:
    """Collects rules; each piece of a call becomes one."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def rule(self, body: str, *, attributes: str = "") -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {body}")
        return name

    def piece(self, piece: Piece) -> str:
        if isinstance(piece, Literal):
            return json.dumps(piece.text, ensure_ascii=False)
        if isinstance(piece, Json):
            return self.rule(_json_rule(piece.schema, "tool_call"))
        if isinstance(piece, Until):
            return self.rule("/(?s:.*)/", attributes=f"[suffix={json.dumps(piece.mark, ensure_ascii=False)}]")
        if isinstance(piece, OneOf):
            return "(" + " | ".join(self.pieces(option) for option in piece.options) + ")"
        return f"({self.pieces(piece.pieces)})?"

    def pieces(self, pieces: Sequence[Piece]) -> str:
        return " ".join(self.piece(piece) for piece in pieces)

    def text(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self.rules]) + "\n"


def _calls(lark: _Lark, tools: list[Tool], layout: Family, *, several: bool) -> str:
    """The expression for calls of these tools."""
    assert layout.forced is not None
    call = lark.rule(" | ".join(lark.rule(lark.pieces(_laid_out(tool, layout))) for tool in tools))
    # Only layouts with a closing mark can hold a second call.
    return f'{call} ("\\n" {call}){{0,{FORCED_CALLS - 1}}}' if several and layout.end is not None else call


def _laid_out(tool: Tool, layout: Family) -> Sequence[Piece]:
    assert layout.forced is not None
    try:
        return layout.forced(tool)
    except ValueError as error:
        raise _refuse("tool_call", f"This model's tool call format cannot write {error}.") from None


def _strict_calls(tools: list[Tool], layout: Family) -> str:
    """Free text with calls in it: wherever one begins it follows the tool's schema, for tools that ask for that.

    The text before a call ends, lazily, with the mark that opens one, so the rest of the mark's call must follow.
    """
    lark = _Lark()
    start = layout.starts[0]
    bodies = []
    for tool in tools:
        laid_out = _laid_out(tool if tool.strict else _free(tool), layout)
        first = laid_out[0]
        assert isinstance(first, Literal)
        bodies.append(lark.rule(lark.pieces([Literal(first.text.removeprefix(start)), *laid_out[1:]])))
    opening = lark.rule(f"TEXT {json.dumps(start, ensure_ascii=False)}", attributes="[lazy]")
    return LLMatcher.grammar_from_lark(lark.text(f"({opening} ({' | '.join(bodies)}))* TEXT") + "TEXT: /(?s:.*)/\n")


def _free(tool: Tool) -> Tool:
    return Tool(tool.name, tool.description, {"type": "object"})


def _can_be_strict(layout: Family, tools: list[Tool]) -> bool:
    """Whether calls of this layout begin with one mark and end with another, and can be laid out at all."""
    if layout.forced is None or layout.end is None or not layout.starts:
        return False
    firsts = [_laid_out(tool, layout)[0] for tool in tools]
    return all(isinstance(first, Literal) and first.text.startswith(layout.starts[0]) for first in firsts)


def _tool_call_grammar(tools: list[Tool], tool_format: str | None, *, several: bool) -> str:
    layout = family(tool_format) if tool_format else None
    if layout is None or layout.forced is None:
        raise _refuse("tool_call", "This model's tool call format cannot be forced; use tool_choice auto or none.")
    lark = _Lark()
    return LLMatcher.grammar_from_lark(lark.text(_calls(lark, tools, layout, several=several)))


def _json_or_calls(constraint: Constraint, tools: list[Tool], layout: Family) -> str:
    """JSON that follows the schema, or calls of the tools on offer: what an agent with a final schema needs."""
    lark = _Lark()
    schema = {"type": "object"} if constraint.kind == "json_object" else constraint.spec
    answer = lark.rule(_json_rule(schema, constraint.kind))
    return LLMatcher.grammar_from_lark(lark.text(f"{answer} | {_calls(lark, tools, layout, several=True)}"))


def _forced_tools(request: InferenceRequest) -> list[Tool]:
    """Tools the answer may call: what the constraint lists, or the one tool_choice names, or all."""
    names: list[str] | None = None
    if request.constraint is not None and request.constraint.kind == "tool_call":
        names = request.constraint.spec
    if request.tool_choice not in ("auto", "none", "required"):
        names = [request.tool_choice]
    allowed = [tool for tool in request.tools if names is None or tool.name in names]
    if not allowed:
        raise _refuse("tool_call", "tool_choice asks for a tool that is not in tools.")
    return allowed


def _choice_grammar(choices: Any) -> str:
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise _refuse("choice", "choice must be a non-empty list of non-empty strings.")
    # One regular expression instead of one rule with many branches: a rule may have 2,000, an expression any number.
    return LLMatcher.grammar_from_regex("|".join(_META.sub(r"\\\g<0>", choice) for choice in choices))


def _compiled(constraint: Constraint) -> str:
    kind, spec = constraint.kind, constraint.spec
    if kind == "json_object":
        return LLMatcher.grammar_from_lark("start: " + _json_rule({"type": "object"}, kind) + "\n")
    if kind == "json_schema":
        # A schema as a grammar of its own gives better messages than one inside a rule.
        return LLMatcher.grammar_from_json_schema(_json_text(spec, kind))
    if kind == "choice":
        return _choice_grammar(spec)
    if not isinstance(spec, str) or not spec.strip():
        raise _refuse(kind, f"{kind} must be a non-empty string.")
    if len(spec) > LONGEST_SPEC:
        raise _refuse(kind, f"The {kind} is longer than {LONGEST_SPEC} characters.")
    if kind == "regex":
        # The whole answer must match, so anchors at its ends say nothing new, and the engine knows none.
        pattern = spec.removeprefix("^")
        return LLMatcher.grammar_from_regex(pattern if pattern.endswith("\\$") else pattern.removesuffix("$"))
    return LLMatcher.grammar_from_lark(spec)


def _explained(kind: str, error: str) -> Refusal:
    keywords = _UNIMPLEMENTED.search(error)
    if keywords:
        return _refuse(kind, f"The JSON schema uses keywords that cannot be enforced: {keywords[1]}.")
    if "oneOf" in error:
        return _refuse(kind, 'The JSON schema uses "oneOf" with overlapping branches, which cannot be enforced; use "anyOf".')
    if "Unknown format" in error:
        return _refuse(kind, f'The JSON schema uses a "format" that cannot be enforced: {error.rpartition(": ")[2]}.')
    if "Resource '" in error:
        return _refuse(kind, "The JSON schema refers to something outside itself, which is not fetched.")
    if "regex" in error:
        reason = error.rsplit("error: ", 1)[-1].splitlines()[0] if "error: " in error else "it cannot be parsed"
        where = '"pattern" of the JSON schema' if kind.startswith("json") else "regular expression"
        return _refuse(kind, f"The {where} is not supported: {reason}.")
    noun = {
        "json_schema": "JSON schema",
        "tool_call": "parameters schema of a tool",
        "strict": "parameters schema of a tool",
    }.get(kind, kind)
    # Inside a rule the message tells the place in our own text first, which the client never saw.
    reason = error.splitlines()[0].rsplit("failed to compile JSON schema: ", 1)[-1].removesuffix(".")
    return _refuse(kind, f"The {noun} cannot be used: {reason[:200]}.")


def try_out(grammar: str, kind: str, tokenizer: LLTokenizer) -> None:
    """Build the grammar as the engine will and take its first mask.

    Raises:
        Refusal: 400 for a grammar that no answer satisfies, or that would hold up everybody else's tokens.
    """
    started = time.thread_time()
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    matcher.compute_bitmask()
    spent = time.thread_time() - started
    if matcher.is_error():
        if matcher.get_error().startswith("NoExtension"):
            raise _refuse(kind, "The constraint allows no answer at all.")
        raise _refuse(kind, "The constraint is too complex to be enforced.")
    if spent > TRIAL_SECONDS:
        raise _refuse(kind, f"The constraint is too complex: preparing it takes {spent:.1f} s, allowed are {TRIAL_SECONDS:g} s.")


def constraint_kind(request: InferenceRequest) -> str:
    """The kind of grammar a request asks for, "" for none."""
    if forces_call(request):
        return "tool_call"
    if request.constraint is not None:
        return request.constraint.kind
    return "strict" if any(tool.strict for tool in request.tools) else ""


def compile_constraint(request: InferenceRequest, tool_format: str | None) -> str:
    """The grammar the answer must follow, "" when it is free.

    Raises:
        Refusal: 400 ``unsupported_constraint`` naming what cannot be enforced.
    """
    kind = constraint_kind(request)
    if kind == "tool_call":
        allowed = _forced_tools(request)
        grammar = _tool_call_grammar(allowed, tool_format, several=len(allowed) > 1)
    elif request.constraint is not None:
        grammar = _compiled(request.constraint)
        layout = family(tool_format) if tool_format and request.tool_choice == "auto" else None
        if kind in ("json_object", "json_schema") and layout is not None and layout.forced is not None:
            # The schema alone has the better messages, so it is checked alone before it is made a part.
            _check(grammar, kind)
            grammar = _json_or_calls(request.constraint, request.tools, layout)
    elif request.tool_choice == "auto" and tool_format and any(tool.strict for tool in request.tools):
        layout = family(tool_format)
        if not _can_be_strict(layout, request.tools):
            raise _refuse("strict", "This model's tool call format cannot be held to a schema; leave strict out.")
        kind, grammar = "strict", _strict_calls(request.tools, layout)
    else:
        return ""
    _check(grammar, kind)
    return grammar


def _check(grammar: str, kind: str) -> None:
    error = LLMatcher.validate_grammar(grammar)
    if error:
        raise _explained(kind, error)
