"""Fixtures with real mlx in the test process: a tiny model, and engine cores on it."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workers.engine import platform

if "mlx.core" not in sys.modules:
    platform.prepare(threads=1)

from workers.engine import loading  # noqa: E402

# mlx-lm lowers the limit of open files at import; this process runs other tests as well.
_set, resource.setrlimit = resource.setrlimit, lambda *_: None  # type: ignore[assignment]
loading.import_light_mlx_lm()
resource.setrlimit = _set

from mlxplatform.inference.contract import Sampling  # noqa: E402
from workers.engine.choosing import RowChooser  # noqa: E402
from workers.engine.core import Core, Limits  # noqa: E402
from workers.engine.protocol import Broken, Start, Step  # noqa: E402

GREEDY = Sampling(temperature=0.0)


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
