"""What filters keep and drop: row by row, and a row among those before it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxplatform.datasets import forecast, leaks, rowtext, schemas, split
from mlxplatform.datasets.filters import distinct, near, rowwise
from mlxplatform.datasets.filters.language import guess
from mlxplatform.datasets.filters.repetition import is_repetitive
from mlxplatform.datasets.filters.settings import Filters, parse_filters
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.inference.contract import Refusal

LLM, PLAIN = TEMPLATES["rag_qa"], TEMPLATES["sft_qa_pairs"]


def chat(answer: str, question: str = "q") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


@pytest.mark.parametrize(
    ("answer", "declines"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("I cannot provide that.", True),
        ("As an AI language model, I have no opinion.", True),
        ("Well, as a large language model I think so.", True),
        ("Es tut mir leid, das geht nicht.", True),
        ("The film is called I Cannot Sleep.", False),
        ("Sorrow is a feeling.", False),
        ("You can apologise by saying sorry.", False),
    ],
)
def test_refusals(answer: str, declines: bool) -> None:
    assert rowwise.is_refusal(answer) is declines
    assert (rowwise.judge_row(chat(answer), Filters(), LLM).reason == "refusal") is declines
    assert rowwise.judge_row(chat(answer), Filters(), PLAIN).reason == ""


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Write to ada.l@example.co.uk", ["email"]),
        ("Call +49 170 1234567", ["phone"]),
        ("Pay with 4111 1111 1111 1111", ["card_number"]),
        ("Number 4111 1111 1111 1112", []),
        ("IBAN DE89 3704 0044 0532 0130 00", ["iban"]),
        ("Server 192.168.10.20 is up, version 1.2.3 too", ["ip_address"]),
        ("token hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", ["secret"]),  # not-a-secret
        ("In 2024 there were 12,345 of 6.7 million", []),
    ],
)
def test_personal_data_is_flagged(text: str, kinds: list[str]) -> None:
    assert rowwise.personal_data(text) == kinds
    flagged = rowwise.judge_row(chat(text), Filters(pii="flag"), PLAIN)
    assert flagged.reason == "" and flagged.notes.get("pii", []) == kinds
    assert (rowwise.judge_row(chat(text), Filters(pii="drop"), PLAIN).reason == "personal_data") is bool(kinds)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The cat sat on the mat and looked at the moon for a while.", "en"),
        ("Der Hund ist nicht im Haus, sondern auf der Wiese mit dem Ball.", "de"),
        ("Le chat est dans la maison et il ne veut pas sortir avec nous.", "fr"),
        ("El perro no está en la casa porque se fue con los niños.", "es"),
        ("これは日本語の文です。", "ja"),
        ("这是一个中文句子。", "zh"),
        ("Это предложение на русском языке.", "ru"),
        ("42 + 17", "und"),
        ("Xyzzy plugh", "und"),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert guess(text) == language


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        ("lakes, njfjijjjjjjjjjjj", True),
        ("Rise, rise. The navy has sailed the seas. " * 8, True),
        ("1,000,000,000 and 0.333333333333 and ----------- and ========", False),
        ("Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream.", False),
        ("short short short", False),
        (" ".join(f"line {n} has value {n}" for n in range(30)), False),
    ],
)
def test_text_that_goes_round_in_circles(text: str, loops: bool) -> None:
    assert is_repetitive(text) is loops
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]}
    asked = rowwise.judge_row(row, Filters(repetition=True), TEMPLATES["rag_qa"])
    assert (asked.reason == "repetitive") is loops
    assert rowwise.judge_row(row, Filters(), TEMPLATES["rag_qa"]).reason == ""


def test_texts_that_were_cut_off_are_dropped_where_asked_for() -> None:
    end = "and then the river"
    assert rowwise.judge_row(chat(f"It rained {end} \n"), Filters(complete=True), PLAIN, {end}).reason == "cut_off"
    assert rowwise.judge_row(chat(f"It rained {end} rose."), Filters(complete=True), PLAIN, {end}).reason == ""
    assert rowwise.judge_row(chat(end), Filters(), PLAIN, {end}).reason == ""


def test_lengths_and_schemas() -> None:
    assert rowwise.judge_row(chat("abc"), Filters(min_chars=5), PLAIN).reason == "too_short"
    assert rowwise.judge_row(chat("abc"), Filters(max_chars=3), PLAIN).reason == "too_long"
    schema = {"type": "object", "required": ["n"]}
    assert rowwise.judge_row(chat('{"n":1}'), Filters(schema=schema), PLAIN).reason == ""
    assert "'n' is a required property" in rowwise.judge_row(chat("{}"), Filters(schema=schema), PLAIN).detail
    assert rowwise.judge_row(chat("text"), Filters(schema=schema), PLAIN).reason == "schema"
    assert rowwise.judge_row(chat('{"n":NaN}'), Filters(schema=schema), PLAIN).reason == "schema"


def test_a_schema_that_cannot_be_applied_costs_the_row_and_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("something was fetched"))
    without_end = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    schemas.check(without_end)
    for schema in (without_end, {"$ref": "http://127.0.0.1/x.json"}, {"$ref": "#nowhere"}):
        assert schemas.problem("{}", schema).startswith("the schema cannot be applied")
    tree = {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}
    schemas.check(tree)
    assert schemas.problem("[[],[[]]]", tree) == "" and schemas.problem("[[1]]", tree) == "0.0: 1 is not of type 'array'"


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ([], "filters"),
        ({"unknown": 1}, "filters.unknown"),
        ({"near_duplicates": 2}, "filters.near_duplicates"),
        ({"pii": "sometimes"}, "filters.pii"),
        ({"judge": {"threshold": 20}}, "filters.judge"),
        ({"judge": {"mood": 1}}, "filters.judge"),
        ({"schema": {"type": 5}}, "filters.schema"),
        ({"min_chars": 9, "max_chars": 3}, "filters.min_chars"),
        ({"languages": "en"}, "filters.languages"),
        ({"languages": ["english"]}, "filters.languages"),
        ({"languages": ["en", "xx"]}, "filters.languages"),
        ({"schema": {"$ref": "http://127.0.0.1/x.json"}}, "filters.schema"),
        ({"schema": {"items": [{"$ref": "#/$defs/none"}]}}, "filters.schema"),
    ],
)
def test_bad_filters_name_the_field(raw: Any, field: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_filters(LLM, raw)
    assert caught.value.param == field


def test_exact_duplicates_ignore_case_and_spacing_but_not_roles() -> None:
    rows = [chat("The answer"), chat(" the   ANSWER "), {"prompt": "q", "completion": "The answer"}, chat("q", "The answer")]
    assert [row_id for row_id, _, _ in distinct.exact(enumerate(rows))] == [1, 2]


def brute_lcs(a: str, b: str) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@settings(max_examples=100)
@given(st.text("abc", max_size=30), st.text("abc", max_size=30))
def test_the_quick_subsequence_is_the_right_one(a: str, b: str) -> None:
    assert distinct.lcs(list(a), list(b)) == brute_lcs(a, b)


def test_the_pool_finds_the_likest_member() -> None:
    pool = distinct.Pool(0.7, ["Name the capital of France", "Write a poem about the sea"])
    value, which = pool.likeness("Name the capital of Italy")
    assert value == pytest.approx(0.8) and which == "Name the capital of France"
    assert pool.likeness("Explain gravity") == (0.0, "")
    assert distinct.rouge_l("a b c d", "a c d e") == pytest.approx(0.75)


def test_near_duplicates_are_found_and_others_kept() -> None:
    base = "the quick brown fox jumps over the lazy dog while the sun sets behind the distant mountains of the north"
    other = "a completely different sentence about cooking pasta with tomatoes, basil, garlic and far too much cheese"
    rows = [{"text": base}, {"text": base + " today"}, {"text": other}, {"text": base.upper()}]
    assert [row_id for row_id, _, _ in near.near_duplicates(enumerate(rows), 0.8)] == [1, 3]


@settings(max_examples=20, deadline=None)
@given(st.sets(st.integers(0, 400), min_size=30, max_size=90), st.sets(st.integers(0, 400), min_size=30, max_size=90))
def test_signatures_estimate_the_overlap(a: set[int], b: set[int]) -> None:
    import numpy as np

    def signed(numbers: set[int]) -> np.ndarray:
        return near.signature(np.array([n * 2654435761 % 2**32 for n in numbers], dtype=np.uint64))

    truth = len(a & b) / len(a | b)
    estimate = np.count_nonzero(signed(a) == signed(b)) / near.PERMUTATIONS
    assert abs(estimate - truth) < 0.22


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5]))
def test_the_split_never_loses_a_row(rows: int, fraction: float) -> None:
    cut = split.split_at(rows, fraction)
    assert 0 <= cut <= rows and (cut >= 1 or rows == 0)
    if fraction == 0.1 and rows > 1:
        assert cut == max(1, rows * 9 // 10)


def test_leaks_between_parts() -> None:
    train = [chat("a", "What is one?"), chat("b", "Other")]
    held_out = [chat("a", "what is  one?"), chat("c", "What is one?"), chat("d", "New")]
    assert leaks.leaks(train, held_out) == {"same_row": 1, "same_question": 1}


def test_forecasts_scale_and_admit_doubt() -> None:
    sample = forecast.Sample(10, 20, 15, 1000, 2000, 30, 5.0)
    full = forecast.forecast(sample, 100, None, 16)
    assert full["rows"]["expected"] == 150 and full["rows"]["low"] < 150 < full["rows"]["high"]
    assert full["completion_tokens"] == 20_000 and full["calls"] == 300
    assert full["seconds"]["low"] < full["seconds"]["high"] == 50.0
    assert forecast.forecast(sample, 100, 30, 16)["sources"] == 20
    assert forecast.forecast(forecast.Sample(0, 0, 0, 0, 0, 0, 0.0), 5, None, 16)["rows"]["expected"] == 0
    assert forecast.proportion(0, 0) == (0.0, 0.0, 1.0)


def test_forecasts_towards_a_number_of_rows() -> None:
    sample = forecast.Sample(10, 10, 5, 1000, 2000, 10, 5.0)
    enough = forecast.forecast(sample, 100, 40, 16, rounds=20)
    assert enough["rows"] == {"expected": 40, "low": 40, "high": 40} and enough["sources"] == 80
    assert enough["seconds"]["high"] > 40 > enough["seconds"]["low"]
    once = forecast.forecast(sample, 100, 400, 16)
    assert once["sources"] == 100 and once["rows"]["low"] < once["rows"]["expected"] == 50 < once["rows"]["high"] < 100
    nothing = forecast.forecast(forecast.Sample(10, 10, 0, 0, 0, 10, 5.0), 100, 40, 16, rounds=20)
    assert nothing["rows"]["expected"] == 0 and nothing["sources"] == 200  # two rounds without a row end the run


@pytest.mark.parametrize("rows_each", [1, 5])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("sources", [10, 11, 20, 60, 300])
def test_forecasts_hold_as_often_as_they_say(rows_each: int, rate: float, sources: int) -> None:
    """Previews of ten sources whose rows stand or fall together, the hardest case, and the whole run after them."""
    drawn = random.Random(sources * 100 + rows_each)
    runs = [[rows_each * (drawn.random() < rate) for _ in range(sources)] for _ in range(400)]
    held = 0
    for run in runs:
        sample = forecast.Sample(10, 10 * rows_each, sum(run[:10]), 0, 0, 0, 1.0)
        rows = forecast.forecast(sample, sources, None, 16)["rows"]
        held += rows["low"] <= sum(run) <= rows["high"]
    assert held / len(runs) >= 0.855  # 90 % promised, three standard errors of 400 runs given


def test_texts_inside_rows() -> None:
    assert rowtext.asked({"prompt": "p", "chosen": "c", "rejected": "r"}) == "p"
    assert rowtext.answered({"prompt": "p", "chosen": "c", "rejected": "r"}) == "c"
    assert rowtext.length(chat("abc", "de")) == 5
