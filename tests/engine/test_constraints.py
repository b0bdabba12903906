"""Grammars as masks: whatever the model would say, what comes out follows the constraint."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer

from mlxplatform.inference.contract import Constraint, InferenceRequest, Refusal, Tool
from workers.engine.constraints import GrammarFault, Grammars
from workers.engine.text import TextLayer
from workers.engine.tool_parsers import FAMILIES, family
from workers.prepare.grammar import compile_constraint
from workers.prepare.protocol import TextSpec

#: More rows than the tokenizer has ids, as padded models do.
VOCAB = 512
STOP = 2


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer.to_str(), vocab_size=VOCAB, stop_ids=[STOP])


def request(**fields) -> InferenceRequest:
    return InferenceRequest(id="r", model="m", **fields)


#: What brings an answer to its end; somebody who wanders at random would hardly ever write it.
CLOSERS = [
    '"',
    "}",
    '"}',
    '<|"|>',
    "<escape>",
    "</atem:parameter>",
    "</parameter>",
    "</arg_value>",
    "</longcat_arg_value>",
    "</param>",
]


def wander(grammars: Grammars, tokenizer: Tokenizer, spec: TextSpec, seed: int, limit: int = 200) -> list[int]:
    """Sample at random among what the mask allows, as the most foolish model would, with a leaning to come to an end."""
    mask = grammars.mask(spec)
    assert mask is not None
    rng = random.Random(seed)
    tokens, planned = [1], []
    logits = mx.zeros((1, VOCAB))
    for _ in range(limit):
        row = np.array(mask.apply(mx.array(tokens[-1:]), logits))[0]
        allowed = np.flatnonzero(np.isfinite(row)).tolist()
        assert allowed
        if not planned and rng.random() < 0.5:
            planned = tokenizer.encode(rng.choice(CLOSERS), add_special_tokens=False).ids
        if STOP in allowed and rng.random() < 0.5:
            return tokens[1:]
        if planned and planned[0] in allowed:
            tokens.append(planned.pop(0))
        else:
            planned = []
            tokens.append(rng.choice([token for token in allowed if token != STOP] or [STOP]))
        if tokens[-1] == STOP:
            return tokens[1:-1]
    return []


def texts(
    grammars: Grammars, tokenizer: Tokenizer, req: InferenceRequest, tool_format: str | None = None, tries: int = 5
) -> list[str]:
    """Complete answers among some random ones."""
    spec = TextSpec(stop_ids=[STOP], grammar=compile_constraint(req, tool_format))
    found = [wander(grammars, tokenizer, spec, seed) for seed in range(tries)]
    return [tokenizer.decode(ids, skip_special_tokens=False) for ids in found if ids]


SCHEMA = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tag": {"enum": ["red", "blue"]},
        "ok": {"type": "boolean"},
    },
    "required": ["age", "tag"],
    "additionalProperties": False,
}


def test_json_schema_answers_validate(grammars, tokenizer):
    answers = texts(grammars, tokenizer, request(constraint=Constraint("json_schema", SCHEMA)))
    assert answers
    for answer in answers:
        jsonschema.validate(json.loads(answer), SCHEMA)


def test_json_object_answers_are_objects(grammars, tokenizer):
    answers = texts(grammars, tokenizer, request(constraint=Constraint("json_object")))
    assert answers
    for answer in answers:
        # What a JSON reader makes of half an escape is its own affair; the structure is what counts.
        assert isinstance(json.loads(answer), dict)


def test_regex_choice_and_grammar(grammars, tokenizer):
    assert all(
        re.fullmatch(r"[a-c]{2}-\d+", text)
        for text in texts(grammars, tokenizer, request(constraint=Constraint("regex", r"^[a-c]{2}-\d+$")))
    )
    picked = texts(grammars, tokenizer, request(constraint=Constraint("choice", ["yes", 'n"o', "vielleicht ö"])))
    assert picked and set(picked) <= {"yes", 'n"o', "vielleicht ö"}
    lark = 'start: "a" ("," "b")~2\n'
    assert set(texts(grammars, tokenizer, request(constraint=Constraint("grammar", lark)))) == {"a,b,b"}


TOOL = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "deep": {"type": "boolean"},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
OTHER = Tool("now", parameters=None)
#: Each layout once; some have two names.
FORCED = sorted({id(family(name)): name for name in FAMILIES if family(name).forced is not None}.values())


@pytest.mark.parametrize("name", FORCED)
def test_a_forced_call_is_read_back_by_its_own_family(name, grammars, tokenizer):
    req = request(tools=[TOOL, OTHER], tool_choice="get_weather")
    spec = TextSpec(stop_ids=[STOP], tools=[TOOL, OTHER], tool_format=name, grammar=compile_constraint(req, name))
    calls = []
    for seed in range(30):
        ids = wander(grammars, tokenizer, spec, seed)
        if not ids:
            continue
        markup = tokenizer.decode(ids, skip_special_tokens=False)
        for start in family(name).starts:
            markup = markup.removeprefix(start)
        if end := family(name).end:
            markup = markup.removesuffix(end)
        calls += family(name).parse(markup, [TOOL, OTHER])
        if len(calls) == 2:
            break
    assert calls
    for called, arguments in calls:
        assert called == "get_weather"
        assert isinstance(arguments["days"], int)
        assert isinstance(arguments["city"], str)


REFERRING = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {"where": {"$ref": "#/$defs/Place"}, "days": {"anyOf": [{"$ref": "#/$defs/Days"}, {"type": "null"}]}},
        "required": ["where", "days"],
        "$defs": {
            "Place": {
                "type": "object",
                "properties": {"n": {"type": "integer"}},
                "required": ["n"],
                "additionalProperties": False,
            },
            "Days": {"type": "integer"},
        },
    },
)


@pytest.mark.parametrize("name", FORCED)
def test_every_layout_follows_references_within_a_tools_schema(name):
    assert compile_constraint(request(tools=[REFERRING], tool_choice="get_weather"), name)


CYCLE = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"], "$defs": CYCLE},
        {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}}, "required": ["x"]},
        {
            "type": "object",
            "properties": {"x": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/a"}]}},
            "required": ["x"],
            "$defs": CYCLE,
        },
    ],
)
def test_a_schema_that_no_answer_can_finish_is_refused(schema):
    for req in (
        request(constraint=Constraint("json_schema", schema)),
        request(tools=[Tool("f", parameters=schema)], tool_choice="required"),
    ):
        with pytest.raises(Refusal) as refused:
            compile_constraint(req, "hermes")
        assert (refused.value.status, refused.value.code) == (400, "unsupported_constraint")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": {"$ref": "#"}}},
        {"type": "object", "properties": {"x": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"type": "array", "items": {"$ref": "#"}}}, "required": ["x"]},
        {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/a~1b%20c"}},
            "required": ["x"],
            "$defs": {"a/b c": {"type": "null"}},
        },
    ],
)
def test_a_schema_that_refers_to_itself_and_can_be_finished_is_taken(schema):
    assert compile_constraint(request(constraint=Constraint("json_schema", schema)), "hermes")


def test_arguments_are_an_object_also_where_a_schema_does_not_say_so(grammars, tokenizer):
    untyped = Tool("f", parameters={"properties": {"a": {"enum": [1]}}, "required": ["a"]})
    said = texts(grammars, tokenizer, request(tools=[untyped], tool_choice="required"), "hermes", tries=20)
    assert said
    assert all(family("hermes").parse(text.removeprefix("<tool_call>").removesuffix("</tool_call>"), [untyped]) for text in said)


def test_required_allows_any_offered_tool_and_several_calls(grammars, tokenizer):
    req = request(tools=[TOOL, OTHER], tool_choice="required")
    spec = TextSpec(stop_ids=[STOP], tools=[TOOL, OTHER], tool_format="hermes", grammar=compile_constraint(req, "hermes"))
    names: set[str] = set()
    for seed in range(60):
        layer = TextLayer(tokenizer, spec)
        ids = wander(grammars, tokenizer, spec, seed)
        if not ids:
            continue
        events = [event for token in ids for event in layer.push(token)[0]]
        rest, reason = layer.finish("stop")
        assert reason == "tool_calls"
        names |= {event.name for event in events + rest}
        if len(names) == 2:
            return
    pytest.fail(f"only {names} were ever called")


def first_characters(grammars: Grammars, tokenizer: Tokenizer, spec: TextSpec) -> set[str]:
    mask = grammars.mask(spec)
    assert mask is not None
    row = np.array(mask.apply(mx.array([1]), mx.zeros((1, VOCAB))))[0]
    return {str(tokenizer.id_to_token(int(token)))[0] for token in np.flatnonzero(np.isfinite(row))}


def test_an_offered_tool_may_still_be_called_beside_a_schema(grammars, tokenizer):
    req = request(tools=[OTHER], constraint=Constraint("json_schema", SCHEMA))
    spec = TextSpec(stop_ids=[STOP], grammar=compile_constraint(req, "hermes"))
    assert first_characters(grammars, tokenizer, spec) == {"{", "<"}
    silent = request(tools=[OTHER], tool_choice="none", constraint=Constraint("json_schema", SCHEMA))
    assert first_characters(grammars, tokenizer, TextSpec(stop_ids=[STOP], grammar=compile_constraint(silent, "hermes"))) == {"{"}


def test_the_grammar_binds_only_after_reasoning(grammars, tokenizer):
    closing = tokenizer.encode("!?", add_special_tokens=False).ids
    spec = TextSpec(
        stop_ids=[STOP],
        grammar=compile_constraint(request(constraint=Constraint("choice", ["yes"])), None),
        grammar_from="reasoning",
        reasoning_ids=([1], closing),
    )
    mask = grammars.mask(spec)
    tokens = [1]
    free = mx.zeros((1, VOCAB))
    assert np.isfinite(np.array(mask.apply(mx.array(tokens), free))).all()
    for token in [*tokenizer.encode("hm", add_special_tokens=False).ids, *closing]:
        tokens.append(token)
        row = np.array(mask.apply(mx.array(tokens), free))[0]
    assert {tokenizer.id_to_token(int(i))[0] for i in np.flatnonzero(np.isfinite(row))} == {"y"}


def test_a_model_may_still_open_reasoning_itself(grammars):
    spec = TextSpec(
        stop_ids=[STOP],
        grammar=compile_constraint(request(constraint=Constraint("choice", ["yes"])), None),
        grammar_from="maybe_reasoning",
        reasoning_ids=([1], [0]),
    )
    mask = grammars.mask(spec)
    row = np.array(mask.apply(mx.array([5]), mx.zeros((1, VOCAB))))[0]
    assert np.isfinite(row[1])
    assert np.isfinite(np.array(mask.apply(mx.array([5, 1]), mx.zeros((1, VOCAB))))).all()
    bound = np.array(mask.apply(mx.array([5, 1, 0]), mx.zeros((1, VOCAB))))[0]
    assert not np.isfinite(bound[1])


def test_a_mask_taken_up_again_knows_what_was_said(grammars, tokenizer):
    spec = TextSpec(stop_ids=[STOP], grammar=compile_constraint(request(constraint=Constraint("choice", ["yes no"])), None))
    said = tokenizer.encode("yes", add_special_tokens=False).ids
    again = grammars.mask(spec, said)
    row = np.array(again.apply(mx.array([1, *said]), mx.zeros((1, VOCAB))))[0]
    assert {tokenizer.decode([int(i)])[0] for i in np.flatnonzero(np.isfinite(row))} == {" "}


def test_a_token_against_the_grammar_is_a_fault_and_not_an_answer(grammars, tokenizer):
    spec = TextSpec(stop_ids=[STOP], grammar=compile_constraint(request(constraint=Constraint("choice", ["yes"])), None))
    mask = grammars.mask(spec)
    mask.apply(mx.array([1]), mx.zeros((1, VOCAB)))
    with pytest.raises(GrammarFault):
        mask.apply(mx.array(tokenizer.encode("q", add_special_tokens=False).ids), mx.zeros((1, VOCAB)))


def test_an_unconstrained_answer_has_no_mask(grammars):
    assert grammars.mask(TextSpec(stop_ids=[STOP])) is None


STRICT = Tool(TOOL.name, parameters=TOOL.parameters, strict=True)


def follow(grammars: Grammars, tokenizer: Tokenizer, spec: TextSpec, text: str) -> list[bool]:
    """Whether each token of a text may come where it stands."""
    mask = grammars.mask(spec)
    assert mask is not None
    allowed, newest = [], 1
    for token in tokenizer.encode(text, add_special_tokens=False).ids:
        try:
            row = np.array(mask.apply(mx.array([newest]), mx.zeros((1, VOCAB))))[0]
        except GrammarFault:
            return [*allowed, False]
        allowed.append(bool(np.isfinite(row[token])))
        newest = token
    return allowed


def test_a_strict_tool_is_held_to_its_schema_wherever_it_is_called(grammars, tokenizer):
    req = request(tools=[STRICT, OTHER])
    spec = TextSpec(stop_ids=[STOP], tools=[STRICT, OTHER], tool_format="hermes", grammar=compile_constraint(req, "hermes"))
    good = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
    for text in ("Just words, and a < b.", good, f"I will look. {good}", f"{good}\n{good} Done."):
        assert all(follow(grammars, tokenizer, spec, text)), text
    for bad in (good.replace("3", '"three"'), good.replace('"city"', '"town"'), good.replace("get_weather", "get_time")):
        assert not all(follow(grammars, tokenizer, spec, f"Sure: {bad}")), bad
    assert all(
        follow(grammars, tokenizer, spec, '<tool_call>\n{"name": "now", "arguments": {"any": [1, {"thing": 2}]}}\n</tool_call>')
    )


def test_without_a_strict_tool_a_free_answer_stays_free():
    assert compile_constraint(request(tools=[TOOL, OTHER]), "hermes") == ""


def test_strict_is_refused_where_it_cannot_be_held():
    with pytest.raises(Refusal) as refused:
        compile_constraint(request(tools=[STRICT]), "llama3")
    assert (refused.value.status, refused.value.param) == (400, "tools")
    assert "strict" in refused.value.message


@pytest.mark.parametrize("name", ["pythonic", "gemma4"])
def test_names_a_layout_cannot_write_are_refused(name):
    for tool in (Tool("get weather"), Tool("f", parameters={"type": "object", "properties": {"two words": {"type": "integer"}}})):
        with pytest.raises(Refusal) as refused:
            compile_constraint(request(tools=[tool], tool_choice="required"), name)
        assert refused.value.status == 400
        assert "cannot write the" in refused.value.message


def test_optional_arguments_come_in_any_choice_with_their_commas(grammars, tokenizer):
    tool = Tool("f", parameters={"type": "object", "properties": {key: {"type": "integer", "maximum": 3} for key in "abc"}})
    req = request(tools=[tool], tool_choice="required")
    spec = TextSpec(stop_ids=[STOP], grammar=compile_constraint(req, "pythonic"))
    for arguments in ("", "a=1", "b=2", "a=1,c=3", "b=2,c=3", "a=1,b=2,c=3"):
        assert all(follow(grammars, tokenizer, spec, f"<|tool_call_start|>[f({arguments})]<|tool_call_end|>")), arguments
    for arguments in (",a=1", "a=1,", "c=3,a=1", "d=1"):
        assert not all(follow(grammars, tokenizer, spec, f"<|tool_call_start|>[f({arguments})]<|tool_call_end|>")), arguments
