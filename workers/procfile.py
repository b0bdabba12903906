"""The Procfile: which processes there are and how each is started. Pure parsing."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One line: a name and the command it stands for."""

    name: str
    command: tuple[str, ...]


def parse(text: str) -> list[Process]:
    """Read ``name: command`` lines; ``python`` means the interpreter that runs us.

    Raises:
        ValueError: a line that is neither empty, nor a comment, nor ``name: command``; or a name used twice.
    """
    processes: list[Process] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, command = line.partition(":")
        words = shlex.split(command)
        if not colon or not name.strip() or not words:
            raise ValueError(f"Procfile line {number} is not of the form name: command")
        if name in {process.name for process in processes}:
            raise ValueError(f"Procfile line {number}: the name {name} is used twice")
        if words[0] == "python":
            words[0] = sys.executable
        processes.append(Process(name.strip(), tuple(words)))
    return processes


def load() -> list[Process]:
    """Ours. The file beside this module is a link to the one at the root, so that a wheel holds it too."""
    return parse(Path(__file__).with_name("Procfile").read_text())
