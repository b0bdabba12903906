"""The first hour's commands, typed as the page has them, against a running platform."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.system.stack import MODEL, ROOT, Stack, eventually

pytestmark = pytest.mark.stack

PAGE = ROOT / "docs" / "guide" / "first-hour.md"


def commands() -> list[str]:
    """Every shell command of the page that asks the running platform, with its continued lines."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = [part.strip() for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part.strip()]
    return [command for command in found if command.startswith(("curl", "printf"))]


def test_every_command_of_the_first_hour_works(stack: Stack, tmp_path: Path) -> None:
    said: list[dict[str, object]] = []
    file_id = ""
    for command in commands():
        here = command.replace("127.0.0.1:8000", f"127.0.0.1:{stack.port}").replace("smollm2-135m-instruct", MODEL)
        here = here.replace("<the id from above>", file_id)
        done = subprocess.run(["bash", "-c", here], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (here, done.stderr)
        if done.stdout:
            answer = json.loads(done.stdout)
            assert "error" not in answer or answer["error"] is None, answer
            said.append(answer)
            file_id = answer["id"] if answer.get("object") == "file" else file_id
    assert [answer["object"] for answer in said] == ["chat.completion", "file", "batch"]
    batch = str(said[-1]["id"])
    eventually(lambda: stack.http.get(f"/v1/batches/{batch}").json()["status"] == "completed", seconds=60, what="the batch")
