"""Every family's calls as its models write them, and what is not a call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlxplatform.inference.contract import Tool
from tests.unit.test_text import run
from workers.engine.tool_parsers import FAMILIES, detect, family, layout
from workers.engine.tool_parsers.values import decoded
from workers.prepare.protocol import TextSpec

TOOLS = [
    Tool(
        "get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "deep": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "where": {"type": "object"},
            },
        },
    ),
    Tool("now"),
]

#: Family, markup between its marks, and the calls in it.
GOOD = [
    ("hermes", '\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n', [("get_weather", {"city": "Oslo"})]),
    ("hermes", '{"function": {"name": "now", "arguments": "{}"}}', [("now", {})]),
    ("hermes", '{"name": "get_weather", "arguments": "{\\"days\\": 2}"}', [("get_weather", {"days": 2})]),
    ("json_tools", '{"name": "now", "arguments": {}}', [("now", {})]),
    (
        "qwen3_coder",
        "\n<function=get_weather>\n<parameter=city>\n5\n</parameter>\n<parameter=days>\n5\n</parameter>\n"
        '<parameter=where>\n{"a": [1]}\n</parameter>\n</function>\n',
        [("get_weather", {"city": "5", "days": 5, "where": {"a": [1]}})],
    ),
    ("qwen3_coder", "<function=now>\n</function>", [("now", {})]),
    (
        "qwen3_coder",
        "<function=get_weather><parameter=city>\nline one\n  line two\n<parameter=days>3</parameter></function>",
        [("get_weather", {"city": "line one\n  line two", "days": 3})],
    ),
    (
        "glm47",
        'get_weather\n<arg_key>city</arg_key>\n<arg_value>42</arg_value>\n<arg_key>tags</arg_key>\n<arg_value>["a"]</arg_value>\n',
        [("get_weather", {"city": "42", "tags": ["a"]})],
    ),
    ("glm47", "now", [("now", {})]),
    ("laguna", "get_weather<arg_key>deep</arg_key><arg_value>True</arg_value>", [("get_weather", {"deep": True})]),
    (
        "longcat",
        "get_weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Oslo</longcat_arg_value>\n",
        [("get_weather", {"city": "Oslo"})],
    ),
    ("longcat", '{"name": "now", "arguments": {}}', [("now", {})]),
    (
        "minimax_m2",
        '\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n',
        [("get_weather", {"city": "Oslo", "days": 2}), ("now", {})],
    ),
    (
        "minicpm5",
        '"get_weather"><param name="city"><![CDATA[a < b & c]]></param><param name="days">2</param>',
        [("get_weather", {"city": "a < b & c", "days": 2})],
    ),
    ("minicpm5", '"get_weather"><param name="city">a &lt; b</param>', [("get_weather", {"city": "a < b"})]),
    (
        "muse_spark",
        '<atem:invoke name="get_weather"><atem:parameter name="days" string="false">2</atem:parameter></atem:invoke>',
        [("get_weather", {"days": 2})],
    ),
    (
        "mistral",
        ' [{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {}}]',
        [("get_weather", {"city": "Oslo"}), ("now", {})],
    ),
    ("mistral", 'get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}', [("get_weather", {"city": "Oslo"}), ("now", {})]),
    ("mistral", 'get_weather[CALL_ID]abc123def[ARGS]{"city": "Oslo"}', [("get_weather", {"city": "Oslo"})]),
    (
        "kimi_k2",
        '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>'
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        [("get_weather", {"city": "Oslo"}), ("now", {})],
    ),
    (
        "kimi_k3",
        '<|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>5<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>5<|close|>argument<|sep|><|close|>call<|sep|>',
        [("get_weather", {"city": "5", "days": 5})],
    ),
    (
        "kimi_k3",
        '<|open|>call tool="now"<|sep|><|open|>json type="object"<|sep|>{}<|close|>json<|sep|><|close|>call<|sep|>',
        [("now", {})],
    ),
    (
        "gemma4",
        'call:get_weather{city:<|"|>a{b}, c: "d"<|"|>,days:2,tags:[<|"|>x<|"|>],where:{lat:1.5}}',
        [("get_weather", {"city": 'a{b}, c: "d"', "days": 2, "tags": ["x"], "where": {"lat": 1.5}})],
    ),
    ("gemma4", "call:now{}", [("now", {})]),
    (
        "function_gemma",
        "call:get_weather{city:<escape>Oslo, Norway<escape>,days:2}",
        [("get_weather", {"city": "Oslo, Norway", "days": 2})],
    ),
    (
        "pythonic",
        '[get_weather(city="Oslo", days=2, where={"a": true}), now()]',
        [("get_weather", {"city": "Oslo", "days": 2, "where": {"a": True}}), ("now", {})],
    ),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Oslo"}}', [("get_weather", {"city": "Oslo"})]),
    ("llama3", '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}', [("now", {}), ("now", {})]),
    (
        "deepseek",
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜>',
        [("get_weather", {"city": "Oslo"})],
    ),
    ("deepseek", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>", [("now", {})]),
    ("nemotron", '[{"name": "now", "arguments": {}}]', [("now", {})]),
    ("granite", '[{"name": "get_weather", "arguments": {"city": "Oslo"}}]', [("get_weather", {"city": "Oslo"})]),
    (
        "harmony",
        ' commentary to=functions.get_weather json<|message|>{"city": "Oslo"}',
        [("get_weather", {"city": "Oslo"})],
    ),
]


@pytest.mark.parametrize(("name", "markup", "calls"), GOOD)
def test_calls_are_read(name, markup, calls):
    assert family(name).parse(markup, TOOLS) == calls


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("markup", ["", "no call at all", "{", '{"name": 5}', "[]", "5", "null", "<", "call:", '"x"'])
def test_what_is_no_call_is_refused_as_a_value_error(name, markup):
    with pytest.raises((ValueError, TypeError, KeyError)):
        found = family(name).parse(markup, TOOLS)
        # A bare word is a call without arguments in some layouts; the tool it names does not exist then.
        known = {tool.name for tool in TOOLS}
        if not found or any(called not in known for called, _ in found):
            raise ValueError("no call")


def whole(name: str, markup: str) -> str:
    """The markup with the marks its family puts around it."""
    layout = family(name)
    return (layout.starts[0] if layout.starts and not layout.bare else "") + markup + (layout.end or "")


@pytest.mark.parametrize(("name", "markup", "calls"), [case for case in GOOD if case[0] != "harmony"])
def test_the_text_layer_finds_the_calls_in_an_answer(name, markup, calls):
    content, _, found, finished, _ = run(whole(name, markup), TextSpec(tools=TOOLS, tool_format=name))
    assert (content, found, finished) == ("", calls, "tool_calls")


@pytest.mark.parametrize(("name", "markup", "calls"), [case for case in GOOD if case[0] != "harmony"])
def test_an_answer_cut_inside_a_call_is_content_and_nothing_is_lost(name, markup, calls):
    text = whole(name, markup)
    for end in range(1, len(text), 3):
        content, _, found, finished, _ = run(text[:end], TextSpec(tools=TOOLS, tool_format=name), "length")
        if found:
            # Layouts without a closing mark: what is there must be complete calls from the list's beginning.
            assert family(name).end is None and found == calls[: len(found)]
        else:
            assert (content, finished) == (text[:end], "length")


@pytest.mark.parametrize(
    ("raw", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("5", {}, 5),
        ("5", None, 5),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("true", {"anyOf": [{"type": "boolean"}, {"type": "null"}]}, True),
        ("a &amp; b", {"type": "string"}, "a & b"),
        ("red", {"enum": ["red", "5"]}, "red"),
        ("5", {"enum": ["red", "5"]}, "5"),
        ("not json", {"type": "object"}, "not json"),
        ("False", {"type": "boolean"}, False),
    ],
)
def test_values_follow_the_schema(raw, schema, value):
    assert decoded(raw, schema) == value


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("… <tool_call>{{ tool_call.name }} …", "hermes"),
        ("… <tool_call>\n<function= …", "qwen3_coder"),
        ("… <tool_call>{{ name }}<arg_key> …", "glm47"),
        ("… [TOOL_CALLS] …", "mistral"),
        ("… <|tool_call>call:…<tool_call|>", "gemma4"),
        ("… <｜tool▁calls▁begin｜> …", "deepseek"),
        ("… <|start|>…<|channel|>…<|message|>", "harmony"),
        ("… <|eot_id|> Environment: ipython <|python_tag|>", "llama3"),
        ("… <TOOLCALL>", "nemotron"),
        ("nothing", "hermes"),
    ],
)
def test_a_template_gives_its_family_away(template, name):
    assert detect(template, lambda _: None) == name


def test_a_stated_family_and_a_vocabulary_count_too():
    assert detect("<tool_call>", lambda _: None, "glm47") == "glm47"
    assert detect("nothing", {"<|tool_call_start|>": 1, "<|tool_call_end|>": 2}.get) == "pythonic"
    assert detect("nothing", lambda _: None, "no such family") == "hermes"


def test_the_documented_families_are_the_ones_there_are():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "prompts-and-answers.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    documented = {name: row.rstrip(" |").endswith("yes") for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    families = {name: forced for name, forced in documented.items() if name in FAMILIES}
    assert families == {name: family(name).forced is not None for name in FAMILIES}


def test_a_forced_call_makes_up_no_arguments() -> None:
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    assert layout.parameters(Tool("f")) == closed
    assert layout.parameters(Tool("f", parameters={"type": "object", "properties": {}})) == closed
    spoken = {"type": "object", "properties": {"a": {}}, "additionalProperties": True}
    assert layout.parameters(Tool("f", parameters=spoken)) == spoken
    free = {"type": "object"}
    assert layout.parameters(Tool("f", parameters=free)) == free


def test_json_inside_other_layouts_keeps_its_own_escapes_and_braces() -> None:
    said = r'"a \/ b \ud83d\ude00 {x: 1}, y: 2"'
    assert family("pythonic").parse(f"[f(text={said})]", [Tool("f")]) == [("f", {"text": "a / b 😀 {x: 1}, y: 2"})]
    assert family("gemma4").parse(f"call:f{{text:{said}}}", [Tool("f")]) == [("f", {"text": "a / b 😀 {x: 1}, y: 2"})]
