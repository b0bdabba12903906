"""Loaded before anything else of a test run (``-p tests.early``): the environment settings are read from.

Every run gets a data directory of its own, and a broker address nobody listens on until a test asks for the
``broker`` fixture. Settings of the person who runs the tests do not leak in; only TEST_DATABASE_URL does, so that
the same tests run on PostgreSQL.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

for name in list(os.environ):
    if name.startswith("MLXPLATFORM_") or name in {"PORT", "MODEL", "REDIS_URL", "DATABASE_URL"}:
        del os.environ[name]

#: Short, since a unix socket's path must fit 104 bytes.
HOME = Path(tempfile.mkdtemp(prefix="mlxp-"))
BROKER_SOCKET = HOME / "broker.sock"
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

os.environ["MLXPLATFORM_HOME"] = str(HOME)
os.environ["REDIS_URL"] = f"unix://{BROKER_SOCKET}"
if url := os.environ.get("TEST_DATABASE_URL"):
    os.environ["DATABASE_URL"] = url
