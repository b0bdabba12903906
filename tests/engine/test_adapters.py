"""LoRA adapters: equal to mlx-lm's own layers, mixed in one batch, stacked, refused when they do not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxplatform import paths
from mlxplatform.inference.contract import Failed, Finished, Refusal
from tests.engine.conftest import ENDLESS, Driver, Host
from tests.fixtures.adapter import write_adapter
from workers.engine import loading
from workers.engine.adapters import AdapterRefused, Adapters
from workers.engine.choosing import RowChooser
from workers.engine.core import Core, Limits

PROMPT = list(range(20, 60))


@pytest.fixture
def own_model(tiny_model_dir: Path) -> loading.Loaded:
    """A model of this test's own, since mounting changes it."""
    return loading.load(tiny_model_dir, "float32", "cpu")


@pytest.fixture
def drive(own_model: loading.Loaded) -> Callable[[Adapters], Driver]:
    def make(adapters: Adapters) -> Driver:
        chooser = RowChooser(int(own_model.config["vocab_size"]), None, adapters)
        return Driver(Core(own_model.model, chooser, Limits()))

    return make


def test_an_adapter_gives_what_mlx_lms_own_layers_give(
    own_model: loading.Loaded, drive: Callable[[Adapters], Driver], tiny_model_dir: Path, tmp_path: Path
) -> None:
    from mlx_lm.tuner.utils import load_adapters

    folder = write_adapter(tmp_path / "one")
    reference = loading.load(tiny_model_dir, "float32", "cpu").model
    load_adapters(reference, str(folder))
    theirs = Driver(Core(reference, RowChooser(int(own_model.config["vocab_size"])), Limits()))
    theirs.start(1, PROMPT, max_tokens=12)
    adapters = Adapters(own_model.model)
    adapters.mount("one", folder)
    ours = drive(adapters)
    ours.start(1, PROMPT, max_tokens=12, adapter="one")
    ours.start(2, PROMPT, max_tokens=12)
    ours.run()
    assert ours.tokens[1] == theirs.run()[1]
    assert ours.tokens[1] != ours.tokens[2]


def test_rows_of_one_batch_use_different_adapters(
    own_model: loading.Loaded, drive: Callable[[Adapters], Driver], tmp_path: Path
) -> None:
    adapters = Adapters(own_model.model)
    for name, rank in (("one", 4), ("two", 8)):
        adapters.mount(name, write_adapter(tmp_path / name, rank=rank, seed=rank))
    choices = [None, "one", "two", "one+two", "one"]
    together = drive(adapters)
    for seq, name in enumerate(choices):
        together.start(seq, PROMPT[seq:], max_tokens=12, adapter=name)
    together.run()
    for seq, name in enumerate(choices):
        alone = drive(adapters)
        alone.start(seq, PROMPT[seq:], max_tokens=12, adapter=name)
        assert together.tokens[seq] == alone.run()[seq]
    assert len({tuple(together.tokens[seq]) for seq in range(4)}) == 4


def test_unmounting_brings_the_model_back(
    own_model: loading.Loaded, drive: Callable[[Adapters], Driver], alone: Any, tmp_path: Path
) -> None:
    adapters = Adapters(own_model.model)
    adapters.mount("one", write_adapter(tmp_path / "one"))
    driver = drive(adapters)
    driver.start(1, PROMPT, max_tokens=8, adapter="one")
    driver.run()
    adapters.unmount("one")
    driver.start(2, PROMPT, max_tokens=8)
    driver.start(3, PROMPT, max_tokens=8, adapter="one")
    driver.run()
    assert driver.tokens[2] == alone(PROMPT, max_tokens=8)
    assert (driver.broken[3].code, driver.broken[3].status) == ("adapter_mismatch", 400)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"hidden": 128}, "another model"), ({"fine_tune_type": "dora"}, "dora"), ({"scale": float("nan")}, "cannot be used")],
)
def test_an_adapter_that_does_not_fit_is_refused_with_a_reason(
    own_model: loading.Loaded, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    adapters = Adapters(own_model.model)
    with pytest.raises(AdapterRefused, match=reason):
        adapters.mount("bad", write_adapter(tmp_path / "bad", **options))
    assert adapters.names == []


def test_a_request_names_its_adapter_and_the_engine_mounts_it(make_host: Callable[..., Host], models_home: Path) -> None:
    folder = paths.adapters_dir(models_home)
    write_adapter(folder / "tone", base_model="tiny", name="ft:tiny:local:tone:tone")
    write_adapter(folder / "foreign", base_model="other", seed=1)
    write_adapter(folder / "wide", base_model="tiny", hidden=128)
    host = make_host()
    plain = host.ask("What is the capital of Japan?", max_tokens=12).text
    assert host.ask("What is the capital of Japan?", max_tokens=12, adapter="tone").text != plain
    assert host.ask("What is the capital of Japan?", max_tokens=12).text == plain
    host.engine().kill()
    again = host.ask("What is the capital of Japan?", max_tokens=12, adapter="tone")
    assert isinstance(again.last, Finished)
    assert again.text != plain
    shutil.rmtree(folder / "tone")
    write_adapter(folder / "tone", base_model="tiny", seed=7)
    host.engine().forget_adapter("tone")
    assert host.ask("What is the capital of Japan?", max_tokens=12, adapter="tone").text != again.text
    wide = host.ask(max_tokens=2, adapter="wide").last
    assert isinstance(wide, Failed)
    assert wide.status == 400
    assert "another model" in wide.message
    for adapter, status in (("foreign", 400), ("missing", 404), ("../tone", 404)):
        with pytest.raises(Refusal) as refused:
            host.start(adapter=adapter)
        assert refused.value.status == status


def test_an_adapter_in_use_is_taken_away_only_afterwards(make_host: Callable[..., Host], models_home: Path) -> None:
    write_adapter(paths.adapters_dir(models_home) / "held", base_model="tiny", seed=3)
    host = make_host()
    whole = host.ask("What is 2 plus 3?", max_tokens=300, sampling=ENDLESS, adapter="held").text
    running, answer = host.start("What is 2 plus 3?", max_tokens=300, sampling=ENDLESS, adapter="held")
    answer.wait(lambda a: len(a.text) > 5)
    host.runtime.unmount("held")
    assert host.engine().mounts.listing()["held"]["state"] == "mounted"
    assert running.done.wait(60)
    assert answer.text == whole
    assert host.engine().mounts.listing() == {}


def test_another_projects_adapter_does_not_exist(make_host: Callable[..., Host], models_home: Path) -> None:
    write_adapter(paths.adapters_dir(models_home) / "theirs", base_model="tiny", name="ft:tiny:local:a:theirs", project="a")
    host = make_host()
    assert isinstance(host.ask(max_tokens=2, adapter="theirs", project="a").last, Finished)
    assert isinstance(host.ask(max_tokens=2, model="ft:tiny:local:a:theirs", project="a").last, Finished)
    for fields in ({"adapter": "theirs"}, {"model": "ft:tiny:local:a:theirs"}):
        with pytest.raises(Refusal) as refused:
            host.start(max_tokens=2, project="b", **fields)
        assert refused.value.status == 404


def test_no_adapter_has_a_name(make_host: Callable[..., Host]) -> None:
    host = make_host()
    assert host.ask(max_tokens=8, adapter="none").text == host.ask(max_tokens=8).text
