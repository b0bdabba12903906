"""What people and models give to be matched, applied or filled in costs bounded time and memory, and says so."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mlxplatform.datasets import bounded, chatprefix, chatrender, schemas, textsandbox
from mlxplatform.datasets.filters import rowwise
from mlxplatform.datasets.filters.settings import Filters
from mlxplatform.datasets.templates.prompt_reconstruction import preservation_locks
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.datasets.texttemplate import BadTemplate, TextTemplate
from mlxplatform.files import jsonl

pytestmark = pytest.mark.timeout(60)

#: Does not end within the life of a machine on thirty letters of its own and one other.
ENDLESS = "^(a|aa)+$"
SPRUNG = "a" * 40 + "!"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "SECONDS", 0.2)


def doubled(levels: int) -> dict[str, Any]:
    """A schema of a few lines that looks at its value 2^levels times."""
    below = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/l0", "$defs": {**below, f"l{levels}": {"type": "integer"}}}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("schema", "text", "at"),
    [
        ({"pattern": ENDLESS}, f'"{SPRUNG}"', ENDLESS),
        ({"patternProperties": {ENDLESS: {}}}, f'{{"{SPRUNG}": 1}}', ENDLESS),
        ({"patternProperties": {ENDLESS: {}}, "additionalProperties": False}, f'{{"{SPRUNG}": 1}}', ENDLESS),
        ({"additionalProperties": False, "patternProperties": {ENDLESS: {}}}, f'{{"{SPRUNG}": 1}}', ENDLESS),
        ({"propertyNames": {"pattern": ENDLESS}}, f'{{"{SPRUNG}": 1}}', ENDLESS),
        ({"not": {"pattern": ENDLESS}}, f'"{SPRUNG}"', ENDLESS),
        ({"contains": {"pattern": ENDLESS}}, f'["{SPRUNG}"]', ENDLESS),
        ({"unevaluatedProperties": {"pattern": ENDLESS}}, f'{{"x": "{SPRUNG}"}}', ENDLESS),
        (doubled(60), "1", "at "),
        ({"$schema": DRAFT, "pattern": ENDLESS, "items": {"$ref": "#"}}, f'["{SPRUNG}"]', ENDLESS),
    ],
)
def test_a_schema_that_would_never_come_back_costs_its_row(schema: Any, text: str, at: str) -> None:
    schemas.check(schema)
    began = time.monotonic()
    said = schemas.problem(text, schema)
    assert said.startswith("the schema takes too long to apply: ") and at in said
    assert time.monotonic() - began < 20
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]}
    verdict = rowwise.judge_row(row, Filters(schema=schema), TEMPLATES["sft_qa_pairs"])
    assert verdict.reason == "schema" and "too long to apply" in verdict.detail


def test_many_unlike_things_are_compared_at_once() -> None:
    items = ",".join(f'{n},"{n}",{{"n":{n}}}' for n in range(30_000))
    assert schemas.problem(f"[{items}]", {"uniqueItems": True}) == ""
    assert "more than once" in schemas.problem('[1, {"a": [1]}, 1.0]', {"uniqueItems": True})
    assert schemas.problem('[1, true, "1", [1]]', {"uniqueItems": True}) == ""


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"pattern": r"^\d{4}-\d{2}$"}, '"2026-11"', '"2026"'),
        ({"pattern": r"\(?R"}, '"(R"', '"(x"'),
        ({"pattern": r"\p{Lu}"}, '"aÄ"', '"aä"'),
        ({"patternProperties": {"^n_": {"type": "integer"}}}, '{"n_a": 1, "x": ""}', '{"n_a": ""}'),
        ({"properties": {"a": {}}, "patternProperties": {"^n_": {}}, "additionalProperties": False}, '{"a":1,"n_":2}', '{"b":1}'),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}, '{"a":1,"b":null}', '{"b":1}'),
        ({"properties": {"a": {}}, "additionalProperties": True}, '{"b":1}', "1x"),
        ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": {}}}]}, '{"a":1}', '{"b":1}'),
    ],
)
def test_what_ends_is_applied_as_before(schema: Any, good: str, bad: str) -> None:
    schemas.check(schema)
    assert schemas.problem(good, schema) == ""
    assert schemas.problem(bad, schema) != ""


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"pattern": "("}, "'('"),
        ({"properties": {"a": {"patternProperties": {"[": {}}}}}, "'['"),
        ({"pattern": "(?P<a>x)(?P<a>y"}, "pattern"),
        ({"pattern": "(" * 3000}, "pattern"),
        ({"pattern": "(?R)?(?R)"}, "calls itself"),
        ({"pattern": r"\\\\(?1)(a)"}, "calls itself"),
        ({"pattern": "a" * (schemas.MAX_PATTERN + 1)}, f"longer than {schemas.MAX_PATTERN}"),
        ({"items": {"$schema": DRAFT, "pattern": ENDLESS}}, "$schema"),
        ({"description": "a" * schemas.MAX_SCHEMA}, f"longer than {schemas.MAX_SCHEMA}"),
        ({"unevaluatedProperties": False, "patternProperties": {"a": {}}}, "unevaluatedProperties"),
    ],
)
def test_patterns_that_are_none_are_refused_by_name(schema: Any, named: str) -> None:
    with pytest.raises(schemas.BadSchema) as refused:
        schemas.check(schema)
    assert named in str(refused.value) and len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"enum": [5], "$ref": "#/enum/0"}, "5"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"default": {"pattern": "("}, "$ref": "#/$defs/a/default"}}}, '"x"'),
        ({"multipleOf": 0.1}, "1" + "0" * 400),
        ({"default": {"pattern": "(?R)?(?R)"}, "$ref": "#/default"}, '"aaaa"'),
    ],
)
def test_a_schema_that_leads_astray_costs_its_row(schema: Any, text: str) -> None:
    schemas.check(schema)
    assert schemas.problem(text, schema).startswith("the schema ")


# Patterns of our own on rows of megabytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", ["a.", "1.", "a@a.", "1-", "a@", "1 ", "sk-", "A1 ", "$1", "`", "[1,", "(A", "..a@b.1", "x@1."])
def test_personal_data_and_facts_are_looked_for_in_one_pass(piece: str) -> None:
    text = piece * 100_000
    began = time.process_time()
    rowwise.personal_data(text)
    preservation_locks(text)
    jsonl.explain(b'{"a": 1e999, "b": "' + text.encode() + b'"}')
    assert time.process_time() - began < 10


@pytest.mark.parametrize("text", ["ada.l@example.co.uk", "<ada@x.org>", "a+b_c@d-e.museum, and", "to:x@y.de"])
def test_addresses_are_still_found(text: str) -> None:
    assert rowwise.personal_data(text) == ["email"]


# Text templates ------------------------------------------------------------------------------------------------------------

#: A row with a long list and a text.
ROW = {"q": "x" * 1000, "n": 7, "words": [f"w{n}" for n in range(2_000)], "deep": [[[["a"]]]], "about": {"a": 1, "b": "two"}}
ROW |= {"nothing": None, "flag": True, "shop": {"items": ["tea"], "count": 0.5}}


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in words %}" * 4 + "{% endfor %}" * 4,
        "{% for a in words for b in words %}{% endfor %}",
        "{% set s = q %}" + "{% set s = s ~ s %}" * 40 + "{{ s }}",
        "{% set s = q %}" + "{% set s = s + s %}" * 40 + "{{ s }}",
        "{% set s = n %}" + "{% set s = s * s %}" * 40 + "{{ s }}",
        "{% set s = words %}" + "{% set s = s + s %}" * 40 + "{{ s }}",
        "{% set s = words %}" + "{% set s = [s, s] %}" * 40 + "{{ s }}",
        "{% set s = deep %}" + "{% set s = s|sum(start=s) %}" * 40 + "{{ s }}",
        "{% with a = (q, q) %}{{ a }}{% endwith %}",
        "{% set s = {'a': q, 'b': q} %}{{ s }}",
        "{{ q|join(q) }}",
        "{{ words|join(q)|join(q) }}",
        "{{ q|replace('x', q) }}",
        "{{ q|replace('', q) }}",
        "{{ about|tojson(indent=99999999) }}",
        "{{ q.ljust(9999999999) }}",
        "{{ q.center(9999999999) }}",
        "{{ q.zfill(9999999999) }}",
        "{{ q.join(words) }}",
        "{{ q.replace('x', q) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ q['format'](1) }}",
        "{{ '%9999999999s' % q }}",
        "{{ q * 9999999999 }}",
        "{{ 9 ** 9999999999 }}",
        "{% set s %}{% for a in words %}{{ q }}{% endfor %}{% endset %}{{ s }}",
        "{% filter upper %}{{ q }}{% endfilter %}",
        "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
        "{% for a in deep recursive %}{{ loop(deep) }}{{ loop(deep) }}{% endfor %}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in words %}{{ q }}{% endfor %}",
        "{{ words|select('in', words)|map('string')|select('in', words)|list }}" * 200,
        "{% for a in words %}" * 25 + "{% endfor %}" * 25,
        "(" * 10 + "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ 10**30 }}",
        "{{ words.append(1) }}",
        "{{ about.update({'c': 1}) }}",
        "{{ q.__class__ }}",
        "{{ q['__class__'] }}",
        "{{ q.upper }}",
        "{{ words|map('upper') }}",
        "{{ nothing }}",
        "{{ q ~ nothing }}",
        "{% for w in words %}{{ loop }}{% endfor %}",
    ],
)
def test_a_template_that_would_run_or_grow_without_end_is_given_up(source: str) -> None:
    began = time.process_time()
    with pytest.raises(BadTemplate) as refused:
        TextTemplate(source).render(ROW)
    assert time.process_time() - began < 10 * textsandbox.SECONDS
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ q[:3] }} and {{ n + 1 }}", "xxx and 8"),
        ("{{ shop.items[0] }} {{ shop.count }} {{ shop.keys()|list|length }}", "tea 0.5 2"),
        ("{{ about }} {{ flag }} {{ words[:2] }} {{ flag ~ [1] }}", '{"a": 1, "b": "two"} true ["w0", "w1"] true[1]'),
        ("{{ about|upper }} {{ n|trim }} {{ ' a '|trim|title }}", '{"A": 1, "B": "TWO"} 7 A'),
        ("{{ nothing|default('none', true) }}{% if not nothing %}!{% endif %} {{ shop.items|string }}", 'none! ["tea"]'),
        ("{% for w in words[:3] %}{{ loop.index }}:{{ w }}{{ ', ' if not loop.last }}{% endfor %}", "1:w0, 2:w1, 3:w2"),
        ("{% for key, value in about.items() %}{{ key }}={{ value }};{% endfor %}", "a=1;b=two;"),
        ("{% for w in words if w in ('w1', 'w3') %}{{ w|upper }}{% else %}none{% endfor %}", "W1W3"),
        ("{{ [n, about.b]|join('/') }}", "7/two"),
        ("{% if n in [n, 8] %}yes{% endif %}", "yes"),
        ("{{ words[:2]|map('upper')|join(' ') }} {{ words|length }}", "W0 W1 2000"),
        ("{{ about|tojson }} {{ about|tojson(indent=2)|length }}", '{"a": 1, "b": "two"} 26'),
        ("{% set who = about.b ~ '!' %}{{ who }}{{ 'a' + 'b' }}", "two!ab"),
        ("{{ missing|default('none') }} {{ about.b.split('w')[0] }} {{ '50%' }} {{ 7 % 4 }}", "none t 50% 3"),
        ("{{ 'a,b'|replace(',', ' and ') }} {{ [1, 2, 3]|sum }} {{ words[:3]|select('in', ['w1'])|list }}", 'a and b 6 ["w1"]'),
        ("{% for w in words[:2] %}{{ loop.cycle('odd', 'even') }} {{ loop.length }} {% endfor %}", "odd 2 even 2 "),
    ],
)
def test_ordinary_templates_are_filled_in(source: str, text: str) -> None:
    assert TextTemplate(source).render(ROW) == text


# Chat templates of models from anywhere ------------------------------------------------------------------------------------


def test_a_model_whose_chat_template_never_ends_draws_with_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chatrender, "CLOCK_SECONDS", 2)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    grows = "{% set s = 'x' * 99999999 %}{% set s = s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s %}{{ s }}"
    for template in (loops, grows, "{{ messages", "{{ ''.__class__.__mro__ }}", "x" * (chatrender.LONGEST + 1)):
        assert chatprefix._rendered(template, "") == chatprefix.CHATML
    plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>\n{% endfor %}"
    assert chatprefix._rendered(plain, "Be kind.") == chatprefix.UserTurn("[system]Be kind.</s>\n[user]", ("</s>",))
