"""Pictures between the words of a turn, before any template sees them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from mlxplatform.api import pictures
from mlxplatform.api.anthropic.parse import read_messages as anthropic_messages
from mlxplatform.api.openai.chat.parse import read_messages as chat_messages
from mlxplatform.api.openai.responses.items import read_input, to_messages
from mlxplatform.inference.contract import Image, InferenceRequest, Message, Refusal
from mlxplatform.inference.placement import ServedModel
from mlxplatform.library import local_models
from tests.fixtures import tiny_model, tiny_vision
from workers.prepare import hermes
from workers.prepare.messages import merged, without_system
from workers.prepare.parts import joined, seen_content

PICTURE = {"type": "image"}


def words(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def seen(at: int) -> Image:
    return Image(at)


def test_pictures_keep_their_places_between_words() -> None:
    assert seen_content(Message("user", "plain")) == "plain"
    assert seen_content(Message("user", "", images=[seen(0)])) == [PICTURE]
    between = Message("user", "before after", images=[seen(0), seen(7), seen(7), seen(99)])
    assert seen_content(between) == [PICTURE, words("before "), PICTURE, PICTURE, words("after"), PICTURE]


def test_joining_keeps_every_word_and_picture() -> None:
    assert joined("a", "b") == "a\n\nb"
    assert joined("", "b") == "b"
    assert joined([PICTURE], "b") == [PICTURE, words("\n\n"), words("b")]
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [PICTURE]},
        {"role": "user", "content": "what?"},
    ]
    (turn,) = merged(without_system(turns))
    assert turn["content"] == [words("Be brief."), words("\n\n"), PICTURE, words("\n\n"), words("what?")]


def test_tools_written_out_take_pictures_too() -> None:
    answers = [Message("tool", "a word", tool_call_id="1", images=[seen(6)]), Message("tool", "b", tool_call_id="2")]
    (turn,) = hermes.turns(answers, [])
    assert turn["role"] == "user" and PICTURE in turn["content"]
    assert "".join(part.get("text", "|") for part in turn["content"]) == (
        "<tool_response>\na word|\n</tool_response>\n<tool_response>\nb\n</tool_response>"
    )


def test_each_protocol_reads_the_same_places() -> None:
    chat = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "b"}]
    (turn,) = chat_messages([{"role": "user", "content": chat}], "messages")
    assert (turn.content, turn.images) == ("ab", [Image(1, "x", "messages[0].content[1]")])
    item = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}, {"type": "input_text", "text": "b"}]}
    old = read_input([item], "input")
    *_, turn = to_messages([*old, *old], None, new=1)
    assert turn.images == [Image(0, "x", "input[0].content[0]")]
    block = {"type": "image", "source": {"type": "url", "url": "x"}}
    (turn,) = anthropic_messages([{"role": "user", "content": [{"type": "text", "text": "a"}, block]}], "messages")
    assert (turn.content, turn.images) == ("a", [Image(1, "x", "messages.0.content.1")])


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url"}, "image_url"),
        ({"type": "image_url", "image_url": {}}, "image_url"),
        ({"type": "image_url", "image_url": {"url": 5}}, "image_url.url"),
        ({"type": "image_url", "image_url": {"url": ""}}, "image_url.url"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "source.type"),
        ({"type": "image", "source": {"type": "base64"}}, "source.data"),
        ({"type": "image"}, "source"),
        ({"type": "input_image", "file_id": "f"}, "file_id"),
    ],
)
def test_a_part_without_a_picture_is_named(part: dict[str, object], param: str) -> None:
    with pytest.raises(Refusal) as refused:
        chat_messages([{"role": "user", "content": [part]}], "messages")
    assert (refused.value.status, refused.value.param) == (400, f"messages[0].content[0].{param}")


def test_only_a_model_with_eyes_and_a_processor_sees(tmp_path: Path) -> None:
    folder = tiny_vision.install(tmp_path, "eye")
    assert local_models.read("eye", folder).vision
    assert not local_models.read("tiny", tiny_model.directory()).vision
    (folder / "preprocessor_config.json").unlink()
    assert not local_models.read("eye", folder).vision


async def test_pictures_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tiny_vision.picture(220, 20, 30)
    source = f"data:image/png;base64,{base64.b64encode(raw).decode()}"
    model = ServedModel("eye", "chat", frozenset({"vision"}), 100, True, True, {"vision": True, "sees": True})
    images = [Image(source=source, param=f"messages[0].content[{n}]") for n in range(3)]
    request = InferenceRequest(id="req", model="eye", messages=[Message("user", "Look", images=images)])
    monkeypatch.setattr(pictures, "MOST_BYTES_TOGETHER", 2 * len(raw))

    with pytest.raises(Refusal) as refused:
        await pictures.beside(model, [request])

    assert (refused.value.status, refused.value.code) == (400, "image_too_large")
    assert (refused.value.param or "").startswith("messages[0].content[")
