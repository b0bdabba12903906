"""The JSON Lines reader: what is a line, what is a row, and what is said about everything else."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxplatform.files import jsonl
from mlxplatform.files.jsonl import BadLine


def read(raw: bytes, **options: int) -> tuple[list[dict[str, object]], list[BadLine]]:
    good: list[dict[str, object]] = []
    bad: list[BadLine] = []
    for item in jsonl.rows(io.BytesIO(raw), **options):
        if isinstance(item, BadLine):
            bad.append(item)
        else:
            good.append(item[1])
    return good, bad


def test_a_byte_order_mark_is_no_content() -> None:
    raw = b'{"messages":[]}\n'
    assert read(jsonl.BOM + raw) == read(raw) == ([{"messages": []}], [])
    together = read(jsonl.BOM * 2 + raw + jsonl.BOM + raw + jsonl.BOM)  # as cat leaves it of files from Windows
    assert together == ([{"messages": []}] * 2, [])


def test_unicode_line_separators_are_content() -> None:
    text = "a\u2028b\u2029c\u0085d"
    good, bad = read(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
    assert good == [{"text": text}] and not bad


@pytest.mark.parametrize(
    ("raw", "rows"),
    [
        (b'{"a":1}\r\n{"a":2}\r\n', 2),
        (b'{"a":1}\r{"a":2}\r', 2),
        (b'{"a":1}\r{"a":2}', 2),
        (b'{"a":1}\n\n  \n{"a":2}  ', 2),
        (b"\n\r\n  \n", 0),
        (b"", 0),
    ],
)
def test_line_ends(raw: bytes, rows: int) -> None:
    good, bad = read(raw)
    assert len(good) == rows and not bad


def test_every_bad_line_is_named_with_its_reason() -> None:
    raw = (
        b'{"a":1}\n{"a":1},\n{\'a\':1}\n{"a":NaN}\n// note\n{"a":1}{"b":2}\n{"a":"cut\n[1]\n"text"\n{"a":1,}\n{"a":-Infinity}\n'
        b'{"a":1,"a":2}\n{"a":"\\ud800"}\n{"a":"\xff"}\n{"a":"\x00"}\n'
    )
    good, bad = read(raw)
    assert good == [{"a": 1}]
    assert [item.line for item in bad] == list(range(2, 16))
    said = {item.line: item.reason for item in bad}
    for line, words in {
        2: "ends with a comma",
        3: "single quotes",
        4: "NaN is not JSON",
        5: "comment",
        6: "two values on one line",
        7: "cut off",
        8: "expected an object, got a list",
        9: "expected an object, got a string",
        10: "comma before",
        11: "Infinity is not JSON",
        12: "'a' occurs twice",
        13: "surrogate",
        14: "not UTF-8",
        15: "NUL",
    }.items():
        assert words in said[line], (line, said[line])


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        (b'{"a":1,"b":{"a":2,"c":"{:","a":3}}', 28, "'a' occurs twice"),
        (b'{"\\u0061" : 1, "b": [{"x":1},{"x":2}], "a":2}', 40, "'a' occurs twice"),
        (b'{"a":' + b"[" * 70 + b"]" * 70 + b"}", 69, "nested deeper than 64"),
        (b'{"a":' + b"9" * 5000 + b"}", 6, "thousands of digits"),
        (b'{"a":None}', 6, "None is Python; JSON has null"),
        (b'{"a":[True]}', 7, "True is Python; JSON has true"),
        ('\u200b{"a":1}'.encode(), 1, "an invisible character (U+200B)"),
        ('\u00a0{"a":1}'.encode(), 1, "(U+00A0)"),
        (b'\x1e{"a":1}', 1, "(U+001E)"),
        (b"\x1a", 1, "(U+001A)"),
        (b'{"a":1,', 8, "each object belongs on one line"),
    ],
)
def test_mistakes_are_named_with_their_column(line: bytes, column: int, words: str) -> None:
    _, [bad] = read(b'{"a":1}\n' + line + b"\n")
    assert (bad.line, bad.column) == (2, column) and words in bad.reason


def test_keys_written_with_spaces_or_inside_strings_are_no_duplicates() -> None:
    good, bad = read(b'{"a" : {"b"\t:1}, "c": "say \\"x\\": y, {\\"a\\":1}"}\n')
    assert len(good) == 1 and not bad


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b'[\n {"a":1},\n {"a":2}\n]', "array"),
        (b'{\n "a": 1\n}', "pretty"),
        ('{"a":1}'.encode("utf-16"), "utf16"),
    ],
)
def test_other_kinds_of_file_are_named(raw: bytes, code: str) -> None:
    with pytest.raises(jsonl.NotLines) as caught:
        read(raw)
    assert caught.value.code == code


def test_an_overlong_line_is_skipped_and_the_next_is_read() -> None:
    raw = b'{"a":"' + b"x" * 500 + b'"}\n{"a":2}\n'
    good, bad = read(raw, max_line=100)
    assert good == [{"a": 2}]
    assert [(item.line, item.code) for item in bad] == [(1, "line_too_long")]


def test_nesting_is_bounded() -> None:
    deep = b'{"a":' * 100 + b"1" + b"}" * 100
    assert read(deep)[1][0].code == "too_deep"
    assert read(b'{"a":' * 100_000)[1][0].line == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(-(2**53), 2**53), st.lists(st.text(), max_size=3)))),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
def test_whatever_was_written_is_read(rows: list[dict[str, object]], end: str, ascii_only: bool) -> None:
    raw = end.join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)
    assert read(raw.encode(errors="surrogatepass")) == (rows, [])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=30), max_size=8))
def test_offsets_point_at_the_lines(parts: list[bytes]) -> None:
    raw = b"\n".join(parts)
    try:
        found = [line for line in jsonl.lines(io.BytesIO(raw)) if not isinstance(line, BadLine)]
    except jsonl.NotLines:
        return
    for line in found:
        assert raw[line.start : line.start + len(line.raw)] == line.raw
