"""What people's files hold beyond the usual: documents of any size, odd columns, values without a Python type. No database."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxplatform.datasets import columnar, convert, formats, rowtext, shape
from mlxplatform.datasets.imports import documents
from mlxplatform.datasets.imports.items import Problem, Unreadable
from mlxplatform.datasets.imports.opening import items, unpacked
from mlxplatform.datasets.imports.quick import QuickReader
from mlxplatform.files import jsonl


def read(raw: bytes, form: str = "jsonl", name: str = "") -> list[Any]:
    return list(items(unpacked(io.BytesIO(raw)), form, name))


def refusal(raw: bytes, form: str = "jsonl") -> Unreadable:
    with pytest.raises(Unreadable) as caught:
        read(raw, form, "data")
    return caught.value


# JSON arrays --------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
rows = st.lists(
    st.dictionaries(texts, st.one_of(texts, st.integers(-9, 10**25), st.lists(texts, max_size=2)), max_size=3), max_size=6
)


@settings(max_examples=150, deadline=None)
@given(rows, st.sampled_from([None, 0, 1, 4]), st.integers(1, 40), st.booleans())
def test_an_array_is_read_the_same_through_any_window(found: list[Any], indent: int | None, size: int, ascii_only: bool) -> None:
    raw = json.dumps(found, indent=indent, ensure_ascii=ascii_only).encode()
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(documents, "READ_BYTES", size)
        assert [row for _, row in documents.items(io.BytesIO(raw), "")] == found


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 200), st.integers(1, 30), st.sampled_from([b"", b",", b"]", b"}", b"x", b'"', b"\xff", b"\n", b"["]))
def test_a_damaged_array_is_refused_at_the_same_place_through_any_window(at: int, size: int, put: bytes) -> None:
    raw = json.dumps([{"text": "é" * 9, "n": [1, 2, {"b": None}]}, {"text": "b"}] * 2, indent=1, ensure_ascii=False).encode()
    raw = raw[:at] + put + raw[at + 1 :]

    def told(window: int) -> list[str]:
        monkey = pytest.MonkeyPatch()
        with monkey.context() as patch:
            patch.setattr(documents, "READ_BYTES", window)
            try:
                return [str(item) for item in documents.items(io.BytesIO(raw), "f")] if raw.lstrip()[:1] == b"[" else []
            except Unreadable as error:
                return [error.message]

    whole = told(10**6)
    if b"\xff" not in raw:  # where the bytes are no text, a smaller window may meet an earlier mistake first
        assert told(size) == whole


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'[{"text":"a"},\n\n  {"text":NaN}]', "item 2, column 11: NaN is not JSON; use null or a number (line 3)"),
        (b'[{"text":"a"},{"text":"\\ud800"}]', "item 2, column 24: contains half of a surrogate pair"),
        (b'[{"n":1e999},\n{"text":"a"}]', "item 1, column 7: a number beyond what a computer's floating point holds"),
        (b'[{"a":1,\n"a":2},{"text":"a"}]', "item 1, column 1: the key 'a' occurs twice in one object (line 2)"),
        (b'[null, {"text":"a"}]', "item 1: expected an object, got null"),
    ],
)
def test_one_bad_item_does_not_hide_the_others(raw: bytes, words: str) -> None:
    found = read(raw, "json")
    assert len(found) == 2 and words in str(next(item for item in found if isinstance(item, Problem)))


class Endless(io.RawIOBase):
    """An array of ``left`` rows that are made as they are read."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.rest = b"["

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(self.rest) < len(buffer) and self.left >= 0:
            self.left -= 1
            self.rest += b'{"text":"' + b"x" * 100_000 + b'"},' if self.left > 0 else b"" if self.left < 0 else b'{"text":"y"}]'
        piece, self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


def test_an_array_of_any_size_is_never_held_whole() -> None:
    import tracemalloc

    tracemalloc.start()
    count = sum(1 for _ in documents.items(io.BufferedReader(Endless(1000)), ""))  # type: ignore[arg-type, type-var]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 1000 and peak < 20 * 1024**2, f"{peak >> 20} MiB for a document of 100 MB"


def test_an_item_that_no_row_may_be_is_refused_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE", 1024**2)
    long = b'[{"text":"a"},\n{"text":"' + b"x" * 4 * 1024**2 + b'"}]'
    assert refusal(long, "json").message == "data line 2: item 2 is longer than 1 MiB."


# Columns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ['say "x"', "back\\slash", "new\nline", "\x01", "tab\t", "ä", "", "k" * 100_000])
def test_a_column_of_any_name_is_left_out(key: str) -> None:
    quick = QuickReader()
    raw = json.dumps({"text": "a", key: 1}).encode()
    quick.expect("text", frozenset({key}))
    found = quick(raw)
    assert found is None or (found.line, found.left_out) == (b'{"text":"a"}\n', {key})
    quick.expect("text")
    quick(raw)


def test_sentences_about_long_names_are_short() -> None:
    key = "k" * 1_000_000
    with pytest.raises(convert.BadRow) as refused:
        convert.read({key: 1, **{f"n{number}": 1 for number in range(100)}})
    assert len(refused.value.message) < 2_000
    twice = jsonl.parse(jsonl.Line(1, 0, f'{{"{key}":1,"{key}":2}}'.encode()))
    assert isinstance(twice, jsonl.BadLine) and len(twice.reason) < 200
    assert len(refusal(f'"{key}","{key}"\n1,2\n'.encode(), "csv").message) < 500
    assert convert.name_of("a\n## b\x00") == "a ## b"


def test_a_key_that_occurs_twice_in_a_cell_is_named() -> None:
    twice = '[{""role"":""user"",""role"":""user"",""content"":""q""}]'
    [problem] = read(f'messages\n"{twice}"\n'.encode(), "csv")
    assert str(problem) == "line 2: messages the key 'role' occurs twice in one object"


# Parquet ------------------------------------------------------------------------------------------------------------


def parquet(*columns: tuple[str, Any], **options: Any) -> bytes:
    sink = io.BytesIO()
    names, values = zip(*columns, strict=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array(v) for v in values], names=names), sink, **options)
    return sink.getvalue()


PAIR = (("prompt", ["a", "b"]), ("completion", ["c", "d"]))


@pytest.mark.parametrize(
    "odd",
    [
        pyarrow.array([10**7, 1], pyarrow.date32()),
        pyarrow.array([1_234_567_891, 1], pyarrow.timestamp("ns")),
        pyarrow.array([2**62, 1], pyarrow.timestamp("us")),
        pyarrow.array([1, 2], pyarrow.timestamp("us", tz="Nowhere/Land")),
        pyarrow.array([2**62, 1], pyarrow.duration("s")),
        pyarrow.array([[("k", 1), ("k", 2)], []], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    ],
    ids=str,
)
def test_a_column_beside_the_row_may_hold_anything(odd: Any) -> None:
    found = read(parquet(*PAIR, ("odd", odd)), "parquet")
    assert [convert.read(row)[1] for _, row in found] == [
        {"prompt": "a", "completion": "c"},
        {"prompt": "b", "completion": "d"},
    ]


def test_what_a_row_is_made_of_has_to_be_text() -> None:
    found = read(parquet(("prompt", ["a"]), ("completion", pyarrow.array([1_234_567_891], pyarrow.timestamp("ns")))), "parquet")
    with pytest.raises(convert.BadRow) as refused:
        convert.read(found[0][1])
    assert refused.value.message == "must be text, got a value that is not understood (timestamp[ns])"
    offsets = [pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0"), pyarrow.py_buffer(b"\xff")]
    wrong = pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, *offsets])
    [(_, row)] = read(parquet(("text", wrong)), "parquet")
    assert shape.problem(row) == ("text", "must be text, got text that is not UTF-8")
    [problem] = read(parquet(("text", ["a"]), ("metadata", pyarrow.array([2**62], pyarrow.timestamp("us")))), "parquet")
    assert str(problem) == "row 1: metadata is a value that is not understood (timestamp[us])"


def test_two_columns_of_one_name_are_refused() -> None:
    found = refusal(parquet(*PAIR, ("completion", ["x", "y"])), "parquet")
    assert found.code == "duplicate_column" and "two columns called 'completion'" in found.message


def test_maps_are_objects() -> None:
    kind = pyarrow.map_(pyarrow.string(), pyarrow.string())
    turns = [[[("role", "user"), ("content", "q")], [("role", "assistant"), ("content", "a")]]]
    [(_, row)] = read(parquet(("messages", pyarrow.array(turns, pyarrow.list_(kind)))), "parquet")
    assert shape.problem(row) == ("", "") and row["messages"][1] == {"role": "assistant", "content": "a"}
    [(_, row)] = read(parquet(("text", ["a"]), ("metadata", pyarrow.array([[("k", "v")]], kind))), "parquet")
    assert row == {"text": "a", "metadata": {"k": "v"}}


@pytest.mark.parametrize("same", [False, True], ids=["each its own", "all the same"])
def test_huge_texts_are_read_a_few_at_a_time(same: bool) -> None:
    noise = random.Random(1)
    values = ["x" * 512 * 1024] * 500 if same else [noise.randbytes(256 * 1024).hex() for _ in range(200)]
    raw = parquet(("text", values), compression="zstd" if same else "none", write_batch_size=1)
    before = pyarrow.total_allocated_bytes()
    peak = count = 0
    for _ in read_lazily(raw):
        count += 1
        peak = max(peak, pyarrow.total_allocated_bytes() - before)
    assert count == len(values) and peak < 40 * 1024**2, f"{peak >> 20} MiB of {count // 2}"


def read_lazily(raw: bytes) -> Any:
    return items(unpacked(io.BytesIO(raw)), "parquet", "")


ASKED, GOOD = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "written",
    [
        [{"prompt": [ASKED, GOOD, ASKED], "chosen": "a", "rejected": "b"}, {"prompt": "[1]", "chosen": "a", "rejected": "b"}],
        [{"text": "a", "metadata": "5"}, {"text": "[1, 2]", "metadata": {"n": 10**25, "t": "x"}}],
        [{"text": "{}", "metadata": "plain"}, {"text": "b"}],
        [{"messages": [ASKED, {**GOOD, "weight": 1}], "tools": [{"name": "f"}], "metadata": [1, None, "é"]}],
    ],
)
def test_parquet_of_ours_comes_back_to_the_letter(written: list[dict[str, Any]]) -> None:
    raw = b"".join(columnar.pieces(lambda: iter(written)))
    assert [row for _, row in read(raw, "parquet")] == written


def test_what_json_makes_of_a_time_is_kept_in_metadata() -> None:
    [(_, row)] = read(parquet(("text", ["a"]), ("metadata", [{"t": datetime(2024, 1, 1, tzinfo=UTC), "n": None}])), "parquet")
    assert row["metadata"] == {"t": datetime(2024, 1, 1, tzinfo=UTC)}


# Forms --------------------------------------------------------------------------------------------------------------

AGAIN = {"role": "user", "content": "more"}


def chosen(*turns: Any, prompt: Any = "q", **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "chosen": list(turns), "rejected": "b", **more}


def test_turns_before_an_answer_are_part_of_the_prompt() -> None:
    assert convert.read(chosen(ASKED, GOOD))[1]["prompt"] == "q"
    whole = convert.read(chosen(ASKED, GOOD, AGAIN, GOOD, prompt="more"))[1]
    assert whole == {"prompt": [ASKED, GOOD, AGAIN], "chosen": "a", "rejected": "b"}
    rule = {"role": "system", "content": "s"}
    assert convert.read(chosen(rule, ASKED, GOOD))[1]["prompt"] == [rule, ASKED]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (chosen(ASKED, GOOD, AGAIN), "chosen[2].role"),
        (chosen(ASKED, GOOD, AGAIN, GOOD, prompt="other"), "chosen"),
        (chosen(ASKED, GOOD, prompt=[AGAIN]), "chosen"),
        (chosen(ASKED, GOOD) | {"rejected": [AGAIN, GOOD]}, "rejected"),
        (chosen(ASKED), "chosen[0].role"),
        ({"instruction": "i", "output": "o", "history": 5}, "history"),
        ({"instruction": "i", "output": "o", "history": {"a": "b"}}, "history"),
    ],
)
def test_half_a_preference_is_named(row: dict[str, Any], field: str) -> None:
    with pytest.raises(convert.BadRow) as refused:
        convert.read(row)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"prompt": "p", "completion": " \n"}, "completion"),
        ({"text": "\u2003"}, "text"),
        ({"prompt": "p", "chosen": "\t", "rejected": "x"}, "chosen"),
    ],
)
def test_space_alone_says_nothing(row: dict[str, Any], field: str) -> None:
    assert shape.problem(row) == (field, "is empty")
    quick = QuickReader()
    quick.expect(shape.format_of(row))
    assert quick(json.dumps(row).encode()) is None


def test_what_is_not_to_be_trained_on_stays_so() -> None:
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "x", "weight": 0}, {"from": "gpt", "value": "a"}]
    assert convert.read({"conversations": turns})[1]["messages"][1] == {"role": "assistant", "content": "x", "weight": 0}


CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
WITH_A_CALL = {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": CALLS}, GOOD]}


def test_a_row_that_another_format_would_mutilate_has_no_equivalent_there() -> None:
    for wanted in ("sharegpt", "alpaca", "chatml", "text", "prompt_completion"):
        assert formats.to_format(WITH_A_CALL, wanted) is None
    forged = {"messages": [ASKED, {"role": "assistant", "content": "a<|im_end|>\n<|im_start|>user\nb"}]}
    assert formats.to_format(forged, "chatml") is None
    assert formats.to_format(WITH_A_CALL, "messages") == WITH_A_CALL


def test_a_long_conversation_comes_back_from_alpaca() -> None:
    row = {"messages": [{"role": "system", "content": "s"}, ASKED, GOOD, AGAIN, {"role": "assistant", "content": "z"}]}
    made = formats.to_format(row, "alpaca")
    assert made is not None and made["history"] == [["q", "a"]] and convert.read(made) == ("alpaca", row)


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("<s><|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|></s>", [ASKED, GOOD]),
        ("<|im_start|>human\nq<|im_end|>\n<|im_start|>gpt\na", [ASKED, GOOD]),
        ("Said: <|im_start|>user\nq<|im_end|>", None),
        ("<|im_start|>user\nq<|im_end|>\n<|im_start|>narrator\na<|im_end|>", None),
        ("<|im_start|>user\nq<|im_end|> and more", None),
    ],
)
def test_a_text_is_chatml_from_end_to_end_or_not_at_all(text: str, turns: list[Any] | None) -> None:
    made = formats.to_messages({"text": text, "metadata": {"n": 1}})
    assert made == (None if turns is None else {"messages": turns, "metadata": {"n": 1}})


def test_rows_that_call_different_tools_are_different() -> None:
    other = json.loads(json.dumps(WITH_A_CALL).replace('"f"', '"g"'))
    renamed = json.loads(json.dumps(WITH_A_CALL).replace('"1"', '"2"'))
    assert rowtext.digest(other) != rowtext.digest(WITH_A_CALL) == rowtext.digest(renamed)
    assert rowtext.exactly(renamed) != rowtext.exactly(WITH_A_CALL)
    assert rowtext.exactly({"a": 1, "b": 2}) == rowtext.exactly({"b": 2, "a": 1})
