"""Readers of people's files: what is accepted, what is refused, and in which words. No database."""

from __future__ import annotations

import gzip
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxplatform.datasets import columnar, convert, rowtext, shape
from mlxplatform.datasets.imports import opening
from mlxplatform.datasets.imports.items import Problem, Unreadable
from mlxplatform.datasets.imports.opening import items, open_path, split_of, unpacked
from mlxplatform.datasets.imports.quick import QuickReader
from mlxplatform.datasets.imports.reading import splits_of
from mlxplatform.files import jsonl


def read(raw: bytes, form: str = "jsonl", name: str = "") -> list[Any]:
    return list(items(unpacked(io.BytesIO(raw)), form, name))


def rows_of(raw: bytes, form: str = "jsonl") -> list[Any]:
    found = read(raw, form)
    assert not [item for item in found if isinstance(item, Problem)], found
    return [item[1] for item in found]


def refusal(raw: bytes, form: str = "jsonl", name: str = "data") -> Unreadable:
    with pytest.raises(Unreadable) as caught:
        read(raw, form, name)
    return caught.value


# The quick reader ---------------------------------------------------------------------------------------------------

FORMS = ["messages", "text", "prompt_completion", "dpo", "alpaca", "sharegpt"]


def careful(raw: bytes) -> tuple[str, Any] | None:
    """What the careful reader makes of a line: (form, row), or None for a line it refuses."""
    row = jsonl.parse(jsonl.Line(1, 0, raw))
    if isinstance(row, jsonl.BadLine):
        return None
    try:
        form, made = convert.read(row)
    except convert.BadRow:
        return None
    return None if shape.problem(made)[1] else (form, made)


words = st.sampled_from(["", " ", "hi", 'say \\"x\\": y', "\\u0022:", "\\u003a", "tab :x", "ä", "\\ud83d\\ude00", "NaN"])
text = words.map(lambda word: f'"{word}"')
roles = st.sampled_from(['"user"', '"assistant"', '"system"', '"tool"', '"gpt"', '"human"', "null", "5"])
space = st.sampled_from(["", " ", "\t", "  "])
keys = st.sampled_from(
    [
        "messages",
        "text",
        "prompt",
        "completion",
        "chosen",
        "rejected",
        "instruction",
        "input",
        "output",
        "conversations",
        "m\\u0065ssages",
    ]
)
turn = st.builds(
    lambda role, said, extra, gap, names: f'{{"{names[0]}"{gap}:{role},"{names[1]}":{said}{extra}}}',
    roles,
    text,
    st.sampled_from(["", ',"content":"twice"', ',"role":"user"', ',"name":"x"', ',"weight":1']),
    space,
    st.sampled_from([("role", "content"), ("from", "value")]),
)
turns = st.lists(turn, max_size=4).map(lambda made: f"[{','.join(made)}]")
value = st.one_of(text, turns, st.sampled_from(["null", "5", "NaN", "{}", "[]"]))
line = st.lists(st.tuples(keys, space, value), max_size=4).map(
    lambda pairs: ("{" + ",".join(f'"{key}"{gap}:{said}' for key, gap, said in pairs) + "}").encode()
)
good_chat = st.lists(text, min_size=2, max_size=4).map(
    lambda said: (
        '{"messages":['
        + ",".join(f'{{"role":"{("user", "assistant")[n % 2]}","content":{one}}}' for n, one in enumerate(said))
        + "]}"
    ).encode()
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(line, good_chat), st.sampled_from(FORMS))
def test_the_quick_reader_never_disagrees_with_the_careful_one(raw: bytes, form: str) -> None:
    quick = QuickReader()
    quick.expect(form)
    found = quick(raw)
    if found is not None:
        expected = careful(raw)
        assert expected is not None and found.form == expected[0]
        assert json.loads(found.line) == expected[1] and found.line.endswith(b"}\n")


extra = st.sampled_from(["id", "source", "odd key: \u00e4", "score", "meta", "prompt", "text", "chosen", "rejected", "metadata"])
extras = st.lists(st.tuples(extra, space, value), max_size=4)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.one_of(line, good_chat), extras), min_size=2, max_size=6))
def test_it_never_disagrees_about_columns_without_a_use(found: list[tuple[bytes, list[tuple[str, str, str]]]]) -> None:
    """Rows after each other: what is learned from one must not mislead about the next."""
    quick = QuickReader()
    for raw, more in found:
        added = ",".join(f"{json.dumps(key)}{gap}:{said}" for key, gap, said in more)
        comma = b"," if added and raw != b"{}" else b""
        raw = raw[:-1] + comma + added.encode() + b"}"
        expected = careful(raw)
        quickly = quick(raw)
        if quickly is not None:
            assert expected is not None and (quickly.form, json.loads(quickly.line)) == expected
            assert quickly.left_out == convert.left_out(json.loads(raw), quickly.form)
        elif expected is not None:
            quick.expect(expected[0], convert.left_out(json.loads(raw), expected[0]))


def test_columns_without_a_use_are_learned_once() -> None:
    quick = QuickReader()
    quick.expect("messages", frozenset({"id", "source"}))
    chat = '"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]'
    full = quick(f'{{"id":7,{chat},"source":{{"site":["x"]}}}}'.encode())
    assert full is not None and full.left_out == {"id", "source"} and json.loads(full.line).keys() == {"messages"}
    some = quick(f'{{{chat},"id":null}}'.encode())
    assert some is not None and some.left_out == {"id"}
    assert quick(f'{{{chat},"score":1}}'.encode()) is None, "the careful reader sees a new column first"
    assert quick(f'{{{chat},"id":1,"id":2}}'.encode()) is None, "and a key that is there twice"
    assert quick(f'{{{chat},"id":{{"a":1,"a":2}}}}'.encode()) is None


def test_columns_that_would_make_another_form_are_left_to_the_careful_reader() -> None:
    quick = QuickReader()
    quick.expect("prompt_completion", frozenset({"chosen"}))
    assert quick(b'{"prompt":"p","completion":"c","chosen":"x"}') is not None
    quick.expect("prompt_completion", frozenset({"rejected"}))
    assert quick(b'{"prompt":"p","completion":"c","chosen":"x","rejected":"y"}') is None


@pytest.mark.parametrize(
    ("form", "raw"),
    [
        (
            "messages",
            b'{"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}',
        ),
        ("text", b'{"text":"say \\"x\\": y"}'),
        ("prompt_completion", '{"prompt": "ä", "completion": "b"}'.encode()),
        ("dpo", b'{"prompt":"p","chosen":"c","rejected":"r"}'),
        ("alpaca", b'{"instruction":"i","input":"x","output":"o"}'),
        ("sharegpt", b'{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}'),
    ],
)
def test_the_quick_reader_takes_the_usual_shapes(form: str, raw: bytes) -> None:
    quick = QuickReader()
    assert quick(raw) is None, "nothing is known about the file yet"
    quick.expect(form)
    found = quick(raw)
    assert found is not None and (found.form, json.loads(found.line)) == careful(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"text":"a","text":"b"}',
        b'{"text" :"a","text":"b"}',
        b'{"text":"a","text":"\\u0022:"}',
        b'{"text":"a","text":"\\"\\u003a"}',
        b'{"text":{"a":1,"b":[{"c":1,"c":2}]}}',
    ],
)
def test_no_key_twice_whatever_hides_it(raw: bytes) -> None:
    quick = QuickReader()
    quick.expect("text")
    assert quick(raw) is None
    [problem] = read(raw)
    assert problem.code == "duplicate_key" and "occurs twice" in str(problem)


# Files that are something else --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "form", "code", "words"),
    [
        (b"PK\x03\x04rest", "csv", "archive", "Excel workbook"),
        (b"PK\x03\x04rest", "jsonl", "archive", "ZIP"),
        (b"\xd0\xcf\x11\xe0rest", "csv", "archive", "Save the sheet as CSV"),
        (b"BZh91AY", "jsonl", "archive", "bzip2"),
        (b"\xfd7zXZ\x00", "jsonl", "archive", "xz"),
        (b"\x28\xb5\x2f\xfdxxxx", "jsonl", "archive", "Zstandard"),
        (b"%PDF-1.7", "jsonl", "not_rows", "PDF"),
        (b"\n <!DOCTYPE html><html>", "jsonl", "not_rows", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "parquet", "not_rows", "git lfs pull"),
        (b"version https://git-lfs.github.com/spec/v1\n", "jsonl", "not_rows", "git lfs pull"),
        ('{"text":"a"}'.encode("utf-16"), "jsonl", "utf16", "Save it as UTF-8"),
        ('{"text":"a"}'.encode("utf-16-le"), "jsonl", "utf16", "UTF-16"),
        ('{"text":"a"}'.encode("utf-16-be"), "jsonl", "utf16", "UTF-16"),
        ("prompt,completion\na,b".encode("utf-16"), "csv", "utf16", "UTF-16"),
        ('{"text":"a"}'.encode("utf-32"), "jsonl", "utf16", "UTF-32"),
        (b"PAR1 no parquet", "jsonl", "not_parquet", "damaged"),
        (b"ARROW1 no arrow", "jsonl", "not_arrow", "damaged"),
        (gzip.compress(b'{"text":"a"}\n' * 1000)[:-20], "jsonl", "broken_archive", "cut-off gzip"),
        (gzip.compress(b'{"text":"a"}\n' * 1000)[:12] + b"\xff" * 30, "jsonl", "broken_archive", "gzip"),
        (b"rows.jsonl".ljust(257, b"\0") + b"ustar\0", "jsonl", "archive", "tar archive"),
        (gzip.compress(gzip.compress(b"{}")), "jsonl", "archive", "twice with gzip"),
        (b"{\\rtf1 a}", "jsonl", "not_rows", "formatted text"),
        (b'<?xml version="1.0"?>', "csv", "not_rows", "XML"),
        (b"\x80\x04\x95abc", "jsonl", "not_rows", "pickle"),
        (b'{"train":[{"text":"a"}],"test":[{"text":"b"}]}', "json", "several_lists", "(train, test)"),
        (b'{\n"text":"a"\n}\n{\n"text":"b"\n}', "jsonl", "not_json", "line 4, column 1: a second value begins here"),
        (b'[{"text":"a"}]\n[{"text":"b"}]', "jsonl", "not_json", "line 2, column 1: a second value begins here"),
        (b"5", "json", "not_rows", "neither objects nor a list"),
        (b'[{"text":"a"},\n{"text":"b"},]', "json", "not_json", "line 2, column 14: a comma before"),
        (b'[{"text":"a"},\n {"text":tru}]', "json", "not_json", "line 2, column 10: expecting value"),
        (b'[{"text":"a"}\n {"text":"b"}]', "json", "not_json", "line 2, column 2: a comma or ']' belongs after item 1"),
        (b'[{"text":"a"}] x', "json", "not_json", "line 1, column 16: text after the array"),
        (b'[{"text":"a"},\n {"text":"\xff"}]', "json", "not_json", "line 2, column 11: not UTF-8"),
        (b'[{"text":"a"}', "json", "not_json", "cut off"),
        (b'{"data":[{"a":1}],"data":[]}', "json", "duplicate_key", "column 19: the key 'data' occurs twice"),
    ],
)
def test_other_things_are_named_with_what_to_do(raw: bytes, form: str, code: str, words: str) -> None:
    error = refusal(raw, form)
    assert error.code == code and words in error.message and error.message.startswith("data"), error.message


def test_a_wrong_ending_does_not_mislead() -> None:
    lines = b'{"text":"a"}\n{"text":"b"}\n'
    assert rows_of(lines, "json") == rows_of(lines, "csv") == rows_of(lines) == [{"text": "a"}, {"text": "b"}]
    array = b'[{"text":"a"},{"text":"b"}]'
    assert rows_of(array) == rows_of(array, "csv") == rows_of(array, "json")
    assert rows_of(jsonl.BOM + b'\n [\n{"text":"a"},{"text":"b"}]') == rows_of(array)
    assert rows_of(b'{"data":[{"text":"a"},{"text":"b"}]}', "json") == rows_of(array)
    assert rows_of(b'{"name":"x","tags":["t"],"data":[{"text":"a"},{"text":"b"}]}', "json") == rows_of(array)
    turns = {"prompt": "q", "chosen": [{"role": "assistant", "content": "a"}], "rejected": []}
    assert rows_of(json.dumps(turns, indent=1).encode(), "json") == [turns]
    one = b'{\n "messages": [{"role":"user","content":"q"}]\n}'
    assert rows_of(one) == rows_of(one, "json") == [{"messages": [{"role": "user", "content": "q"}]}]
    assert rows_of(gzip.compress(lines)) == rows_of(lines)


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "parquet"])
def test_a_file_made_to_fill_the_disk_is_left_packed(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(opening, "ALWAYS_UNPACKED", 1024**2)
    lines = b'{"text":"' + b"a" * 1000 + b'"}\n'
    assert len(rows_of(gzip.compress(lines * 1000))) == 1000, "a megabyte is no reason for doubt"
    found = refusal(gzip.compress(lines * 100_000), form)
    assert found.code == "archive" and "300 times" in found.message


def test_a_table_called_jsonl_is_recognised_as_one() -> None:
    [first, *_] = read(b"prompt,completion\na,b\n")
    assert "line 1, column 1" in str(first) and "the format is csv" in first.reason


def test_items_of_an_array_are_checked_like_lines() -> None:
    twice = read(b'[{"text":"a"},\n {"text":"b","text":"c"}]', "json")[1]
    assert str(twice) == "item 2, column 14: the key 'text' occurs twice in one object (line 2)"
    deep = '{"text":' + "[" * 70 + "]" * 70 + "}"
    found = read(f'[{{"text":"a","text":"b"}}, 5, {{"text":"ok"}}, {deep}, {{"a":{{"b":1,"b":2}}}}]'.encode(), "json")
    assert [item.code if isinstance(item, Problem) else item[0] for item in found] == [
        "duplicate_key",
        "not_an_object",
        "item 3",
        "too_deep",
        "duplicate_key",
    ]


def test_a_hundred_megabyte_line_is_one_problem() -> None:
    class Long(io.RawIOBase):
        """A line of 100 MB and a good one, never in memory as a whole."""

        left = 100 * 1024 * 1024
        end = b'\n{"text":"b"}\n'

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            piece = b"x" * min(len(buffer), self.left) if self.left else self.end[: len(buffer)]
            self.left -= len(piece) if self.left else 0
            self.end = self.end if piece[:1] == b"x" else self.end[len(piece) :]
            buffer[: len(piece)] = piece
            return len(piece)

    found = list(jsonl.rows(io.BufferedReader(Long())))  # type: ignore[arg-type]
    assert [(item.line, item.code) if isinstance(item, jsonl.BadLine) else item[1] for item in found] == [
        (1, "line_too_long"),
        {"text": "b"},
    ]


# CSV ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"prompt,completion\na,b\n",
        b"prompt,completion\r\na,b\r\n",
        b"prompt,completion\ra,b\r",
        b"prompt,completion\ra,b",
        b"\xef\xbb\xbfprompt;completion\na;b",
        b"sep=;\r\nprompt;completion\r\na;b\r\n",
        b"prompt\tcompletion\na\tb\n\n",
        b'"prompt","completion"\n"a","b"\n,\n',
        b"\n\r\nprompt,completion\na,b\n",
        b"sep=;\n\nprompt;completion\na;b\n",
        b'"prompt" , completion\na,b'.replace(b'" ', b'"'),
    ],
)
def test_tables_as_spreadsheets_write_them(raw: bytes) -> None:
    assert rows_of(raw, "csv") == [{"prompt": "a", "completion": "b"}]


def test_line_ends_and_quotes_inside_cells_stay() -> None:
    raw = b'prompt,completion\r\n"a\r\nb, ""c""","d\ne"\r\nf,g,h\r\n'
    first, second = read(raw, "csv")
    assert first == ("line 2", {"prompt": 'a\r\nb, "c"', "completion": "d\ne"})
    assert str(second) == "line 5: 3 cells where the header has 2 (prompt, completion)"


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (b"prompt,completion\na,b\nc,\xe4\n", "not_utf8", "line 3, column 3 is not UTF-8 (byte 0xe4)"),
        (b'prompt,completion\na,"b\nc,d\n', "not_csv", "line 2 is not valid CSV: a quoted cell begins here and is never closed"),
        (b'prompt,completion\na,b\nc,"d"e\n', "not_csv", "line 3 is not valid CSV: there is text after a closing quote"),
        (b"prompt,completion\na,b\x00\n", "nul", "line 2, column 4 contains a NUL byte"),
        (b"prompt,prompt\na,b\n", "no_header", "different name for every column"),
        (b"prompt,answer,prompt\na,b,c\n", "no_header", "columns 1 and 3 are both called 'prompt'"),
        (b",prompt,\na,b,c\n", "no_header", "columns 1 and 3 have no name"),
        (b",,\na,b,c\n", "no_header", "first line is empty"),
    ],
)
def test_broken_tables_name_line_and_column(raw: bytes, code: str, words: str) -> None:
    error = refusal(raw, "csv", "x.csv")
    assert error.code == code and words in error.message and error.message.startswith("x.csv"), error.message


def test_an_empty_table_has_no_rows() -> None:
    assert read(b"", "csv") == [] and read(b"prompt,completion\n", "csv") == []


def test_cells_with_conversations_are_read_as_such() -> None:
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a, b"}]
    cell = json.dumps(chat).replace('"', '""')
    good, broken = read(f"id,messages\n1,\"{cell}\"\n2,\"[{{'role': 'user'}}]\"\n".encode(), "csv", "x.csv")
    assert good == ("line 2", {"id": "1", "messages": chat})
    assert str(broken) == "x.csv line 3: messages is not JSON: single quotes; JSON strings need double quotes"


# Parquet and Arrow --------------------------------------------------------------------------------------------------

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RICH: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]},
    {
        "messages": [
            {"role": "user", "content": "q\u2028"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "r", "tool_call_id": "c1", "name": "f"},
            {"role": "assistant", "content": "a"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "metadata": {"n": 1, "deep": [None, {"x": 1.5}]},
    },
]


def test_parquet_gives_back_what_it_was_given() -> None:
    raw = b"".join(columnar.pieces(lambda: RICH * 6000))
    found = rows_of(raw, "parquet")
    assert len(found) == 12_000 and found[:2] == RICH
    assert rows_of(raw, "jsonl") == found, "a Parquet file is known by its content"


def test_what_columns_hold_in_place_of_text_is_named() -> None:
    values = (b"a", Decimal("1.5"), date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), ["a"], None)
    said = [shape.problem({"text": value})[1] for value in values]
    assert said == [f"must be text, got {kind}" for kind in ("bytes", "a number", "a date", "a time", "a list", "null")]


def test_parquet_made_by_others() -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"prompt": ["a", "c"], "completion": ["b", None], "id": [1, 2], "score": [0.5, float("nan")]})
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    first, second = rows_of(sink.getvalue(), "parquet")
    assert first == {"prompt": "a", "completion": "b", "id": 1, "score": 0.5} and "completion" not in second


@pytest.mark.parametrize("kind", ["new_stream", "new_file"])
def test_arrow_as_the_datasets_library_saves_it(kind: str, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.ipc

    table = pyarrow.table({"text": [f"t{n}" for n in range(2500)]})
    path = tmp_path / "data-00000-of-00001.arrow"
    with path.open("wb") as file, getattr(pyarrow.ipc, kind)(file, table.schema) as writer:
        writer.write_table(table)
    with open_path(path) as stream:
        assert [item[1]["text"] for item in items(stream, "arrow")] == [f"t{n}" for n in range(2500)]


# Names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00001.parquet", "train"),
        ("data/validation.jsonl", "valid"),
        ("default/test/0000.parquet", "test"),
        ("dev/rows.jsonl", "valid"),
        ("test-data/rows.jsonl", ""),
        ("latest.jsonl", ""),
        ("trainer.jsonl", ""),
    ],
)
def test_splits_by_name(name: str, split: str) -> None:
    assert split_of(name) == split


def test_one_split_for_all_divides_nothing() -> None:
    assert splits_of(["train-0.jsonl", "train-1.jsonl"]) == ["", ""] == splits_of(["test.jsonl", "test-1.jsonl"])
    assert splits_of(["train.jsonl", "dev.jsonl"]) == ["train", "valid"]
    assert splits_of(["rows.jsonl", "dev.jsonl"]) == ["", "valid"]
    with pytest.raises(Unreadable, match=r"such as more\.jsonl"):
        splits_of(["more.jsonl", "train.jsonl"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200), st.sampled_from(["jsonl", "json", "csv", "parquet", "arrow"]))
def test_no_bytes_break_a_reader(raw: bytes, form: str) -> None:
    try:
        read(raw, form)
    except Unreadable as error:
        assert error.message


# Forms that people have ------------------------------------------------------------------------------------------------

ASKED, BETTER, WORSE = (
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "a"},
    {"role": "assistant", "content": "b"},
)
RULE = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("row", "becomes"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, "1"]}, BETTER]},
            {"messages": [{"role": "user", "content": "q1"}, BETTER]},
        ),
        ({"chosen": [ASKED, BETTER], "rejected": [ASKED, WORSE]}, {"prompt": "q", "chosen": "a", "rejected": "b"}),
        (
            {"chosen": [RULE, ASKED, BETTER], "rejected": [RULE, ASKED, WORSE], "score": 1},
            {"prompt": [RULE, ASKED], "chosen": "a", "rejected": "b"},
        ),
        ({"prompt": [ASKED], "chosen": [BETTER], "rejected": [WORSE]}, {"prompt": "q", "chosen": "a", "rejected": "b"}),
        (
            {"prompt": [ASKED, WORSE, ASKED], "chosen": "a", "rejected": "b"},
            {"prompt": [ASKED, WORSE, ASKED], "chosen": "a", "rejected": "b"},
        ),
        (
            {"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "\n\nHuman: q\n\nAssistant: b"},
            {"prompt": "q", "chosen": "a", "rejected": "b"},
        ),
        (
            {
                "chosen": "\n\nHuman: q\n\nAssistant: b\n\nHuman: q\n\nAssistant: a",
                "rejected": "\n\nHuman: q\n\nAssistant: b\n\nHuman: q\n\nAssistant: c",
            },
            {"prompt": [ASKED, WORSE, ASKED], "chosen": "a", "rejected": "c"},
        ),
    ],
)
def test_a_form_that_people_have_becomes_ours(row: dict[str, Any], becomes: dict[str, Any]) -> None:
    _, made = convert.read(row)
    assert made == becomes and shape.problem(made) == ("", "")
    assert rowtext.asked(made).endswith(("q", "q1")) and rowtext.answered(made).endswith("a") and rowtext.length(made) > 0


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, BETTER]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [5]}, BETTER]}, "messages[0].content[0]"),
        ({"chosen": [ASKED, BETTER], "rejected": [RULE, WORSE]}, "rejected"),
        ({"chosen": [BETTER], "rejected": [WORSE]}, "chosen"),
        ({"chosen": "a", "rejected": "b"}, "row"),
        ({"chosen": "a", "rejected": [WORSE]}, "chosen"),
        ({"prompt": {"a": 1}, "chosen": "a", "rejected": "b"}, "prompt"),
    ],
)
def test_what_is_no_text_and_no_pair_is_named(row: dict[str, Any], field: str) -> None:
    with pytest.raises(convert.BadRow) as refused:
        convert.read(row)
    assert refused.value.field == field


def test_preferences_of_turns_are_told_apart() -> None:
    rows = [{"prompt": [ASKED], "chosen": [BETTER], "rejected": [{"role": "assistant", "content": said}]} for said in "xyz"]
    assert len({rowtext.digest(row) for row in rows}) == 3
    assert shape.problem({"prompt": [1], "chosen": "a", "rejected": "b"})[0] == "prompt[0]"


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"messages": [ASKED, {"role": "assistant", "content": "a\x00"}]}, "messages[1].content"),
        ({"prompt": "a\x00b", "completion": "c"}, "prompt"),
        ({"text": "\x00"}, "text"),
    ],
)
def test_a_nul_character_is_named_however_it_was_written(row: dict[str, Any], field: str) -> None:
    assert shape.problem(row) == (field, shape.NUL_INSIDE)
    quick = QuickReader()
    quick.expect(shape.format_of(row))
    assert quick(json.dumps(row).encode()) is None
