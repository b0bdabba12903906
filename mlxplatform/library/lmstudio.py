"""Where LM Studio keeps models, and which of its directories are in MLX format. Reads names only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

#: Its folders of today and of older versions.
_FOLDERS = ("~/.lmstudio/models", "~/.cache/lm-studio/models")


def roots() -> list[Path]:
    return [path for path in (Path(folder).expanduser() for folder in _FOLDERS) if path.is_dir()]


def folders() -> Iterator[tuple[str, Path]]:
    """(owner/name, directory) of everything that has a config.json."""
    for root in roots():
        home = root.resolve()
        for config in sorted(root.glob("*/*/config.json")):
            folder = config.parent
            if not folder.name.startswith(".") and folder.resolve().is_relative_to(home):
                yield f"{folder.parent.name}/{folder.name}", folder
