"""An engine child by itself: seconds from the start of its process to its first token.

The child is started as the gpu process starts it, with a request already waiting in its socket.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from mlxplatform.inference.contract import Sampling
from workers.engine import protocol
from workers.host.child import EngineChild

#: Ids that any model of more than a handful of tokens has.
PROMPT = list(range(10, 40))


def seconds_to_first_token(model_dir: Path) -> float:
    arrived = threading.Event()
    at = 0.0

    def on_report(child: EngineChild, report: object) -> None:
        nonlocal at
        if isinstance(report, protocol.Step) and report.tokens and not at:
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
