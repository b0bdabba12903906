"""Exports as they really arrive: damaged anywhere, twice, out of order, with strange archives around them."""

import copy
import datetime as dt
import io
import json
import zipfile

import pytest

from mlxplatform.memory import sources
from mlxplatform.memory.ingest import ingest
from mlxplatform.memory.models import Vault
from mlxplatform.memory.sources import Imported, Unreadable
from mlxplatform.memory.sources.registry import READERS

JUNK = (None, 3, 1e308, True, "x", "", [], [[]], {}, {"a": [1]}, ["text"], {"type": []})


def said(role, text, **more):
    return {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}, "metadata": {}, **more}


GOOD = {
    "chatgpt": [
        {
            "conversation_id": "c1",
            "title": "t",
            "create_time": 1.0,
            "update_time": 2.0,
            "current_node": "b",
            "mapping": {
                "r": {"message": None, "parent": None, "children": ["a"]},
                "a": {"message": said("user", "question"), "parent": "r", "children": ["b"]},
                "b": {"message": said("assistant", "answer"), "parent": "a", "children": []},
            },
        }
    ],
    "claude": [
        {
            "uuid": "u1",
            "name": "t",
            "updated_at": "2026-01-01T00:00:00Z",
            "chat_messages": [
                {"uuid": "1", "sender": "human", "text": "question", "parent_message_uuid": "0"},
                {"uuid": "2", "sender": "assistant", "content": [{"type": "text", "text": "answer"}], "parent_message_uuid": "1"},
            ],
        }
    ],
    "jsonl": [
        {"id": "j1", "title": "t", "updated_at": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}]}
    ],
    "pi": [
        {"type": "session", "id": "s1", "timestamp": "2026-01-01T00:00:00Z"},
        {"type": "message", "id": "1", "parentId": None, "message": {"role": "user", "content": "question"}},
        {
            "type": "message",
            "id": "2",
            "parentId": "1",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
        },
        {"type": "session_info", "name": "t"},
    ],
}


def written(kind, value):
    return json.dumps(value).encode() if kind in {"chatgpt", "claude"} else "\n".join(map(json.dumps, value)).encode()


def places(value, path=()):
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def replaced(value, path, junk):
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = junk
    return value


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_a_file_damaged_at_any_one_place_never_breaks_a_reader(kind):
    tried = 0
    for path in places(GOOD[kind]):
        for junk in JUNK if path else ():
            tried += 1
            try:
                found = list(READERS[kind](written(kind, replaced(GOOD[kind], path, junk)), "file"))
            except Unreadable:
                continue
            assert all(
                isinstance(turn.text, str) and turn.text for item in found if isinstance(item, Imported) for turn in item.turns
            )
    assert tried > 100


def test_what_is_no_talk_in_a_chatgpt_export_is_left_out():
    export = copy.deepcopy(GOOD["chatgpt"])
    mapping, last = export[0]["mapping"], "b"
    for kind in ("code", "execution_output", "user_editable_context", "thoughts", "reasoning_recap", "tether_browsing_display"):
        message = said("assistant", "noise")
        message["content"] = {"content_type": kind, "parts": ["noise"], "text": "noise"}
        mapping[kind] = {"message": message, "parent": last, "children": []}
        last = kind
    voice = said("user", "")
    voice["content"] = {
        "content_type": "multimodal_text",
        "parts": [{"asset_pointer": "x"}, {"content_type": "audio_transcription", "text": "spoken"}],
    }
    mapping["v"] = {"message": voice, "parent": last, "children": []}
    export[0]["current_node"] = "v"
    (found,) = READERS["chatgpt"](written("chatgpt", export), "f")
    assert [turn.text for turn in found.turns] == ["question", "answer", "spoken"]


def test_a_claude_branch_is_followed_where_parents_are_told():
    export = copy.deepcopy(GOOD["claude"])
    export[0]["chat_messages"].append({"uuid": "3", "sender": "assistant", "text": "better answer", "parent_message_uuid": "1"})
    (found,) = READERS["claude"](written("claude", export), "f")
    assert [turn.text for turn in found.turns] == ["question", "better answer"]


def zipped(*files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return buffer.getvalue()


def test_archives_of_several_parts_with_what_systems_add():
    part = lambda number: written("chatgpt", replaced(GOOD["chatgpt"], (0, "conversation_id"), f"c{number}"))  # noqa: E731
    archive = zipped(
        ("__MACOSX/export/._conversations-000.json", b"\x00\x05\x16\x07"),
        ("export/conversations-001.json", part(1)),
        ("export/conversations-000.json", part(0)),
        ("export/shared_conversations.json", b"[{}]"),
        ("../../conversations.json", part(2)),
    )
    assert sorted(item.external_id for item in READERS["chatgpt"](archive, "e.zip")) == ["c0", "c1", "c2"]
    with pytest.raises(Unreadable, match="damaged"):
        list(READERS["chatgpt"](archive[:-40], "e.zip"))


def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(monkeypatch):
    monkeypatch.setattr("mlxplatform.memory.sources.UNPACKED_LIMIT", 1000)
    with pytest.raises(Unreadable, match="unpacks to more"):
        list(READERS["jsonl"](zipped(("a.jsonl", b" " * 2000)), "e.zip"))


@pytest.mark.django_db
def test_a_conversation_that_comes_twice_is_kept_as_its_newest_copy_has_it():
    vault = Vault.objects.create(name="twice")

    def copy_of(text, day, name="c1"):
        return {"id": name, "updated_at": f"2026-01-0{day}T00:00:00Z", "messages": [{"role": "assistant", "content": text}]}

    def read(*conversations):
        return ingest(vault, "jsonl", READERS["jsonl"]("\n".join(map(json.dumps, conversations)).encode(), "f"))

    def kept():
        return [m.text for m in vault.conversations.get(external_id="c1").messages.all()]

    first = read(copy_of("old", 1), copy_of("new", 2), copy_of("old", 1))
    assert (first.added, first.changed) == (1, 0) and kept() == ["new"]
    assert read(copy_of("old", 1)).unchanged == 1 and kept() == ["new"], "an older export takes nothing back"
    again = read(copy_of("newer", 3), copy_of("newest", 4))
    assert (again.added, again.changed) == (0, 1) and kept() == ["newest"]
    assert vault.conversations.get().updated_at == dt.datetime(2026, 1, 4, tzinfo=dt.UTC)


def test_an_archive_that_is_nearly_all_air_is_refused_unread():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", bytes(sources.A_LOT + 1))
    with pytest.raises(Unreadable, match="times its size"):
        list(READERS["jsonl"](buffer.getvalue(), "e.zip"))
