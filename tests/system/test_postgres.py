"""The platform on PostgreSQL: its own tests of jobs and rows, and a batch whose database goes away under it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.fixtures.postgres import PostgresServer
from tests.system.batch_run import BatchRun
from tests.system.stack import ROOT, Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

#: Those whose every line is about transactions; ``make test-postgres`` runs more.
CORE = ("tests/unit/test_jobs_contention.py", "tests/unit/test_rows_chunks.py")

CUT = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as one:
        yield one


def test_jobs_and_rows_pass_their_tests_on_postgres() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.on_postgres", *CORE, "-q"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout


@pytest.mark.drill
def test_a_batch_survives_cut_connections_and_a_restart_of_the_database(
    make_stack: Callable[..., Stack], server: PostgresServer
) -> None:
    stack = make_stack(DATABASE_URL=server.create("platform"), MLXPLATFORM_SLOTS="2", MLXPLATFORM_ROW_SLOTS="2")
    run = BatchRun(stack, 500)
    run.reach(40, "cutting connections")
    cut = server.sql(
        "platform",
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'platform' and pid <> pg_backend_pid()",
    )
    assert len(cut) > 3
    run.reach(100, "restarting the database")
    server.stop()
    server.start()
    run.verify()
    assert stack.http.get("/health").status_code == 200
