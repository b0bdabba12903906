"""Being asked to stop, from a thread, by a signal, and after being frozen."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

#: Many busy threads, so that the kernel has a choice whom to hand the signal.
PROGRAM = """
import threading, time
from workers.stopping import Stop
stop = Stop()
for _ in range(8):
    threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)], daemon=True).start()
seen = threading.Thread(target=stop.wait)
seen.start()
print("ready", flush=True)
stop.wait()
seen.join()
print("stopped", stop.is_set(), flush=True)
"""


def program() -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_wakes_every_waiting_thread(number: signal.Signals, frozen: bool) -> None:
    process = program()
    if frozen:
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert said == "stopped True\n"
