"""Run tests on a private PostgreSQL server: ``python -m tests.on_postgres [pytest's words]``.

Without words, the parts whose behaviour depends on the database: jobs, rows, files, batches, schedules, webhooks.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.fixtures.postgres import PostgresServer

DEPENDENT = (
    "tests/unit/test_moves.py",
    "tests/unit/test_jobs_contention.py",
    "tests/unit/test_jobs_runner.py",
    "tests/unit/test_jobs_sweep.py",
    "tests/unit/test_jobs_upkeep.py",
    "tests/unit/test_rows_chunks.py",
    "tests/unit/test_rows_run.py",
    "tests/unit/test_memory_history.py",
    "tests/unit/test_memory_synthesis.py",
    "tests/unit/test_schedules.py",
    "tests/api/test_jobs.py",
    "tests/api/test_memory.py",
    "tests/api/test_files.py",
    "tests/api/test_batches.py",
    "tests/api/test_webhooks.py",
)


def run(words: list[str]) -> int:
    with PostgresServer() as server:
        environ = {**os.environ, "TEST_DATABASE_URL": server.url("mlxp")}
        server.create("mlxp")
        return subprocess.run([sys.executable, "-m", "pytest", *(words or DEPENDENT)], env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
