"""Exports of other programs: the shapes they really have, what is kept of them, and what broken ones say."""

import datetime as dt
import io
import json
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxplatform.memory.sources import Imported, Skipped, Unreadable, instant
from mlxplatform.memory.sources.registry import READERS


def read(kind, value, name="file"):
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return list(READERS[kind](raw, name))


def zipped(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_json", ".json"), content)
    return buffer.getvalue()


def node(message, parent, children=()):
    return {"message": message, "parent": parent, "children": list(children)}


def said(role, *parts, **more):
    return {"author": {"role": role}, "content": {"content_type": "text", "parts": list(parts)}, "metadata": {}, **more}


CHATGPT = [
    {
        "conversation_id": "c1",
        "title": "Boiler",
        "create_time": 1_767_000_000.5,
        "update_time": 1_767_000_100.5,
        "current_node": "d",
        "mapping": {
            "root": node(None, None, ["s"]),
            "s": node(said("system", "be nice"), "root", ["a"]),
            "a": node(said("user", "first?"), "s", ["b", "c"]),
            "b": node(said("assistant", "an abandoned branch"), "a"),
            "c": node(said("tool", "raw search output"), "a", ["d"]),
            "d": node(said("assistant", "kept", {"asset_pointer": "x"}), "c"),
        },
    },
    {"title": "no mapping"},
    "nonsense",
]


def test_chatgpt_keeps_the_branch_that_was_shown_last():
    found = read("chatgpt", CHATGPT)
    assert [type(item) for item in found] == [Imported, Skipped, Skipped]
    assert [(turn.role, turn.text) for turn in found[0].turns] == [("user", "first?"), ("assistant", "kept")]
    assert found[0].updated_at == dt.datetime.fromtimestamp(1_767_000_100.5, dt.UTC) and found[0].title == "Boiler"


def test_exports_are_read_from_their_zip():
    archive = zipped(export__conversations_json=json.dumps(CHATGPT), user_json="{}")
    assert read("chatgpt", archive)[0].external_id == "c1"
    with pytest.raises(Unreadable, match="no file of this format"):
        read("chatgpt", zipped(other_json="[]"))


def test_a_tree_with_a_loop_ends():
    loop = {
        "id": "x",
        "current_node": "a",
        "mapping": {"a": node(said("user", "1"), "b"), "b": node(said("assistant", "2"), "a")},
    }
    assert len(read("chatgpt", [loop])[0].turns) == 2


def test_claude():
    export = [
        {
            "uuid": "u1",
            "name": "Tea",
            "updated_at": "2026-02-03T04:05:06.789Z",
            "chat_messages": [
                {"sender": "human", "text": "old form"},
                {
                    "sender": "assistant",
                    "text": "",
                    "content": [{"type": "text", "text": "new form"}, {"type": "tool_use", "name": "x"}],
                },
                {"sender": "system", "text": "hidden"},
            ],
        }
    ]
    (found,) = read("claude", export)
    assert [(turn.role, turn.text) for turn in found.turns] == [("user", "old form"), ("assistant", "new form")]
    assert found.updated_at == dt.datetime(2026, 2, 3, 4, 5, 6, 789000, dt.UTC)


def test_pi_sessions_follow_the_newest_branch_and_drop_tool_output():
    lines = [
        {"type": "session", "id": "s1", "timestamp": "2026-01-01T00:00:00Z"},
        {
            "type": "message",
            "id": "1",
            "parentId": None,
            "timestamp": "2026-01-01T00:01:00Z",
            "message": {"role": "user", "content": "hi"},
        },
        {
            "type": "message",
            "id": "2",
            "parentId": "1",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "old"}]},
        },
        {"type": "model_change", "id": "m", "parentId": "1"},
        {
            "type": "message",
            "id": "3",
            "parentId": "m",
            "message": {"role": "toolResult", "content": [{"type": "text", "text": "ls"}]},
        },
        {
            "type": "message",
            "id": "4",
            "parentId": "3",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "new"}]},
        },
    ]
    (found,) = read("pi", "\n".join(map(json.dumps, lines)).encode() + b"\n{broken")[1:]
    assert [(turn.role, turn.text) for turn in found.turns] == [("user", "hi"), ("assistant", "new")]
    assert found.external_id == "s1"


def test_jsonl_in_both_shapes_with_bom_and_crlf():
    raw = b"\xef\xbb\xbf" + b"\r\n".join(
        [
            json.dumps(
                {
                    "id": 7,
                    "messages": [
                        {"role": "user", "content": "a"},
                        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
                    ],
                }
            ).encode(),
            b"",
            json.dumps({"conversation": "k", "role": "user", "content": "q", "at": 1_700_000_000}).encode(),
            json.dumps({"conversation": "k", "role": "assistant", "content": "r", "at": 1_700_000_005}).encode(),
            b"[1]",
            b"not json",
            json.dumps({"messages": [{"role": "tool", "content": "x"}]}).encode(),
        ]
    )
    found = read("jsonl", raw, "x.jsonl")
    assert [item.external_id for item in found if isinstance(item, Imported)] == ["7", "k"]
    assert [item.where for item in found if isinstance(item, Skipped)] == ["x.jsonl:5", "x.jsonl:6", "x.jsonl:7"]


def test_markdown_transcripts_and_notes():
    text = "---\nid: m1\ndate: 2026-05-06\n---\n# Tea\n\n## User\nwhich tea?\n\n**Assistant:** green\n```\n## User\n```\n"
    (found,) = read("markdown", text.encode(), "tea.md")
    assert (found.external_id, found.title) == ("m1", "Tea")
    assert [(turn.role, turn.text) for turn in found.turns] == [("user", "which tea?"), ("assistant", "green\n```\n## User\n```")]
    (note,) = read("markdown", b"just a thought", "note.md")
    assert note.turns[0].role == "note" and note.external_id == "note.md"
    assert isinstance(read("markdown", b"caf\xe9", "x.md")[0], Skipped)


@pytest.mark.parametrize("kind", ["chatgpt", "claude"])
@pytest.mark.parametrize("raw", [b"", b"{}", b"nonsense", b"[" * 100_000, b"PK\x03\x04broken", b"\xff\xfe"])
def test_a_file_that_is_something_else_says_so(kind, raw):
    with pytest.raises(Unreadable) as caught:
        read(kind, raw)
    assert "Traceback" not in str(caught.value) and "msgspec" not in str(caught.value)


@given(
    st.sampled_from(sorted(READERS)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "mapping",
                        "messages",
                        "id",
                        "uuid",
                        "chat_messages",
                        "role",
                        "content",
                        "parts",
                        "message",
                        "type",
                        "conversation",
                        "author",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    ),
)
def test_no_shape_of_json_breaks_a_reader(kind, value):
    try:
        read(kind, [value] if kind in {"chatgpt", "claude"} else value)
    except Unreadable:
        pass


def test_text_is_made_fit_for_every_database():
    raw = '{"id":"z","messages":[{"role":"user","content":"a\\u0000b"},{"role":"assistant","content":"e\\u0301 ok"}]}'
    (found,) = read("jsonl", raw.encode())
    assert [turn.text for turn in found.turns] == ["ab", "é ok"]


@pytest.mark.parametrize(
    ("value", "wanted"), [(0, None), (-5, None), ("", None), (None, None), (True, None), ("soon", None), (1e30, None)]
)
def test_times_that_are_none(value, wanted):
    assert instant(value) is wanted


def test_times_in_seconds_and_milliseconds():
    assert (
        instant(1_700_000_000)
        == instant(1_700_000_000_000)
        == instant("1700000000")
        == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
    )
