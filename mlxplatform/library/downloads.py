"""Download jobs: a repository of the hub, fetched by a child, with progress in bytes; one per repository at a time."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from django.db import transaction

from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.context import JobContext, JobFailed
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.library import announced, hub
from mlxplatform.library.local_models import hub_cache
from mlxplatform.library.publication import is_model_id

KIND = "download"
#: Seconds between looks at the bytes that arrived, and over which the speed is told.
LOOK, SPEED_WINDOW = 0.5, 5.0
#: Codes of failures that another attempt may cure.
_PASSING = {"offline", "hub_error", "busy"}
_END = object()


def submit(repo: Any, *, revision: Any = None, project: str, created_by: str) -> Job:
    """Order a download.

    Raises:
        Refusal: 400 no repository name, 409 it is being downloaded.
    """
    if not hub.is_repository(repo):
        raise Refusal(400, "invalid_value", "repo_id must be owner/name.", param="repo_id")
    revision = "main" if revision is None else revision
    if not is_model_id(revision):
        raise Refusal(400, "invalid_value", "revision must be a branch, tag or commit.", param="revision")
    with transaction.atomic():
        if Job.objects.filter(kind=KIND, config__repo_id=repo).exclude(state__in=TERMINAL).exists():
            raise Refusal(409, "already_downloading", "That model is being downloaded already.", param="repo_id")
        return service.submit(KIND, {"repo_id": repo, "revision": revision}, project=project, created_by=created_by)


def under_way() -> set[str]:
    """Repositories that a job brings or will go on bringing; a failed one waits for a person to try it again, or not."""
    live = Job.objects.filter(kind=KIND).exclude(state__in=TERMINAL)
    return {str(repo) for repo in live.values_list("config__repo_id", flat=True)}


def run(ctx: JobContext) -> dict[str, Any]:
    """Fetch, telling progress; a stop kills the child, whose partial files stay for the next attempt."""
    repo = ctx.config["repo_id"]
    command = [sys.executable, "-m", "mlxplatform.library.pull_child", repo, ctx.config["revision"]]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as child:
        events: queue.Queue[Any] = queue.Queue()
        reader = threading.Thread(target=_read, args=(child, events), daemon=True)
        reader.start()
        try:
            return _follow(ctx, repo, events)
        finally:
            child.kill()
            reader.join()


def _follow(ctx: JobContext, repo: str, events: queue.Queue[Any]) -> dict[str, Any]:
    total = files = done_files = done = received = 0
    current = ""
    seen: deque[tuple[float, int]] = deque()
    while True:
        ctx.check()
        try:
            event = events.get(timeout=LOOK)
        except queue.Empty:
            event = None
        if event is _END:
            raise JobFailed("download_died", "The download ended unexpectedly; it goes on where it stopped.", retry=True)
        if event is not None:
            if event["event"] == "done":
                announced.wait_until_known(ctx, repo)
                return {"repo_id": repo, "revision": event["revision"], "bytes": event["bytes"], "model": repo}
            if event["event"] == "failed":
                raise JobFailed(event["code"], event["message"], retry=event["code"] in _PASSING)
            if event["event"] == "plan":
                total, files = event["bytes"], event["files"]
            elif event["event"] == "file":
                done_files, current, done = done_files + 1, event["name"], event["done"]
        if not total:
            continue
        # With what an earlier attempt brought; a file that is whole and not yet told of must not look lost.
        received = max(received, min(done + _arriving(repo), total))
        seen.append((time.monotonic(), received))
        while seen and seen[0][0] < time.monotonic() - SPEED_WINDOW:
            seen.popleft()
        span = seen[-1][0] - seen[0][0]
        ctx.stage(
            "downloading",
            min(received / total, 0.99),
            f"{done_files} of {files} files",
            received_bytes=received,
            total_bytes=total,
            files_done=done_files,
            files_total=files,
            current_file=current,
            bytes_per_sec=round((seen[-1][1] - seen[0][1]) / span) if span > 0 else 0,
        )


def _read(child: subprocess.Popen[bytes], events: queue.Queue[Any]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        try:
            events.put(json.loads(line))
        except ValueError:
            continue
    events.put(_END)


def _arriving(repo: str) -> int:
    """Bytes of this repository's partial files in the cache."""
    folder = hub_cache() / f"models--{repo.replace('/', '--')}" / "blobs"
    size = 0
    for path in folder.glob("*.incomplete"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return size
