"""Several tokens by one pass, for a row that runs alone: never another answer, only fewer passes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from mlxplatform.inference.contract import Sampling
from tests.engine.conftest import GREEDY, Driver
from tests.engine.test_core import prompts
from tests.fixtures import tiny_model
from workers.engine import loading
from workers.engine.choosing import RowChooser
from workers.engine.core import Core, Limits
from workers.engine.drafting import LONGEST_PAUSE, Drafting, DraftModel, Pace, Repetition
from workers.engine.prefix_cache import PrefixCache
from workers.prepare.protocol import TextSpec

MIB = 1024 * 1024
STOP = 2


class Counted:
    """The tiny model, counting how often it was asked."""

    def __init__(self, model: Any):
        self._model, self.calls = model, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def drafting_driver(tiny: loading.Loaded, drafting: Drafting, *, prefix: Any = None, **limits: Any) -> tuple[Driver, Counted]:
    model = Counted(tiny.model)
    chooser = RowChooser(int(tiny.config["vocab_size"]), goes_ahead=True, drafting=drafting)
    return Driver(Core(model, chooser, Limits(**limits), prefix=prefix)), model


def by_repetition(tiny: loading.Loaded) -> Drafting:
    del tiny
    return Drafting(4)


def by_itself(tiny: loading.Loaded) -> Drafting:
    """The model drafts for itself, so that nearly every guess holds."""
    return Drafting(4, DraftModel(tiny.model))


@pytest.mark.parametrize("kind", [by_repetition, by_itself])
def test_greedy_tokens_are_those_of_plain_decoding(tiny: loading.Loaded, alone: Any, kind: Any) -> None:
    for prompt in [*prompts(4), [5, 6, 7, 8] * 10]:
        drafting = kind(tiny)
        driver, model = drafting_driver(tiny, drafting)
        driver.start(1, prompt, max_tokens=60)
        assert driver.run()[1] == alone(prompt, max_tokens=60)
        assert drafting.guessed >= drafting.held
        if kind is by_itself:
            assert model.calls < 40, "60 tokens by fewer passes than tokens"


def test_text_that_repeats_itself_is_guessed_from_itself(tiny: loading.Loaded, alone: Any) -> None:
    """A greedy tiny model soon runs in circles."""
    prompt = prompts(1)[0]
    drafting = Drafting(4)
    driver, model = drafting_driver(tiny, drafting)
    driver.start(1, prompt, max_tokens=200)
    assert driver.run()[1] == alone(prompt, max_tokens=200)
    assert drafting.held > 50
    assert model.calls < 180


def test_a_seeded_draw_is_the_same_with_and_without_guessing(tiny: loading.Loaded, make_driver: Any) -> None:
    warm = Sampling(temperature=0.8, top_k=5, seed=11)
    plain = make_driver()
    plain.start(1, prompts(1)[0], max_tokens=60, sampling=warm)
    driver, _ = drafting_driver(tiny, by_itself(tiny))
    driver.start(1, prompts(1)[0], max_tokens=60, sampling=warm)
    assert driver.run()[1] == plain.run()[1]


@pytest.mark.parametrize("seed", range(6))
def test_neighbours_cancels_and_pre_emptions_find_a_cache_that_fits(tiny: loading.Loaded, alone: Any, seed: int) -> None:
    rng = random.Random(seed)
    driver, _ = drafting_driver(tiny, by_itself(tiny), slots=2, prefix=PrefixCache(MIB) if seed % 2 else None)
    asked = dict(enumerate(prompts(6, seed=seed)))
    cancelled, waiting = set(), list(asked)
    while waiting or not driver.core.idle:
        if waiting and rng.random() < 0.3:
            seq = waiting.pop(0)
            driver.start(seq, asked[seq], max_tokens=24, priority=rng.choice(["interactive", "row"]))
        for _ in range(rng.randrange(1, 9)):
            driver.step()
        if rng.random() < 0.1 and driver.core._sequences:
            victim = rng.choice(list(driver.core._sequences))
            driver.core.cancel(victim)
            cancelled.add(victim)
    for seq, prompt in asked.items():
        got, expected = driver.tokens.get(seq, []), alone(prompt, max_tokens=24)
        assert got == (expected[: len(got)] if seq in cancelled else expected)


def test_a_stop_among_guessed_tokens_ends_the_answer_there(tiny: loading.Loaded, alone: Any) -> None:
    prompt = prompts(1)[0]
    expected = alone(prompt, max_tokens=20)
    prefix = PrefixCache(MIB)
    driver, _ = drafting_driver(tiny, by_itself(tiny), prefix=prefix)
    driver.start(1, prompt, max_tokens=20, eos=[expected[6]])
    assert driver.run()[1] == expected[: expected.index(expected[6])]
    told = [*prompt, *driver.tokens[1]]
    driver.start(2, [*told, 9, 9, 9], max_tokens=12)
    assert driver.run()[2] == alone([*told, 9, 9, 9], max_tokens=12), "what was kept for the next turn fits its tokens"


def test_guesses_of_which_nothing_holds_become_rare() -> None:
    pace, tried = Pace(), 0
    for _ in range(200):
        if pace.due():
            tried += 1
            pace.held(0)
    assert tried < 15
    assert pace.pause == LONGEST_PAUSE
    pace.held(1)
    assert pace.pause == 1


def test_repetition_finds_the_latest_place_and_never_its_own_end() -> None:
    assert Repetition().guess([1, 2, 3, 9, 1, 2, 3, 7, 5, 1, 2, 3], 2) == [7, 5]
    assert Repetition().guess([1, 2, 3, 4], 4) == []
    assert Repetition().guess([], 4) == []
    growing = Repetition()
    growing.guess([1, 2, 3, 4], 4)
    assert growing.guess([1, 2, 3, 4, 8, 1, 2], 2) == [3, 4]


FORCED = r"the capital of Japan is (Tokyo|Osaka), as everybody who has been there knows\."


def constrained(tiny: loading.Loaded, folder: Path, *, jump: bool) -> tuple[Driver, Counted, dict[str, Any]]:
    model = Counted(tiny.model)
    chooser = RowChooser(int(tiny.config["vocab_size"]), folder, goes_ahead=True)
    spec = TextSpec(stop_ids=[STOP], grammar=LLMatcher.grammar_from_regex(FORCED), jump=jump)
    return Driver(Core(model, chooser, Limits())), model, {"grammar": spec, "eos": [STOP], "max_tokens": 200}


def test_determined_tokens_are_not_waited_for_one_by_one(tiny: loading.Loaded, tiny_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    passes, said = {}, {}
    for jump in (False, True):
        driver, model, order = constrained(tiny, tiny_model_dir, jump=jump)
        driver.start(1, prompts(1)[0], **order)
        said[jump] = tokenizer.decode(driver.run()[1])
        passes[jump] = model.calls
        assert driver.ended == {1: "stop"}
    assert said[True] == said[False]
    assert passes[True] < passes[False] / 2


def test_a_neighbour_that_comes_in_the_middle_of_a_jump_spoils_nothing(tiny: loading.Loaded, tiny_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    for steps in (3, 5, 9, 14):
        driver, _, order = constrained(tiny, tiny_model_dir, jump=True)
        driver.start(1, prompts(1)[0], **order)
        for _ in range(steps):
            driver.step()
        driver.start(2, prompts(2)[1], max_tokens=3)
        driver.run()
        assert tokenizer.decode(driver.tokens[1]).startswith("the capital of Japan is ")
        assert tokenizer.decode(driver.tokens[1]).endswith("knows.")
        assert driver.broken == {}


@pytest.mark.parametrize(
    ("draft", "told"), [("ngram", "ngram"), ("tiny-draft", "draft model"), ("wide-draft", "another vocabulary")]
)
def test_an_engine_says_what_came_of_the_setting(make_host: Any, models_home: Path, draft: str, told: str) -> None:
    for name, recipe in (("tiny-draft", {}), ("wide-draft", {"vocab": 384})):
        if not (models_home / "models" / name).exists():
            tiny_model.install(models_home, name, **recipe)
    plain, host = make_host(), make_host(draft=draft)
    question = {"max_tokens": 120, "sampling": GREEDY}
    assert host.ask("What is 2 plus 3?", **question).text == plain.ask("What is 2 plus 3?", **question).text
    assert told in host.engine().facts["speculation"]
