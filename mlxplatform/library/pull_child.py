"""Child process of a download job: fetches one repository and says so file by file, as NDJSON on stdout.

A process of its own, because a download cannot be interrupted inside a thread; killed at any moment, it leaves
partial files that the next attempt continues.

    python -m mlxplatform.library.pull_child OWNER/NAME REVISION
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from mlxplatform.library import hub


def say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    """The parent keeps our stdin open; its end, however the parent died, is our end."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(repo: str, revision: str) -> int:
    _end_with_parent()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        found = hub.pull(
            repo,
            revision=revision,
            on_plan=lambda files, total: say("plan", files=files, bytes=total),
            on_file=lambda name, done, total: say("file", name=name, done=done, total=total),
        )
    except hub.HubError as error:
        say("failed", code=error.code, message=str(error))
        return 0
    say("done", repo=found.repo, revision=found.revision, bytes=found.bytes)
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1], sys.argv[2])
    os._exit(status)
