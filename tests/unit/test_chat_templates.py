"""Chat templates render exactly as transformers renders them, and cannot hurt anybody."""

from __future__ import annotations

import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from mlxplatform.inference.contract import Message, Refusal, Tool, ToolCall
from workers.prepare import hermes, messages
from workers.prepare.template import render

CONVERSATION = [
    {"role": "system", "content": "Be <b>brief</b> & 'kind'."},
    {"role": "user", "content": 'Naïve "quotes" 你好'},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": "é", "b": [1, None, True]}}}],
    },
    {"role": "tool", "content": "42"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<x>", "parameters": {"type": "object"}}}]

TEMPLATES = [
    # Block trimming on both sides, loop variables, tojson without HTML escapes.
    """
{% for message in messages %}
    {% if loop.first %}
    FIRST
    {% endif %}
    [{{ message.role }}] {{ message.content | tojson }}
    {% if message.tool_calls is defined %}
        {% for call in message.tool_calls %}
    {{ call.function.name }}: {{ call.function.arguments | tojson(indent=2) }}
        {% endfor %}
    {% endif %}
{% endfor %}
{{- '>' if add_generation_prompt else '' -}}
""",
    # Loop controls, namespaces, macros, slices, methods of strings.
    """{%- macro say(x) -%}<<{{ x.upper() }}>>{%- endmacro -%}
{%- set ns = namespace(n=0) -%}
{%- for m in messages[1:] -%}{%- if m.role == 'tool' -%}{%- break -%}{%- endif -%}{%- set ns.n = ns.n + 1 -%}
{{ say(m.role) }}{%- endfor -%}{{ ns.n }}{{ tools | tojson }}{{ tools[0] | tojson(ensure_ascii=True, sort_keys=True) }}""",
    # The generation block, kept as its inside.
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
    "{% if x is not defined %}{{ bos_token }}{% endif %}{{ strftime_now('%Y') }}{{ tools is none }}{{ messages | length }}",
    "{% for m in messages if m.role != 'system' %}{{ m['content'] | trim }}|{% else %}none{% endfor %}{{ messages[0].missing }}",
]


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("generation", [True, False])
def test_rendering_equals_transformers(source, generation):
    expected, _ = render_jinja_template(
        [CONVERSATION], tools=TOOLS, chat_template=source, add_generation_prompt=generation, bos_token="<s>"
    )
    ours = render(
        source,
        {"messages": CONVERSATION, "tools": TOOLS, "documents": None, "add_generation_prompt": generation, "bos_token": "<s>"},
    )
    assert ours == expected[0]


def refusal(source: str, **variables) -> Refusal:
    with pytest.raises(Refusal) as caught:
        render(source, {"messages": [], **variables}, seconds=0.2)
    assert caught.value.status == 400
    return caught.value


def test_the_templates_own_reason_reaches_the_client():
    assert "roles must alternate" in refusal("{{ raise_exception('roles must alternate') }}").message


@pytest.mark.parametrize(
    "source",
    [
        "{{ joiner.__init__.__globals__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{% set _ = messages.__class__ %}{{ _ }}x",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source):
    try:
        text = render(source, {"messages": []}, seconds=1)
    except Refusal as refused:
        assert refused.status == 400
        assert "sandbox" in refused.message or "cannot render" in refused.message
    else:
        assert text in ("", "x")


def test_a_template_that_loops_is_stopped_with_a_reason():
    started = time.monotonic()
    refused = refusal("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    assert refused.code == "template_timeout"
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].x }}",
        "{{ messages | no_such_filter }}",
        "{{ 'a' + 1 }}",
    ],
)
def test_broken_templates_are_refused_without_python_in_the_text(source):
    text = refusal(source).message
    assert not any(word in text for word in ("Traceback", "jinja", "Undefined", "Error", "<class"))


def can(source: str) -> messages.Abilities:
    return messages.abilities(source, ())


AS_OBJECT = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}"
)
AS_TEXT = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}{% endfor %}"
)
EITHER = AS_TEXT.replace("c.function.arguments +", "(c.function.arguments | tojson) +")
NO_TOOLS = "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}"
HISTORY = [
    Message("user", "weather?"),
    Message("assistant", None, tool_calls=[ToolCall("c1", "get", '{"city": "Oslo"}')]),
    Message("tool", "rain", tool_call_id="c1"),
    Message("user", "and tomorrow?"),
]


def test_arguments_reach_each_template_in_the_form_it_writes():
    for source, expected in [(AS_OBJECT, "getcity=Oslo"), (AS_TEXT, 'get({"city": "Oslo"})'), (EITHER, 'get({"city": "Oslo"})')]:
        assert can(source).native_tools
        turns, tools = messages.conversation(HISTORY, [Tool("get")], can(source))
        text = render(source, {"messages": turns, "tools": tools})
        assert expected in text
        assert "rain" in text


def test_a_template_without_tools_gets_them_in_plain_turns():
    assert not can(NO_TOOLS).native_tools
    turns, tools = messages.conversation(HISTORY, [Tool("get", "finds the weather")], can(NO_TOOLS))
    assert tools is None
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user", "user"]
    text = render(NO_TOOLS, {"messages": turns})
    assert "finds the weather" in text
    assert '<tool_call>\n{"name": "get", "arguments": {"city": "Oslo"}}\n</tool_call>' in text
    assert "<tool_response>\nrain\n</tool_response>" in text
    assert "None" not in text


def test_tool_introduction_joins_the_clients_system_turn():
    turns, _ = messages.conversation([Message("system", "Be brief."), Message("user", "hi")], [Tool("get")], can(NO_TOOLS))
    assert [turn["role"] for turn in turns] == ["system", "user"]
    assert turns[0]["content"].startswith("Be brief.\n\n")


def test_null_content_is_empty_text():
    turns, _ = messages.conversation(
        [Message("user", "hi"), Message("assistant", None), Message("user", "there?")], [], can(NO_TOOLS)
    )
    assert render(NO_TOOLS, {"messages": turns}) == "user: hi\nassistant: \nuser: there?\n"


NULL_ONLY = (
    "{{ tools | tojson if tools }}{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    "{% for c in m.tool_calls %}{{ c.function.name + ':' + c.function.arguments }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def test_a_template_that_writes_calls_only_beside_null_gets_null():
    assert can(NULL_ONLY).null_content and can(NULL_ONLY).native_tools
    turns, tools = messages.conversation(HISTORY, [Tool("get")], can(NULL_ONLY))
    assert 'get:{"city": "Oslo"}' in render(NULL_ONLY, {"messages": turns, "tools": tools})


def test_parallel_calls_are_put_in_a_row_for_templates_of_single_calls():
    history = [
        Message("user", "both?"),
        Message("assistant", "Let me see.", tool_calls=[ToolCall("c1", "get", "{}"), ToolCall("c2", "get", "{}")]),
        Message("tool", "one", tool_call_id="c1"),
        Message("tool", "two", tool_call_id="c2"),
    ]
    turns = messages.one_call_a_turn(messages.turns(history, can(AS_OBJECT)))
    assert [(turn["role"], turn["content"]) for turn in turns] == [
        ("user", "both?"),
        ("assistant", "Let me see."),
        ("tool", "one"),
        ("assistant", ""),
        ("tool", "two"),
    ]


def test_arguments_that_are_no_object_stay_text():
    turns = messages.turns([Message("assistant", None, tool_calls=[ToolCall("c", "f", "not json")])], can(AS_OBJECT))
    assert turns[0]["tool_calls"][0]["function"]["arguments"] == "not json"


def test_half_a_surrogate_pair_in_past_arguments_can_be_encoded():
    said = Message("assistant", None, tool_calls=[ToolCall("c", "f", '{"a": "x\\ud800"}')])
    assert messages.turns([said], can(AS_OBJECT))[0]["tool_calls"][0]["function"]["arguments"] == {"a": "x\ufffd"}
    assert hermes.written_call(said.tool_calls[0]).encode()


def test_a_variable_may_have_any_name():
    assert render("{{ self }}{{ args }}", {"self": "a", "args": "b", "not a name": "c"}).endswith("b")
