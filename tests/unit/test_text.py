"""The text layer: whatever way a text is cut into tokens, the joined events are the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mlxplatform.inference.contract import Reasoning, Text, TokenLogprob, Tool, ToolCall
from workers.engine.text import Marks, TextLayer
from workers.prepare.protocol import TextSpec

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
TOOLS = [
    Tool("get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}),
    Tool("now"),
]


def byte_tokenizer() -> Tokenizer:
    """Every byte a token, and the marks of a reasoning model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in ADDED])
    return tokenizer


BYTES = byte_tokenizer()
STOP = [BYTES.token_to_id("<|im_end|>")]


def run(text: str, spec: TextSpec, reason="stop", tokenizer: Tokenizer = BYTES):
    """Push a text token by token. Returns content, reasoning, calls, finish reason and the matched stop."""
    layer = TextLayer(tokenizer, spec)
    events, stop = [], None
    for token in tokenizer.encode(text, add_special_tokens=False).ids:
        new, stop = layer.push(token)
        events += new
        if stop is not None:
            break
    new, finished = layer.finish(reason)
    events += new
    content = "".join(event.text for event in events if isinstance(event, Text))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    calls = [(event.name, json.loads(event.arguments)) for event in events if isinstance(event, ToolCall)]
    return content, reasoning, calls, finished, stop


def test_characters_of_several_tokens_come_whole_and_never_as_replacement():
    text = "👩‍👩‍👧‍👦 naïve 你好 🇯🇵 é"
    layer = TextLayer(BYTES, TextSpec())
    pieces = []
    for token in BYTES.encode(text).ids:
        events, _ = layer.push(token)
        pieces += [event.text for event in events]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_answer_cut_inside_a_character_ends_before_it():
    ids = BYTES.encode("ok 你").ids
    layer = TextLayer(BYTES, TextSpec())
    events = [event for token in ids[:-1] for event in layer.push(token)[0]]
    assert "".join(event.text for event in events + layer.finish("length")[0]) == "ok "


def test_invalid_bytes_show_as_replacement_and_the_text_goes_on():
    stray = BYTES.token_to_id("ÿ")
    layer = TextLayer(BYTES, TextSpec())
    text = "".join(event.text for token in [stray, *BYTES.encode("ok").ids] for event in layer.push(token)[0])
    assert text == "\ufffdok"


def test_special_tokens_and_stop_tokens_are_not_shown():
    assert run("<|im_start|>a<|im_end|>", TextSpec(stop_ids=STOP))[0] == "a"


@pytest.mark.parametrize(
    ("text", "stops", "content", "matched"),
    [
        ("one two three four five", ["two three"], "one ", "two three"),
        ("abcabd", ["abd"], "abc", "abd"),
        ("aaab", ["aab"], "a", "aab"),
        ("xEND", ["END", "ND"], "x", "END"),
        ("abcdef", ["abcdef", "bcd"], "a", "bcd"),
        ("hello", ["q"], "hello", None),
        ("hel", ["hello"], "hel", None),
        ("", ["x"], "", None),
        ("hello", ["h"], "", "h"),
    ],
)
def test_stop_strings_end_the_answer_and_are_not_delivered(text, stops, content, matched):
    assert run(text, TextSpec(stop=stops)) == (content, "", [], "stop", matched)


def test_nothing_that_may_begin_a_stop_string_is_sent_early():
    layer = TextLayer(BYTES, TextSpec(stop=["STOP"]))
    sent = "".join(event.text for token in BYTES.encode("a ST").ids for event in layer.push(token)[0])
    assert sent == "a "
    assert "".join(event.text for event in layer.finish("length")[0]) == "ST"


def test_after_a_stop_string_further_tokens_are_ignored():
    layer = TextLayer(BYTES, TextSpec(stop=["."]))
    for token in BYTES.encode("a.b").ids:
        layer.push(token)
    assert layer.finish("length") == ([], "stop")


THINKS = TextSpec(reasoning=("<think>", "</think>"))


def test_reasoning_is_told_from_content():
    assert run("<think>\nhm\n</think>\n\nyes", THINKS)[:2] == ("yes", "hm")
    assert run("yes", THINKS)[:2] == ("yes", "")


def test_a_prompt_that_opens_reasoning_makes_the_first_token_reasoning():
    spec = TextSpec(reasoning=("<think>", "</think>"), starts_in_reasoning=True)
    assert run("hm</think>\n\nyes", spec)[:2] == ("yes", "hm")
    assert run("hm and no end", spec, "length")[:2] == ("", "hm and no end")


def test_literal_marks_in_content_survive():
    assert run("`<think>draft</think> done`", TextSpec())[0] == "`<think>draft</think> done`"
    assert run("Say `<think>draft</think> done`", THINKS)[:2] == ("Say `<think>draft</think> done`", "")
    assert run("<think>a</think>b <think>c</think>", THINKS)[:2] == ("b <think>c</think>", "a")


def test_a_stop_string_inside_reasoning_ends_the_answer():
    spec = TextSpec(reasoning=("<think>", "</think>"), starts_in_reasoning=True, stop=["END"])
    assert run("a END b</think>c", spec) == ("", "a", [], "stop", "END")


def test_reasoning_tokens_are_counted():
    layer = TextLayer(BYTES, TextSpec(reasoning=("<think>", "</think>"), starts_in_reasoning=True))
    for token in BYTES.encode("abc</think>de").ids:
        layer.push(token)
    assert layer.reasoning_tokens == 4


def called() -> TextSpec:
    return TextSpec(tools=TOOLS, tool_format="hermes")


def test_a_tool_call_is_withheld_and_given_out_whole():
    text = 'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert run(text, called()) == ("Let me see.", "", [("get_weather", {"city": "Oslo"})], "tool_calls", None)


def test_several_calls():
    text = '<tool_call>{"name": "now"}</tool_call>\n<tool_call>{"name": "get_weather", "arguments": {"days": 2}}</tool_call>'
    assert run(text, called())[2] == [("now", {}), ("get_weather", {"days": 2})]


@pytest.mark.parametrize(
    "text",
    [
        "a <tool_call>not json</tool_call> b",
        'a <tool_call>{"name": "unknown_tool", "arguments": {}}</tool_call> b',
        '<tool_call>{"name": "now"}</tool_call>\n<tool_call>{"name": </tool_call>',
        'x <tool_call>{"name": "now", "arguments": {"a": 1}',
    ],
)
def test_markup_that_is_not_a_good_call_becomes_content_entirely(text):
    content, _, calls, finished, _ = run(text, called(), "length")
    assert (content, calls, finished) == (text, [], "length")


def test_a_call_the_model_closed_by_ending_is_read():
    assert run('<tool_call>{"name": "now"}', called(), "stop")[2] == [("now", {})]


def test_without_tools_markup_is_text():
    text = '<tool_call>{"name": "now"}</tool_call>'
    assert run(text, TextSpec())[0] == text


def test_tool_choice_none_drops_calls_and_their_markup():
    spec = TextSpec(tools=TOOLS, tool_format="hermes", withhold_calls=True)
    assert run('Well.<tool_call>{"name": "now"}</tool_call>', spec) == ("Well.", "", [], "stop", None)


def test_tool_choice_none_shows_no_broken_markup_either():
    spec = TextSpec(tools=TOOLS, tool_format="hermes", withhold_calls=True)
    assert run("Well.<tool_call>{broken</tool_call>", spec)[0] == "Well."
    assert run("Well.<tool_call>{bro", spec, "length")[0] == "Well."
    bare = TextSpec(tools=TOOLS, tool_format="llama3", withhold_calls=True)
    assert run('{"name": "Ada", "age": 36}', bare)[0] == '{"name": "Ada", "age": 36}'


def test_stop_strings_do_not_act_inside_a_call():
    spec = TextSpec(tools=TOOLS, tool_format="hermes", stop=["city"])
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "x"}}</tool_call>'
    assert run(text, spec)[2:4] == ([("get_weather", {"city": "x"})], "tool_calls")


def test_white_space_of_content_is_kept_with_tools_offered():
    assert run(" a\n\n b \n", called())[0] == " a\n\n b \n"


def test_reasoning_then_a_call():
    spec = TextSpec(reasoning=("<think>", "</think>"), tools=TOOLS, tool_format="hermes")
    text = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "now"}\n</tool_call>'
    assert run(text, spec) == ("", "hm", [("now", {})], "tool_calls", None)


def test_a_bare_json_call_only_counts_as_the_first_thing_said():
    spec = TextSpec(tools=TOOLS, tool_format="llama3")
    assert run('{"name": "now", "parameters": {}}', spec)[2] == [("now", {})]
    text = 'Use {"name": "now", "parameters": {}}'
    assert run(text, spec)[:3] == (text, "", [])
    other = '{"name": "Ada", "age": 36}'
    assert run(other, spec)[:3] == (other, "", [])


CHANNELS = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"]


def channel_tokenizer() -> Tokenizer:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CHANNELS])
    return tokenizer


def test_channels_are_told_apart():
    tokenizer = channel_tokenizer()
    ends = [tokenizer.token_to_id("<|call|>"), tokenizer.token_to_id("<|return|>")]
    spec = TextSpec(channels=True, stop_ids=ends, tools=TOOLS, tool_format="harmony")
    thought = "<|channel|>analysis<|message|>Hm, é.<|end|><|start|>assistant"
    final = thought + "<|channel|>final<|message|>Yes.<|return|>"
    assert run(final, spec, tokenizer=tokenizer) == ("Yes.", "Hm, é.", [], "stop", None)
    call = thought + '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"days": 2}<|call|>'
    assert run(call, spec, tokenizer=tokenizer) == ("", "Hm, é.", [("get_weather", {"days": 2})], "tool_calls", None)
    told = "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant" + call.partition("assistant")[2]
    assert run(told, spec, tokenizer=tokenizer)[0] == "Let me look."
    stopped = thought + "<|channel|>final<|message|>one two three"
    assert run(stopped, TextSpec(channels=True, stop=["two"]), tokenizer=tokenizer)[0] == "one "
    cut = thought + '<|channel|>commentary to=functions.get_weather<|message|>{"days": '
    content, reasoning, calls, finished, _ = run(cut, spec, "length", tokenizer=tokenizer)
    assert (reasoning, calls, finished) == ("Hm, é.", [], "length") and '{"days": ' in content


def test_log_probabilities_travel_with_their_text_and_none_is_lost():
    layer = TextLayer(BYTES, TextSpec(stop=["zz"]))
    ids = BYTES.encode("a你z!").ids
    events = [event for token in ids for event in layer.push(token, TokenLogprob(token, "", -0.5))[0]]
    events += layer.finish("stop")[0]
    assert [entry.id for event in events for entry in event.logprobs] == ids
    assert "".join(event.text for event in events) == "a你z!"


def test_replaying_the_ids_rebuilds_the_state():
    spec = TextSpec(reasoning=("<think>", "</think>"), tools=TOOLS, tool_format="hermes", stop=["never"])
    ids = BYTES.encode('<think>a</think>né <tool_call>{"name": "now"}</tool_call>').ids

    def events(start: int):
        layer = TextLayer(BYTES, spec)
        for token in ids[:start]:
            layer.push(token)
        out = [event for token in ids[start:] for event in layer.push(token)[0]] + layer.finish("stop")[0]
        return [event if not isinstance(event, ToolCall) else (event.name, event.arguments) for event in out]

    whole = events(0)
    for start in range(len(ids)):
        rest = events(start)
        assert rest == whole[len(whole) - len(rest) :]


ALPHABET = [
    "a",
    " ",
    "\n",
    "é",
    "你",
    "<",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "now"}',
    "STOP",
    "ST",
    "OP",
]


def grouped_tokenizer(pieces: list[str]) -> Tokenizer:
    """The byte tokenizer, with more tokens of several characters."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in pieces])
    return tokenizer


GROUPED = grouped_tokenizer(["a ", "STO", "P<", "hink>", "ool_call>{", "\n\n", "é<t", 'e": "now"}</'])


@given(
    st.lists(st.sampled_from(ALPHABET), max_size=14).map("".join),
    st.booleans(),
    st.booleans(),
    st.sampled_from([[], ["STOP"], ["OP", "a a"]]),
)
@settings(max_examples=120, deadline=None)
def test_the_joined_answer_does_not_depend_on_the_cut(text, tools, starts_in, stops):
    spec = TextSpec(
        reasoning=("<think>", "</think>"),
        starts_in_reasoning=starts_in,
        tools=TOOLS if tools else [],
        tool_format="hermes",
        stop=stops,
    )
    assert run(text, spec) == run(text, spec, tokenizer=GROUPED)


@given(st.lists(st.sampled_from(["a", "é", "你", " ", "<", "ST", "👩‍👧"]), max_size=30).map("".join))
@settings(max_examples=100, deadline=None)
def test_plain_text_passes_unchanged(text):
    assert run(text, TextSpec(stop=["STOP"]))[0] == text


def test_marks_find_what_ends_first():
    assert Marks(["abcdef", "bcd"]).find("abcdef") == (1, "bcd")
    assert Marks(["STOP"]).held("xST") == 2
    assert Marks(["STOP"]).held("xSTO ") == 0


def test_a_stop_string_as_long_as_a_book_costs_no_more_than_itself():
    long = "ab" * 500_000
    marks = Marks([long, "b" * 100])
    assert marks.held("x" + long[:5000]) == 5000
    assert marks.held("x" + "b" * 99) == 99
    assert marks.held("b" * 99 + "a") == 1
    assert run("abac", TextSpec(stop=[long])) == ("abac", "", [], "stop", None)


@given(st.lists(st.text("ab", min_size=1, max_size=150), min_size=1, max_size=4), st.text("ab", max_size=150))
def test_what_is_held_back_is_the_longest_ending_that_begins_a_mark(texts, text):
    endings = (size for size in range(len(text), 0, -1) if any(len(t) > size and t.startswith(text[-size:]) for t in texts))
    assert Marks(texts).held(text) == next(endings, 0)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('"\\ud83d"', "\ufffd"),
        ('"a\\udc00b"', "a\ufffdb"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ('{"\\ud800": ["\\udfff"]}', {"\ufffd": ["\ufffd"]}),
    ],
)
def test_half_a_surrogate_pair_in_a_call_is_mended(written, read):
    _, _, calls, reason, _ = run(f'<tool_call>{{"name": "now", "arguments": {{"a": {written}}}}}</tool_call>', called())
    assert (calls, reason) == ([("now", {"a": read})], "tool_calls")


@pytest.mark.parametrize("written", ["NaN", "-Infinity", "1e999", "[" * 400 + "]" * 400])
def test_arguments_that_are_no_json_for_others_never_come_out_as_such(written):
    markup = f'<tool_call>{{"name": "now", "arguments": {{"a": {written}}}}}</tool_call>'
    layer = TextLayer(BYTES, called())
    events = [event for token in BYTES.encode(markup, add_special_tokens=False).ids for event in layer.push(token)[0]]
    for event in events + layer.finish("stop")[0]:
        if isinstance(event, ToolCall):
            json.loads(event.arguments, parse_constant=lambda name: pytest.fail(name))
