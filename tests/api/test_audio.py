"""Speech to text on the real platform: a real child with a real speech model of random weights."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.tiny_whisper import install, tone
from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

PATH = "/v1/audio/transcriptions"
SOUND = ("hum.wav", tone(), "audio/wav")


@pytest.fixture(scope="module")
def listening(home_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A platform that has a speech model besides the tiny one."""
    home = tmp_path_factory.mktemp("listening") / "home"
    shutil.copytree(home_template, home)
    install(home, "whisper")
    with Stack(home) as stack:
        yield stack


def send(stack: Stack, path: str = PATH, sound: Any = SOUND, **fields: Any) -> httpx.Response:
    return stack.http.post(
        path, files={"file": sound} if sound else None, data={"model": "whisper", "temperature": "0", **fields}
    )


def test_every_form_of_the_answer(listening: Stack) -> None:
    plain = send(listening, language="en").json()
    assert plain["text"]
    assert set(plain) == {"text", "usage"} and plain["usage"] == {"type": "duration", "seconds": 1}
    verbose = send(listening, language="en", response_format="verbose_json").json()
    assert (verbose["task"], verbose["language"], verbose["duration"]) == ("transcribe", "english", 1.0)
    assert verbose["text"] == plain["text"] == "".join(segment["text"] for segment in verbose["segments"]).strip()
    text = send(listening, language="en", response_format="text")
    assert text.headers["content-type"].startswith("text/plain")
    assert text.text.rstrip("\n") == plain["text"].rstrip("\n")
    for form, kind in (("srt", "application/x-subrip"), ("vtt", "text/vtt")):
        subtitles = send(listening, language="en", response_format=form)
        assert subtitles.headers["content-type"].startswith(kind)
        assert subtitles.text.count(" --> ") == len(verbose["segments"])
    assert text.headers["x-request-id"]


def test_a_json_body_carries_the_recording_in_base64(listening: Stack) -> None:
    packed = base64.b64encode(SOUND[1]).decode()
    form = send(listening, language="en").json()
    for file in (packed, f"data:audio/wav;base64,{packed}"):
        body = {"model": "whisper", "file": file, "language": "en", "temperature": 0, "stream": False}
        answer = listening.http.post(PATH, json=body)
        assert answer.json() == form
    for wrong in ({"file": "no base64!"}, {"file": ""}, {"file": 5}, {}, {"file": "data:audio/wav,x"}):
        answer = listening.http.post(PATH, json=wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


@pytest.mark.drill
def test_words_have_times_when_asked_for(listening: Stack) -> None:
    form = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    answer = send(listening, **form).json()
    assert all(set(word) == {"word", "start", "end"} for word in answer["words"])
    assert "segments" in answer


def test_the_sdk_transcribes_streams_and_translates(listening: Stack) -> None:
    audio = listening.openai().audio
    whole = audio.transcriptions.create(model="whisper", file=SOUND, language="en", temperature=0, prompt="Hum.")
    events = list(
        audio.transcriptions.create(model="whisper", file=SOUND, language="en", temperature=0, prompt="Hum.", stream=True)
    )
    assert [event.type for event in events][-1] == "transcript.text.done"
    assert events[-1].text == whole.text
    translated = audio.translations.create(model="whisper", file=SOUND, temperature=0, response_format="verbose_json")
    assert translated.duration == 1.0


def test_the_model_is_listed_with_its_kind(listening: Stack) -> None:
    (entry,) = [model for model in listening.http.get("/v1/models").json()["data"] if model["id"] == "whisper"]
    assert entry["capabilities"]["transcription"]


@pytest.mark.parametrize(
    ("sound", "fields", "param"),
    [
        (("x.wav", b"", "audio/wav"), {}, "file"),
        (("x.wav", b"RIFF\x00\x00\x00\x00WAVEjunk", "audio/wav"), {}, "file"),
        (("x.mp3", b"\xff\xfbnothing like sound", "audio/mpeg"), {}, "file"),
        (("x.m3u8", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "audio/mpeg"), {}, "file"),
        (("x.wav", tone(0.05), "audio/wav"), {}, "file"),
        (SOUND, {"language": "klingon"}, "language"),
        (SOUND, {"response_format": "xml"}, "response_format"),
        (SOUND, {"temperature": "1.5"}, "temperature"),
        (SOUND, {"temperature": "warm"}, "temperature"),
        (SOUND, {"temperature": "nan"}, "temperature"),
        (SOUND, {"timestamp_granularities[]": ["word"]}, "timestamp_granularities"),
        (SOUND, {"timestamp_granularities[]": ["page"], "response_format": "verbose_json"}, "timestamp_granularities"),
        (SOUND, {"include[]": ["logprobs"]}, "include"),
        (SOUND, {"stream": "perhaps"}, "stream"),
        (SOUND, {"stream": "true", "response_format": "srt"}, "stream"),
        (SOUND, {"model": "tiny"}, "model"),
    ],
)
def test_what_is_wrong_is_named_before_any_event(listening: Stack, sound: Any, fields: dict[str, Any], param: str) -> None:
    both = sound is not SOUND or fields == {"language": "klingon"}  # what the child says, also to a stream
    for stream in ({}, {"stream": "true"}) if both else ({},):
        answer = send(listening, sound=sound, **{**fields, **stream})
        assert answer.status_code in {400, 415}, answer.text
        error = answer.json()["error"]
        assert error["param"].startswith(param), error
        assert "/" not in error["message"].replace("application/", "").replace("multipart/form-data", "")


def test_a_recording_that_is_too_large(listening: Stack) -> None:
    answer = send(listening, sound=("x.wav", b"\0" * (25 * 1024 * 1024 + 1), "audio/wav"))
    assert answer.status_code == 413
    assert answer.json()["error"]["param"] == "file"


@pytest.mark.parametrize("path", [PATH, "/v1/audio/translations"])
def test_without_a_model_it_is_unavailable(stack: Stack, path: str) -> None:
    answer = send(stack, path)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_unavailable"


def test_a_transcription_leaves_its_line(listening: Stack) -> None:
    send(listening)

    def lines() -> list[dict[str, Any]]:
        found = listening.http.get("/api/requests").json()["requests"]
        return [line for line in found if line["path"] == PATH and line["outcome"] == "completed"]

    assert eventually(lines, what="the line")
    assert json.dumps(lines()[0]).count("hum") == 0
