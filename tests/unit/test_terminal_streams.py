"""Event streams as the terminal reads them: whole frames, cut streams taken up again, and nothing that commands the terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import httpx
import pytest
from django.core.management.base import CommandError, OutputWrapper

from mlxplatform.console import following, terminal


def test_only_line_feeds_end_a_line() -> None:
    said = "one\u2028two\u0085three\x1dfour"
    frame = f"id: 7\r\nevent: note\r\ndata: {said}\r\n\r\n: beat\n\ndata: a\ndata: b\n\ndata: cut"
    seen = list(terminal.frames(httpx.Response(200, text=frame)))
    assert seen == [terminal.Frame("note", said, "7"), terminal.Frame("message", "a\nb", "")]


def test_what_others_wrote_cannot_command_the_terminal() -> None:
    assert terminal.printable("a\tb\r\n\x1b[2Jc\x9b\x7f é 🌙") == "a\tb\n�[2Jc�� é 🌙"


class Cut(httpx.SyncByteStream):
    """A body that breaks off behind its last byte."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        yield self._content
        raise httpx.ReadError("cut")


def frame(seq: int, kind: str, **more: object) -> bytes:
    return f"id: {seq}\ndata: {json.dumps({'seq': seq, 'type': kind, **more})}\n\n".encode()


def client(*answers: httpx.Response | httpx.TransportError, asked: list[str | None] | None = None) -> httpx.Client:
    waiting = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        if asked is not None:
            asked.append(request.headers.get("Last-Event-ID"))
        following_one = next(waiting)
        if isinstance(following_one, httpx.TransportError):
            raise following_one
        return following_one

    return httpx.Client(base_url="http://platform", transport=httpx.MockTransport(answer))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_cut_stream_is_taken_up_where_it_was() -> None:
    asked: list[str | None] = []
    link = client(
        httpx.Response(200, stream=Cut(frame(1, "state") + frame(2, "log") + b'id: 3\ndata: {"se')),
        httpx.ConnectError("gone"),
        httpx.Response(503, json={"error": "starting"}),
        httpx.Response(200, content=frame(3, "log")),  # sent away by a process that leaves: no "end"
        httpx.Response(200, content=frame(4, "done", result={}) + b"event: end\ndata: {}\n\n"),
        asked=asked,
    )
    assert [event["seq"] for event in following.events(link, "job_x")] == [1, 2, 3, 4]
    assert asked == [None, "2", "2", "2", "3"]


@pytest.mark.usefixtures("at_once")
def test_whoever_never_answers_or_never_comes_back_is_given_up() -> None:
    with pytest.raises(CommandError, match="nothing answers"):
        list(following.events(client(httpx.ConnectError("no")), "job_x"))
    gone = [httpx.ConnectError("no") for _ in range(following.MOST_TRIES + 1)]
    with pytest.raises(CommandError, match="nothing answers"):
        list(following.events(client(httpx.Response(200, content=frame(1, "state")), *gone), "job_x"))


def test_the_end_of_a_job_is_the_end_of_the_command() -> None:
    end = b"event: end\ndata: {}\n\n"
    screen = terminal.screen(OutputWrapper(io.StringIO()))
    failed = frame(1, "failed", error="no\x1b memory")
    with pytest.raises(CommandError, match="job_x no� memory"):
        following.follow(client(httpx.Response(200, content=failed + end)), "job_x", screen)
    again = failed + frame(2, "state", state="queued") + frame(3, "started") + frame(4, "done", result={"rows": 3})
    assert following.follow(client(httpx.Response(200, content=again + end)), "job_x", screen) == {"rows": 3}
