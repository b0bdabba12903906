"""Which folders of this machine datasets may read: the data directory's ``imports`` folder and the listed roots.

A client names a folder relative to one of them, or by its full path inside one; links that lead out are refused.
Messages never repeat a path the client did not send.
"""

from __future__ import annotations

from pathlib import Path

from django.conf import settings


class UnknownFolder(Exception):
    """The name leads to no folder that may be read."""


def roots() -> list[Path]:
    listed = [Path(entry).expanduser() for entry in settings.ENV.data_roots]
    return [root.resolve() for root in (settings.HOME / "imports", *listed) if root.is_dir()]


def _find(name: str) -> Path | None:
    if not name or "\x00" in name:
        return None
    allowed = roots()
    try:
        asked = Path(name).expanduser()
    except RuntimeError:  # the home of a user there is not
        return None
    candidates = [asked] if asked.is_absolute() else [root / asked for root in allowed]
    for candidate in candidates:
        try:
            found = candidate.resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        if any(found == root or found.is_relative_to(root) for root in allowed):
            return found
    return None


def folder_in_roots(name: str) -> Path:
    """The folder a client means.

    Raises:
        UnknownFolder: there is none, or it lies outside.
    """
    found = _find(name)
    if found is None or not found.is_dir():
        raise UnknownFolder(
            f"{name[:200]} is not a folder that may be read. Put it into the imports folder of the data directory, "
            "or list a folder above it in MLXPLATFORM_DATA_ROOTS."
        )
    return found


def entry_in_roots(name: str) -> Path:
    """The file or folder a client means.

    Raises:
        UnknownFolder: there is none, or it lies outside.
    """
    found = _find(name)
    if found is None:
        raise UnknownFolder(
            f"{name[:200]} is nothing that may be read. Put it into the imports folder of the data directory, "
            "or list a folder above it in MLXPLATFORM_DATA_ROOTS."
        )
    return found
