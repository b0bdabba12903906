"""Fixtures every test folder may use: a database file, a real broker, a tiny model, the running platform."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.early import BROKER_SOCKET, HOME
from tests.fixtures import tiny_model
from tests.system.stack import Stack, prepared_home
from workers import broker_process


def drives_a_browser(item: pytest.Item) -> bool:
    """Whether the test asks for the browser, itself or through another fixture: no mark can be forgotten."""
    return "browser" in getattr(item, "fixturenames", ())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests last: the browser's driver keeps an event loop in this thread, in which no other may run."""
    items.sort(key=drives_a_browser)


@pytest.fixture(autouse=True)
def no_key_is_remembered() -> Iterator[None]:
    """What one test's keys taught this process must not meet the next test's empty database."""
    yield
    if identity := sys.modules.get("mlxplatform.accounts.identity"):
        identity.forget()


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """Put the test database in a file: several threads and processes see the same one, as in service."""
    from django.conf import settings

    database = settings.DATABASES["default"]
    if "sqlite3" in database["ENGINE"]:
        database["TEST"]["NAME"] = str(HOME / "test.sqlite3")


@pytest.fixture(scope="session")
def broker_server() -> Iterator[str]:
    """A real Valkey for the whole run; the value is its URL, which is also ``settings.REDIS_URL``."""
    folder = HOME / "broker"
    folder.mkdir()
    server = broker_process.start_server(folder, BROKER_SOCKET)
    yield f"unix://{BROKER_SOCKET}"
    server.kill()
    server.wait()


@pytest.fixture
def broker(broker_server: str) -> Iterator[redis.Redis]:
    """The real Valkey, empty at the start of the test."""
    client = redis.Redis.from_url(broker_server, socket_timeout=None)
    client.flushall()
    yield client
    client.close()


@pytest.fixture(scope="session")
def tiny_model_dir() -> Path:
    """A deterministic chat model with random weights; talks nonsense, quickly."""
    return tiny_model.directory()


@pytest.fixture(scope="session")
def trained_model_dir() -> Path:
    """The same, trained long enough to answer its few facts."""
    return tiny_model.directory(steps=tiny_model.TRAINED_STEPS)


@pytest.fixture(scope="session")
def home_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared data directory with the trained tiny model as ``tiny``, to copy from."""
    return prepared_home(tmp_path_factory.mktemp("template") / "home")


@pytest.fixture(scope="session")
def stack(home_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole platform, running, shared by every test of the run. Leave it as you found it; kill nothing."""
    home = tmp_path_factory.mktemp("stack") / "home"
    shutil.copytree(home_template, home)
    with Stack(home) as running:
        yield running


@pytest.fixture
def make_stack(home_template: Path, tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Starts platforms of your own, for tests that kill or configure: ``make_stack(MLXPLATFORM_SLOTS="2")``."""
    running: list[Stack] = []

    def make(*, ready: bool = True, **environ: str) -> Stack:
        home = tmp_path / f"home{len(running)}"
        shutil.copytree(home_template, home)
        one = Stack(home, environ)
        running.append(one)
        one.start()
        if ready:
            one.wait_ready()
        return one

    yield make
    for one in running:
        one.stop()


@pytest.fixture
def fresh_stack(make_stack: Callable[..., Stack]) -> Stack:
    """A platform of your own, ready, free to be damaged."""
    return make_stack()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser the browser tests drive."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    code = "from playwright.sync_api import sync_playwright as p\nwith p() as x: print(x.chromium.executable_path)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    path = answer.stdout.strip()
    if not path or not Path(path).exists():
        pytest.fail("No Chromium found; run: make chromium")
    return path
