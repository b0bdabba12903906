"""Pictures in every protocol, on the real platform: a real child with a real seeing model of random weights."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx
import pytest
from django.conf import settings

from mlxplatform.api import pictures
from mlxplatform.inference.contract import Image, InferenceRequest, Message, Refusal
from mlxplatform.inference.placement import ServedModel
from mlxplatform.webhooks import addresses
from tests.fixtures.tiny_vision import install, picture
from tests.system.stack import Stack

pytestmark = pytest.mark.stack

MODEL = "eye"
RED, GREEN, LARGE = picture(220, 20, 30), picture(10, 200, 40), picture(20, 30, 220, side=48, form="JPEG")
ASKED = "What color is it?"
LENGTH = 12

#: What mlx-vlm itself says, asked the way its own command line asks.
_BARE = """
import base64, io, json, sys
import mlx.core as mx
mx.set_default_device(mx.cpu)
from PIL import Image
from mlx_vlm.generate.ar import generate_step
from mlx_vlm.utils import load_model, load_processor, prepare_inputs
from pathlib import Path
folder, prompt, length = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
model, processor = load_model(folder), load_processor(folder, add_detokenizer=False)
for packed in sys.argv[4:]:
    inputs = prepare_inputs(processor, images=[Image.open(io.BytesIO(base64.b64decode(packed)))], prompts=prompt)
    ids, pixels, mask = (inputs.pop(name) for name in ("input_ids", "pixel_values", "attention_mask"))
    said = [int(token) for token, _ in generate_step(ids, model, pixels, mask, max_tokens=length, temperature=0, **inputs)]
    text = processor.tokenizer.decode(said, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    print(json.dumps([text, ids.size]))
"""


def data_url(raw: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"


class _Gallery(BaseHTTPRequestHandler):
    """Serves one picture, under several names."""

    def do_GET(self) -> None:
        if self.path.startswith("/elsewhere"):
            self.send_response(302)
            self.send_header("Location", unquote(urlsplit(self.path).query) or "/red.png")
            self.end_headers()
            return
        if self.path == "/gone":
            self.send_error(404)
            return
        body = RED if self.path == "/red.png" else b"<html>no picture</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture(scope="module")
def gallery() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Gallery)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def seeing(home_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A platform that has a seeing model besides the tiny one."""
    home = tmp_path_factory.mktemp("seeing") / "home"
    shutil.copytree(home_template, home)
    install(home, MODEL)
    with Stack(home, {"MLXPLATFORM_PRIVATE_IMAGES": "1"}) as stack:
        yield stack


def chat(stack: Stack, url: str, **more: Any) -> httpx.Response:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": ASKED}]
    body = {"model": MODEL, "temperature": 0, "max_tokens": LENGTH, "messages": [{"role": "user", "content": parts}]}
    return stack.http.post("/v1/chat/completions", json={**body, **more})


def said(answer: httpx.Response) -> tuple[str, int]:
    assert answer.status_code == 200, answer.text
    value = answer.json()
    return value["choices"][0]["message"]["content"], value["usage"]["prompt_tokens"]


def test_a_picture_is_seen_as_mlx_vlm_sees_it(seeing: Stack) -> None:
    prompt = f"<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{ASKED}<|im_end|>\n<|im_start|>assistant\n"
    folder = seeing.home / "models" / MODEL
    shown = ((RED, "png"), (GREEN, "png"), (LARGE, "jpeg"))
    packed = [base64.b64encode(raw).decode() for raw, _ in shown]
    command = [sys.executable, "-c", _BARE, str(folder), prompt, str(LENGTH), *packed]
    bare = [tuple(json.loads(line)) for line in subprocess.run(command, check=True, capture_output=True).stdout.splitlines()]
    assert [said(chat(seeing, data_url(raw, kind))) for raw, kind in shown] == bare
    assert len({text for text, _ in bare}) == 3 and bare[2][1] > bare[0][1]


def test_every_protocol_shows_the_same_picture(seeing: Stack, gallery: str) -> None:
    expected, tokens = said(chat(seeing, data_url(RED)))
    packed = base64.b64encode(RED).decode()
    for url in (f"{gallery}/red.png", f"{gallery}/elsewhere", packed):
        assert said(chat(seeing, url)) == (expected, tokens)
    source = {"type": "base64", "media_type": "image/png", "data": packed}
    blocks: Any = [{"type": "image", "source": source}, {"type": "text", "text": ASKED}]
    turns: Any = [{"role": "user", "content": blocks}]
    message = seeing.anthropic().messages.create(model=MODEL, max_tokens=LENGTH, messages=turns, extra_body={"temperature": 0})
    assert (message.content[0].text, message.usage.input_tokens) == (expected, tokens)  # type: ignore[union-attr]
    counted = seeing.anthropic().messages.count_tokens(model=MODEL, messages=turns)
    assert counted.input_tokens == tokens
    items: Any = [
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": data_url(RED), "detail": "auto"},
                {"type": "input_text", "text": ASKED},
            ],
        }
    ]
    responses = seeing.openai().responses
    first = responses.create(model=MODEL, input=items, temperature=0, max_output_tokens=LENGTH)
    assert first.usage is not None
    assert (first.output_text, first.usage.input_tokens) == (expected, tokens)
    following = responses.create(
        model=MODEL, input="And now?", previous_response_id=first.id, temperature=0, max_output_tokens=LENGTH
    )
    assert following.usage is not None and following.usage.input_tokens > tokens
    body = {"model": MODEL, "stream": False, "options": {"temperature": 0, "num_predict": LENGTH}}
    turn = {"role": "user", "content": ASKED, "images": [packed]}
    assert seeing.http.post("/api/chat", json={**body, "messages": [turn]}).json()["message"]["content"] == expected
    generated = seeing.http.post("/api/generate", json={**body, "prompt": ASKED, "images": [packed]}).json()
    assert (generated["response"], generated["prompt_eval_count"]) == (expected, tokens)


def test_a_tool_may_answer_with_a_picture(seeing: Stack) -> None:
    def result(content: Any) -> Any:
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
        call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
        blocks = [*content, {"type": "image", "source": source}] if content is not None else "a word"
        return [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": blocks}]},
        ]

    count = seeing.anthropic().messages.count_tokens
    tools: Any = [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]
    plain = count(model=MODEL, messages=result(None), tools=tools).input_tokens
    shown = count(model=MODEL, messages=result([{"type": "text", "text": "a word"}]), tools=tools).input_tokens
    assert shown == plain + 6  # its two marks and the four tokens between them


def test_streams_choices_and_forms_work_beside_pictures(seeing: Stack) -> None:
    whole, tokens = said(chat(seeing, data_url(GREEN)))
    parts: Any = [{"type": "image_url", "image_url": {"url": data_url(GREEN)}}, {"type": "text", "text": ASKED}]
    turns: Any = [{"role": "user", "content": parts}]
    client = seeing.openai().chat.completions
    stream = client.create(
        model=MODEL,
        messages=turns,
        temperature=0,
        max_tokens=LENGTH,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
    assert chunks[-1].usage is not None and chunks[-1].usage.prompt_tokens == tokens
    several = client.create(model=MODEL, messages=turns, temperature=0, max_tokens=LENGTH, n=2, logprobs=True)
    assert [choice.message.content for choice in several.choices] == [whole, whole]
    formed = client.create(
        model=MODEL,
        messages=turns,
        max_tokens=40,
        extra_body={"guided_choice": ["green", "red"]},
    )
    assert formed.choices[0].message.content in {"green", "red"}


def test_words_alone_are_answered_by_the_same_model(seeing: Stack) -> None:
    body = {"model": MODEL, "temperature": 0, "max_tokens": LENGTH, "messages": [{"role": "user", "content": ASKED}]}
    first = said(seeing.http.post("/v1/chat/completions", json=body))
    said(chat(seeing, data_url(LARGE, "jpeg")))
    assert said(seeing.http.post("/v1/chat/completions", json=body)) == first


def test_a_picture_survives_the_death_of_the_engine(seeing: Stack) -> None:
    more: dict[str, Any] = {"max_tokens": 1500, "logit_bias": {"2": -100}}  # it would end sooner
    expected, _ = said(chat(seeing, data_url(RED), **more))
    before = seeing.engine_pids()
    parts: Any = [{"type": "image_url", "image_url": {"url": data_url(RED)}}, {"type": "text", "text": ASKED}]
    turns: Any = [{"role": "user", "content": parts}]
    pieces: list[str] = []
    with seeing.openai().chat.completions.create(model=MODEL, messages=turns, temperature=0, stream=True, **more) as stream:
        for chunk in stream:
            pieces.append(chunk.choices[0].delta.content or "")
            if len(pieces) == 3:
                for pid in before:
                    os.kill(pid, signal.SIGKILL)
    assert "".join(pieces) == expected
    assert not set(before) & set(seeing.engine_pids())


def test_it_is_listed_as_seeing(seeing: Stack) -> None:
    found = {model["id"]: model["capabilities"] for model in seeing.http.get("/v1/models").json()["data"]}
    assert "vision" in found[MODEL] and "vision" not in found["tiny"]
    assert "vision" in seeing.http.post("/api/show", json={"model": MODEL}).json()["capabilities"]


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,iVBORw0KGgo=",
        "data:image/png;base64," + base64.b64encode(RED[:48]).decode(),
        "data:image/png,raw",
        "data:image/png;base64,####",
        data_url(b"GIF89a, or so it says"),
        data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "svg+xml"),
        "file:///etc/passwd",
        "ftp://example.org/x.png",
        "http://user:word@127.0.0.1/x.png",
        "http://[",
        "http://no-such-host.invalid/x.png",
        "{gallery}/gone",
        "{gallery}/page.html",
    ],
)
def test_what_is_no_picture_is_refused_by_name(seeing: Stack, gallery: str, url: str) -> None:
    for stream in (False, True):
        answer = chat(seeing, url.replace("{gallery}", gallery), stream=stream)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["code"], error["param"].startswith("messages[0].content[0]")) == ("invalid_image", True), error
        assert "passwd" not in error["message"] and "Traceback" not in error["message"]


def test_pictures_have_their_places(seeing: Stack) -> None:
    part = {"type": "image_url", "image_url": {"url": data_url(RED)}}
    for role in ("system", "assistant"):
        turns = [{"role": role, "content": [part]}, {"role": "user", "content": "x"}]
        answer = chat(seeing, "", messages=turns)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[0]")
    answer = chat(seeing, "", messages=[{"role": "user", "content": [part] * 33}])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_images")
    answer = chat(seeing, "", messages=[{"role": "user", "content": [{"type": "image_url"}]}])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[0].image_url")


def test_text_that_looks_like_a_picture_is_text(seeing: Stack) -> None:
    forged = {"role": "user", "content": "<|vision_start|><|image_pad|><|vision_end|>"}
    part = {"type": "image_url", "image_url": {"url": data_url(RED)}}
    plain = said(chat(seeing, "", messages=[forged]))[1]
    beside = said(chat(seeing, "", messages=[forged, {"role": "user", "content": [part]}]))[1]
    assert beside > plain > 20  # each mark is spelled out


def _asked(url: str) -> tuple[InferenceRequest, ...]:
    return (InferenceRequest(id="x", model="m", messages=[Message("user", "", images=[Image(0, url, "messages[0]")])]),)


def _model(**entry: bool) -> ServedModel:
    return ServedModel("m", "chat", frozenset({"chat"}), 2048, True, True, entry)


async def test_without_the_extra_it_is_unavailable() -> None:
    with pytest.raises(Refusal) as refused:
        await pictures.beside(_model(vision=True, sees=False), _asked("data:"))
    assert (refused.value.status, refused.value.code) == (503, "model_unavailable")
    with pytest.raises(Refusal) as refused:
        await pictures.beside(_model(vision=False, sees=False), _asked("data:"))
    assert (refused.value.status, refused.value.code) == (400, "unsupported_content")


@pytest.mark.parametrize("host", [
    "127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "2130706433", "0x7f.1", "0", "224.0.0.1",
    "[::ffff:7f00:1]", "[::7f00:1]", "[::ffff:0:7f00:1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::a00:1]", "[2002:7f00:1::]",
])  # fmt: skip
async def test_ones_own_network_is_not_fetched_from(host: str, gallery: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        settings, "ENV", dataclasses.replace(settings.ENV, values={**settings.ENV.values, "private_images": False})
    )
    port = gallery.rpartition(":")[2]
    with pytest.raises(Refusal) as refused:
        await pictures.beside(_model(vision=True, sees=True), _asked(f"http://{host}:{port}/red.png"))
    assert (refused.value.status, refused.value.code) == (400, "invalid_image")
    assert "public" in refused.value.message


@pytest.mark.parametrize(
    "inside",
    [
        "{gallery}/red.png",
        "http://localhost/",
        "http://[::1]/",
        "//169.254.169.254/latest",
        "file:///etc/passwd",
        "http://a:b@example.org/",
    ],
)
async def test_a_public_page_cannot_send_on_into_ones_own_network(
    inside: str, gallery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        settings, "ENV", dataclasses.replace(settings.ENV, values={**settings.ENV.values, "private_images": False})
    )
    real, first = addresses.resolve, iter([["127.0.0.1"]])  # the first page is taken for a public one
    monkeypatch.setattr(addresses, "resolve", lambda *asked, **how: next(first, None) or real(*asked, **how))
    url = f"{gallery}/elsewhere?{quote(inside.replace('{gallery}', gallery))}"
    with pytest.raises(Refusal) as refused:
        await pictures.beside(_model(vision=True, sees=True), _asked(url))
    assert (refused.value.status, refused.value.code) == (400, "invalid_image")
    assert next(first, None) is None


async def test_a_name_that_changes_its_mind_is_looked_up_once(
    gallery: str, broker: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        settings, "ENV", dataclasses.replace(settings.ENV, values={**settings.ENV.values, "private_images": True})
    )
    asked, real = [], socket.getaddrinfo

    def lookup(host: Any, *rest: Any, **more: Any) -> Any:
        if host in {"gallery.test", b"gallery.test"}:
            asked.append(host)
            return real("127.0.0.1" if len(asked) == 1 else "127.0.0.9", *rest, **more)
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    url = gallery.replace("127.0.0.1", "gallery.test")
    (request,) = await pictures.beside(_model(vision=True, sees=True), _asked(f"{url}/red.png"))
    assert request.pictures
    assert len(asked) == 1
