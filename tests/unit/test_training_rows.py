"""Training rows as people have them: what is understood, and what is bad about one that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxplatform.training import rows

ASKED = {"role": "user", "content": "q"}
ANSWERED = {"role": "assistant", "content": "a"}
#: Values of every JSON type.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def called(arguments: Any, name: Any = "look_up") -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize("arguments", ['{"city":"Rome"}', {"city": "Rome"}])
def test_arguments_of_a_call_may_be_text_or_the_object_itself(arguments: Any) -> None:
    example = rows.example({"messages": [ASKED, called(arguments)]})

    call = (example.turns[1].tool_calls or [])[0]
    assert isinstance(call.arguments, str) and json.loads(call.arguments) == {"city": "Rome"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": [{"role": ["user"], "content": "q"}, ANSWERED]}, "messages[0].role"),
        ({"messages": [{"role": {}, "content": "q"}, ANSWERED]}, "messages[0].role"),
        ({"messages": [{**ASKED, "name": 7}, ANSWERED]}, "messages[0].name"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 7}, ANSWERED]}, "messages[0].tool_call_id"),
        ({"messages": [ASKED, called(5)]}, "messages[1].tool_calls"),
        ({"messages": [ASKED, called("no json")]}, "messages[1].tool_calls"),
        ({"messages": [ASKED, called("[1]")]}, "messages[1].tool_calls"),
        ({"messages": [ASKED, called({}, name=7)]}, "messages[1].tool_calls"),
        ({"messages": [ASKED, ANSWERED], "tools": [{"function": {"name": 7}}]}, "tools"),
        ({"messages": [ASKED, ANSWERED], "tools": [{"function": {"name": "f", "parameters": "x"}}]}, "parameters"),
        ({"prompt": [7], "chosen": "a", "rejected": "b"}, "prompt[0]"),
    ],
)
def test_what_no_template_could_render_is_named(row: dict[str, Any], said: str) -> None:
    with pytest.raises(rows.BadRow) as bad:
        rows.example(row)

    assert said in str(bad.value)


@given(
    turn=st.dictionaries(
        st.sampled_from(["role", "content", "weight", "name", "tool_calls", "tool_call_id"]), ANYTHING | st.just("assistant")
    ),
    tools=ANYTHING,
)
def test_any_row_is_an_example_or_bad_and_nothing_else(turn: dict[str, Any], tools: Any) -> None:
    for row in (
        {"messages": [ASKED, turn], "tools": tools},
        {"prompt": [turn], "chosen": [turn], "rejected": turn, "tools": tools},
    ):
        try:
            rows.example(row)
        except rows.BadRow:
            continue


def test_an_inspection_names_the_lines_and_goes_on(tmp_path: Path) -> None:
    good, bad = {"messages": [ASKED, ANSWERED]}, {"messages": [{"role": ["user"]}, ANSWERED]}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (good, bad, good)))

    seen = rows.inspect(path, ("messages",))

    assert (seen.rows, seen.bad, seen.duplicates) == (2, 1, 1)
    assert seen.problems[0].startswith("line 2 messages[0].role")
