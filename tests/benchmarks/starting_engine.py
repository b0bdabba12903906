"""An engine child by itself, and a script with mlx-lm beside it: seconds from the start of the process to its first token.

The child is started as the gpu process starts it, with a request already waiting in its socket. The script has the same
BLAS, threads, weights and prompt, and loads and generates as mlx-lm's own documentation does.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from mlxplatform.inference.contract import Sampling
from tests.system.stack import ROOT
from workers.engine import protocol
from workers.host.child import EngineChild

#: Ids that any model of more than a handful of tokens has.
PROMPT = list(range(10, 40))


def seconds_to_first_token(model_dir: Path) -> float:
    arrived = threading.Event()
    at = 0.0

    def on_report(child: EngineChild, report: object) -> None:
        nonlocal at
        if isinstance(report, protocol.Step) and (report.tokens or report.runs) and not at:
            at = time.perf_counter()
            arrived.set()

    began = time.perf_counter()
    child = EngineChild(model_dir, {"context": 2048}, on_report, lambda child, status: arrived.set())
    child.listen()
    child.send(protocol.Start(1, PROMPT, [], 4, "interactive", [], Sampling(temperature=0.0)))
    arrived.wait(120)
    child.quit()
    assert at, "the child ended without a token"
    return at - began


_SCRIPT = """
import sys
from workers.engine import platform
machine = platform.prepare()
from mlx_lm import load, stream_generate
model, tokenizer = load(sys.argv[1])
model = platform.apply_dtype(model, platform.resident_dtype("auto", machine.device))
next(iter(stream_generate(model, tokenizer, list(range(10, 40)), max_tokens=4)))
print("token", flush=True)
"""


def seconds_of_a_script(model_dir: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-c", _SCRIPT, str(model_dir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as script:
        assert script.stdout is not None
        assert "token" in script.stdout.readline()
        seconds = time.perf_counter() - began
        script.kill()
    return seconds
