"""Following a job from a terminal: its log above, one bar below, until it has ended or its reader leaves.

Reads the event stream of the running platform as any client may, and takes it up again where it was cut. It knows no kind of
job. The job does not notice its readers: whoever leaves with Ctrl-C is told how to come back, and the job goes on, unless the
reader asked for it to be cancelled then.
"""

from __future__ import annotations

import json
import signal
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

import httpx
from django.core.management.base import CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from mlxplatform.console import terminal

#: Exit status of whoever left before the end, as shells tell an interrupt.
LEFT = 128 + signal.SIGINT
#: Seconds between tries to take up a stream that was cut, and how many in a row may fail: a restart fits.
RETRY_SECONDS = 1.5
MOST_TRIES = 40
#: Answers of a server that is on its way up or down.
_PASSING = frozenset({502, 503, 504})
#: Events after which nothing comes, unless somebody retries the job.
_ENDS = frozenset({"done", "failed", "cancelled"})


def add_arguments(parser: ArgumentParser) -> None:
    """The choices of every command that orders a job and follows it."""
    leaving = parser.add_mutually_exclusive_group()
    leaving.add_argument("--detach", action="store_true", help="place the order and do not follow it")
    leaving.add_argument("--cancel-on-interrupt", action="store_true", help="Ctrl-C cancels the job instead of leaving it alone")


def follow(client: httpx.Client, job_id: str, screen: Console, *, cancel_on_interrupt: bool = False) -> dict[str, Any]:
    """Show a job until it is done; the answer is its result.

    Raises:
        CommandError: it failed, was cancelled, or cannot be seen.
        SystemExit: with status LEFT, when the reader left.
    """
    try:
        end = _watch(client, job_id, screen)
    except KeyboardInterrupt:
        _leave(client, job_id, screen, cancel_on_interrupt)
        raise SystemExit(LEFT) from None
    if end.get("type") == "done":
        return end.get("result") or {}
    raise CommandError(terminal.printable(f"{job_id} {end.get('error') or 'was cancelled'}"))


def _leave(client: httpx.Client, job_id: str, screen: Console, cancel: bool) -> None:
    jobs = f"{terminal.program()} jobs"
    if cancel:
        terminal.asked(client, "POST", f"/api/jobs/{job_id}/cancel")
        screen.print(f"{job_id} was told to stop; see: {jobs} tail {job_id}")
    else:
        screen.print(f"{job_id} goes on. Come back: {jobs} tail {job_id}; stop it: {jobs} cancel {job_id}")


def _watch(client: httpx.Client, job_id: str, screen: Console) -> dict[str, Any]:
    """Show everything the job says; its last turn is the answer."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeElapsedColumn(),
    )
    end: dict[str, Any] = {}
    with Progress(*columns, console=screen, transient=True) as progress:
        shown = _Shown(screen, progress, progress.add_task(job_id, total=1.0, figures=""))
        for event in events(client, job_id):
            shown.show(event)
            end = event if event["type"] in _ENDS else {} if event["type"] == "started" else end
    return end


class _Shown:
    """What a terminal makes of the events: a line for what is worth keeping, the bar for what passes."""

    def __init__(self, screen: Console, progress: Progress, bar: TaskID) -> None:
        self._screen = screen
        self._progress = progress
        self._bar = bar
        self._stage = ""

    def show(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "log":
            self._line(str(event.get("line", "")))
        elif kind == "stage":
            self._stage_of(event)
        elif kind == "metric":
            self._metric(event)
        elif kind == "artefact":
            self._line(f"made {event.get('name')}")
        else:
            said = event.get("error") or ("" if kind in _ENDS or kind == "started" else event.get("state"))
            self._line(f"{kind} {said or ''}".rstrip())

    def _stage_of(self, event: dict[str, Any]) -> None:
        name, message = str(event.get("stage", "")), str(event.get("message") or "")
        if name != self._stage:
            self._stage = name
            self._line(f"{name}: {message}" if message else name)
        self._progress.update(self._bar, description=terminal.printable(message or name))
        if event.get("progress") is not None:
            self._progress.update(self._bar, completed=event["progress"])

    def _metric(self, event: dict[str, Any]) -> None:
        figures = [f"{name} {value:.4g}" for name, value in event.items() if name != "ts" and isinstance(value, float)]
        said = f"{event.get('kind')} step {event.get('step')} {' '.join(figures[:3])}"
        self._progress.update(self._bar, figures=terminal.printable(said))

    def _line(self, text: str) -> None:
        self._screen.print(terminal.printable(text), soft_wrap=True)


def events(client: httpx.Client, job_id: str) -> Iterator[dict[str, Any]]:
    """The job's events in order, each once, however often the stream is cut.

    Raises:
        CommandError: there is no such job, or nobody answers for longer than a restart takes.
    """
    last, misses = "", 0
    while misses <= MOST_TRIES:
        try:
            for frame in _stream(client, job_id, last):
                misses = 0
                if frame.event == "end":
                    return
                if frame.event == "message":
                    last = frame.id
                    yield json.loads(frame.data)
        except httpx.TransportError:
            if not last:
                break
        misses += 1
        time.sleep(RETRY_SECONDS)
    raise terminal.unreachable()


def _stream(client: httpx.Client, job_id: str, last: str) -> Iterator[terminal.Frame]:
    """The frames of one connection; none from a server that is about to end or to begin."""
    headers = {"Last-Event-ID": last} if last else {}
    with client.stream("GET", f"/api/jobs/{job_id}/stream", headers=headers) as answer:
        if last and answer.status_code in _PASSING:
            return
        if answer.status_code != 200:
            raise terminal.explained(answer)
        yield from terminal.frames(answer)
