"""Where things lie under the data directory, and the short private folder sockets need.

Unix socket paths are limited to about 104 bytes, so sockets live in a per-user runtime directory named by
a hash of the data directory rather than inside it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path


def runtime_dir(home: Path) -> Path:
    """The 0700 folder for this data directory's sockets, created when missing.

    Raises:
        PermissionError: the folder exists and belongs to somebody else.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    root = base / f"mlxp-{os.getuid()}"
    folder = root / hashlib.sha256(str(home).encode()).hexdigest()[:12]
    for path in (root, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
            raise PermissionError(f"{path} belongs to another user")
    return folder


def broker_socket(home: Path) -> Path:
    return runtime_dir(home) / "broker.sock"


def models_dir(home: Path) -> Path:
    return home / "models"


def adapters_dir(home: Path) -> Path:
    """Published adapters, one directory each."""
    return home / "adapters"


def training_dir(home: Path) -> Path:
    """Checkpoints of runs that have not ended, one directory per job; nothing here is ever loaded as a model."""
    return home / "training"


def artefacts_dir(home: Path) -> Path:
    """Root of Django's default storage: uploaded and produced files."""
    return home / "artefacts"


def logs_dir(home: Path) -> Path:
    return home / "logs"
