"""Running model-written Python where it can do no harm, or not at all.

Three kinds of sandbox, in order of preference: a container of a pinned image that is already present (never
pulled), bubblewrap, and macOS's sandbox-exec. Each gives no network, no writable files, a fresh environment, and
bounds on time, memory, processes and output. There is no way to run code on the host itself: a kind that does not
pass its own trial here is not used, and with none the template is refused.

What it does not bound: the memory of all processes of a bubblewrap together, only that of each (a bound of the whole
needs a control group, which an ordinary user may not make everywhere).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import structlog
from django.conf import settings

log = structlog.get_logger(__name__)

#: Bounds of one run: processor seconds, seconds by the clock, memory (of each process outside of containers), output.
RUN_SECONDS, CLOCK_SECONDS = 15, 20
MEMORY_MB, OUTPUT_BYTES = 256, 64 * 1024
#: Processes at once: a container bounds their memory together, the others only one by one.
CONTAINER_PROCESSES, PROCESSES = 64, 16
NOBODY = 65534
INSIDE_TMP = "/tmp"  # noqa: S108 - of the sandbox, empty and read-only
#: Exit statuses of a process that used up its processor time (SIGXCPU), and that was killed outright (SIGKILL).
OUT_OF_TIME, KILLED = (-24, 152), (-9, 137)

Outcome = Literal["verified", "failed", "unverified"]

UNAVAILABLE = (
    "This template runs code written by a model, which needs a sandbox: bubblewrap, macOS sandbox-exec, or a container "
    "image that is present and pinned by digest in MLXPLATFORM_SANDBOX_IMAGE. None works here; on Debian and Ubuntu: "
    "apt install bubblewrap."
)

_MACOS_PROFILE = """(version 1)(deny default)(allow process-exec process-fork)(allow file-read*)(allow sysctl-read)
(allow mach-lookup (global-name "com.apple.system.logger"))(deny network*)(deny file-write*)"""


@dataclass(frozen=True)
class Verdict:
    """``failed``: it ran and its exit status was not 0. ``unverified``: ``reason`` says why nothing can be said."""

    outcome: Outcome
    reason: str = ""
    error: str = ""


def why_unavailable() -> str | None:
    return None if kind_here() else UNAVAILABLE


@lru_cache(maxsize=1)
def kind_here() -> str:
    """The kind of sandbox this machine has and that passes a trial, or ""."""
    image = settings.ENV.sandbox_image
    if image and "@sha256:" in image and _container_tool() and _quiet([_container_tool(), "image", "inspect", image]):
        return "container"
    if shutil.which("bwrap") and _interpreter():
        return "bubblewrap"
    if sys.platform == "darwin" and shutil.which("sandbox-exec") and _quiet(_macos([sys.executable, "-I", "-c", "pass"])):
        return "sandbox-exec"
    return ""


def _container_tool() -> str:
    return shutil.which("docker") or shutil.which("podman") or ""


def _quiet(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@lru_cache(maxsize=1)
def _interpreter() -> str:
    """A Python that runs inside bubblewrap: the system's, or ours where nobody may read ours."""
    ours = str(Path(sys.base_prefix) / "bin" / "python3")
    return next((found for found in ("/usr/bin/python3", ours) if _quiet(_bubblewrap(found, ["-I", "-c", "pass"]))), "")


#: Bounds itself and becomes the sandbox: limits set between fork and exec of a process with threads could deadlock.
#: Root becomes nobody first, since the kernel bounds neither processes nor much else of root's.
_OUTSIDE = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({RUN_SECONDS}, {RUN_SECONDS + 1}))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if sys.platform != "darwin" and os.getuid() == 0:
    os.setgroups([])
    os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
    os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
os.execvp(sys.argv[1], sys.argv[1:])
"""

#: Inside, where processes are counted anew: bounds those and their memory, then becomes the interpreter again.
_INSIDE = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NPROC, ({PROCESSES}, {PROCESSES}))
if sys.platform != "darwin":
    resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_MB} * 1048576,) * 2)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def _bounded(command: list[str]) -> list[str]:
    return [sys.executable, "-I", "-c", _OUTSIDE, *command]


def _bubblewrap(python: str, arguments: list[str]) -> list[str]:
    """A new namespace of everything, read-only system folders, nothing of the user's, not even an empty file to write."""
    folders = [path for path in ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives") if Path(path).is_dir()]
    own = [] if python.startswith("/usr/") else [sys.base_prefix]
    binds = [part for path in dict.fromkeys([*folders, *own]) for part in ("--ro-bind", path, path)]
    return _bounded(
        [shutil.which("bwrap") or "bwrap", "--unshare-all", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY),
         "--die-with-parent",
         "--new-session", "--clearenv", "--cap-drop", "ALL", *binds, "--proc", "/proc", "--dev", "/dev", "--tmpfs", INSIDE_TMP,
         "--chdir", INSIDE_TMP, "--remount-ro", INSIDE_TMP, "--remount-ro", "/dev", "--remount-ro", "/",
         python, "-I", "-c", _INSIDE, *arguments]
    )  # fmt: skip


def _macos(command: list[str]) -> list[str]:
    python, *arguments = command
    return _bounded(["sandbox-exec", "-p", _MACOS_PROFILE, python, "-I", "-c", _INSIDE, *arguments])


def _container(name: str) -> list[str]:
    return [_container_tool(), "run", "--rm", "-i", "--name", name, "--pull", "never", "--network", "none", "--read-only",
            "--user", f"{NOBODY}:{NOBODY}", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
            "--memory", f"{MEMORY_MB}m", "--memory-swap", f"{MEMORY_MB}m", "--pids-limit", str(CONTAINER_PROCESSES),
            "--cpus", "1", settings.ENV.sandbox_image, "python3", "-I", "-"]  # fmt: skip


async def verify(code: str) -> Verdict:
    """Run the code on standard input of a sandboxed interpreter."""
    kind = await asyncio.to_thread(kind_here)
    name = f"mlxp-verify-{secrets.token_hex(6)}"
    if kind == "container":
        command = _container(name)
    elif kind == "bubblewrap":
        command = _bubblewrap(_interpreter(), ["-I", "-"])
    elif kind == "sandbox-exec":
        command = _macos([sys.executable, "-I", "-"])
    else:
        return Verdict("unverified", "no-sandbox")
    verdict = await _run(command, code.encode("utf-8", "replace"))
    if kind == "container" and not await asyncio.to_thread(_removed, name):
        return Verdict("unverified", "cleanup-uncertain", verdict.error)
    return verdict


async def _run(command: list[str], source: bytes) -> Verdict:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
        )
    except OSError as error:
        return Verdict("unverified", "sandbox-error", str(error.strerror))
    assert process.stdin and process.stdout
    try:
        async with asyncio.timeout(CLOCK_SECONDS):
            try:
                process.stdin.write(source)
                await process.stdin.drain()
                process.stdin.close()
            except (BrokenPipeError, ConnectionResetError):
                log.debug("sandbox.closed_early")
            output = await process.stdout.read(OUTPUT_BYTES + 1)
            while len(output) <= OUTPUT_BYTES and (more := await process.stdout.read(OUTPUT_BYTES)):
                output += more
            if len(output) > OUTPUT_BYTES:
                return Verdict("unverified", "output-overflow")
            status = await process.wait()
    except TimeoutError:
        return Verdict("unverified", "timeout")
    finally:
        await _end(process)
    text = output.decode(errors="replace").strip()
    if status == 0:
        return Verdict("verified")
    if status in OUT_OF_TIME:
        return Verdict("unverified", "timeout", text[-400:])
    if status in KILLED:
        return Verdict("unverified", "oom", text[-400:])
    return Verdict("failed", f"exit {status}", text[-400:])


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what still runs and see it gone."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
    # To the end of the pipe first: a reader that was paused by too much output never sees it close, and wait() never returns.
    assert process.stdout
    while await process.stdout.read(OUTPUT_BYTES):
        pass
    await process.wait()


def _removed(name: str) -> bool:
    """Whether the container is really gone."""
    _quiet([_container_tool(), "rm", "-f", name])
    return not _quiet([_container_tool(), "container", "inspect", name])
