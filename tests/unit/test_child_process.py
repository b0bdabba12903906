"""A supervised child on a machine that is short of everything."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers import child_process
from workers.child_process import Child
from workers.output import Output
from workers.procfile import Process


@pytest.mark.parametrize(("number", "passes"), [(errno.EAGAIN, True), (errno.ENOMEM, True), (errno.ENOENT, False)])
async def test_a_start_that_failed_for_want_of_resources_is_tried_again(
    number: int, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "BACK_OFF", (0.01,))
    read_fd, write_fd = os.pipe()
    output = Output(tmp_path)
    process = Process("sleeper", (sys.executable, "-c", "import time; time.sleep(60)"))
    child = Child(process, {}, read_fd, output, on_terminal=False)
    spawn, tries = child._spawn, 0

    def scarce() -> subprocess.Popen[bytes]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(number, os.strerror(number))
        return spawn()

    monkeypatch.setattr(child, "_spawn", scarce)
    started = asyncio.Event()

    def announce() -> None:
        if child.pid is not None:
            started.set()

    running = asyncio.create_task(child.run(announce, True))
    try:
        if not passes:
            with pytest.raises(OSError, match=os.strerror(number)):
                await running
            return
        await asyncio.wait_for(started.wait(), 10)
        child.stop()
        await asyncio.wait_for(running, 10)
        assert tries == 3
    finally:
        output.close()
        os.close(read_fd)
        os.close(write_fd)
