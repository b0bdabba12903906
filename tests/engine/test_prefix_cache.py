"""The prefix tree against a plain search, and the prefix cache on the tiny model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.conftest import Driver
from workers.engine.prefix_cache import PrefixCache
from workers.engine.prefix_disk import DiskTier
from workers.engine.prefix_tree import PrefixTree, shared_length

MIB = 1024 * 1024
TOKENS = st.lists(st.integers(0, 2), max_size=8)


@given(st.lists(st.tuples(TOKENS, st.booleans()), max_size=12), TOKENS)
def test_the_tree_finds_what_a_plain_search_finds(operations: list[tuple[list[int], bool]], wanted: list[int]) -> None:
    tree, stored = PrefixTree(), {}
    for tokens, insert in operations:
        if insert:
            tree.insert(tokens, tuple(tokens))
            stored[tuple(tokens)] = True
        else:
            tree.remove(tokens)
            stored.pop(tuple(tokens), None)
    shorter, length, longer, shared = tree.nearest(wanted)
    prefixes = [key for key in stored if list(key) == wanted[: len(key)]]
    assert (shorter, length) == ((max(prefixes, key=len), len(max(prefixes, key=len))) if prefixes else (None, 0))
    best = max((shared_length(key, wanted) for key in stored), default=0)
    if best > length:
        assert shared == best
        assert longer is not None
        assert shared_length(longer, wanted) == best
    assert sorted(tree.prefixes(wanted)) == sorted(key for key in prefixes if len(key) < len(wanted))


@settings(deadline=None)
@given(TOKENS, TOKENS)
def test_shared_length_is_where_they_first_differ(left: list[int], right: list[int]) -> None:
    found = shared_length(left, right)
    assert left[:found] == right[:found]
    assert found == min(len(left), len(right)) or left[found] != right[found]


def conversation(length: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 400) for _ in range(length)]


def test_the_next_turn_prefills_only_what_is_new(make_driver: Any, alone: Any) -> None:
    prefix = PrefixCache(16 * MIB)
    first = conversation(300)
    driver = make_driver(prefix=prefix)
    driver.start(1, first, max_tokens=10)
    answer = driver.run()[1]
    second = [*first, *answer, *conversation(8, seed=2)]
    before = driver.core.prefilled_tokens
    driver.start(2, second, max_tokens=10)
    assert driver.run()[2] == alone(second, max_tokens=10)
    assert driver.cached[2] >= len(first) + len(answer) - 1
    assert driver.core.prefilled_tokens - before <= 0.05 * len(second)


def test_an_exact_repeat_keeps_one_token_back(make_driver: Any, alone: Any) -> None:
    prompt = conversation(64)
    driver = make_driver(prefix=PrefixCache(16 * MIB))
    for seq in (1, 2, 3):
        driver.start(seq, prompt, max_tokens=6)
        driver.run()
    assert driver.tokens[2] == driver.tokens[3] == alone(prompt, max_tokens=6)
    assert driver.cached[2] == len(prompt) - 1


def test_a_branch_reuses_the_common_part_and_leaves_the_stored_cache_intact(make_driver: Any, alone: Any) -> None:
    trunk = conversation(100)
    branches = [[*trunk, *conversation(20, seed=seed)] for seed in (2, 3, 4)]
    driver = make_driver(prefix=PrefixCache(16 * MIB))
    for _ in range(2):
        for seq, prompt in enumerate(branches):
            driver.tokens.pop(seq, None)
            driver.start(seq, prompt, max_tokens=8)
            driver.run()
            assert driver.tokens[seq] == alone(prompt, max_tokens=8)
    assert driver.cached[1] >= len(trunk)


def test_adapters_have_caches_of_their_own(make_driver: Any) -> None:
    prefix = PrefixCache(16 * MIB)
    prompt = conversation(64)
    driver = make_driver(prefix=prefix)
    driver.start(1, prompt, max_tokens=2)
    driver.run()
    assert prefix.covers(None, prompt) >= len(prompt)
    assert prefix.covers("tone", prompt) == 0


def test_bytes_and_entries_are_capped(make_driver: Any) -> None:
    prefix = PrefixCache(MIB, max_entries=3)
    driver = make_driver(prefix=prefix)
    for seq in range(8):
        driver.start(seq, conversation(200, seed=seq), max_tokens=2)
        driver.run()
    assert len(prefix) <= 3
    assert prefix.bytes <= MIB
    assert prefix.evictions >= 5


def test_an_aborted_prefill_keeps_what_it_did(make_driver: Any) -> None:
    driver: Driver = make_driver(prefix=PrefixCache(16 * MIB), prefill_target=1e-9)
    prompt = conversation(400)
    driver.start(1, prompt, max_tokens=2)
    driver.start(2, conversation(20, seed=5), max_tokens=200)
    done = 0
    while done < 0.6 * len(prompt):
        done = max([done, *(p.done for p in driver.step().progress if p.seq == 1)])
    driver.core.cancel(1)
    before = driver.core.prefilled_tokens
    driver.start(3, prompt, max_tokens=2)
    while 3 not in driver.ended:
        driver.step()
    assert driver.cached[3] == done
    assert driver.core.prefilled_tokens - before <= len(prompt) - done


def test_flush_forgets_everything(make_driver: Any, tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, "model", 16 * MIB)
    prefix = PrefixCache(16 * MIB, disk=disk)
    driver = make_driver(prefix=prefix)
    prompt = conversation(300)
    driver.start(1, prompt, max_tokens=2)
    driver.run()
    assert prefix.save_one()
    prefix.flush()
    assert prefix.covers(None, prompt) == 0
    assert disk.longest(None, prompt) == 0
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_ssd_tier_survives_a_restart_but_not_another_identity(make_driver: Any, alone: Any, tmp_path: Path) -> None:
    prompt = conversation(300)
    first = PrefixCache(16 * MIB, disk=DiskTier(tmp_path, "model", 16 * MIB))
    driver = make_driver(prefix=first)
    driver.start(1, prompt, max_tokens=4)
    driver.run()
    while first.save_one():
        pass
    again = [*prompt, *driver.tokens[1], *conversation(10, seed=3)]
    restarted = make_driver(prefix=PrefixCache(16 * MIB, disk=DiskTier(tmp_path, "model", 16 * MIB)))
    restarted.start(1, again, max_tokens=4)
    assert restarted.run()[1] == alone(again, max_tokens=4)
    assert restarted.cached[1] >= len(prompt)
    assert DiskTier(tmp_path, "other model", 16 * MIB).longest(None, again) == 0


def test_a_damaged_file_is_forgotten(make_driver: Any, alone: Any, tmp_path: Path) -> None:
    prompt = conversation(300)
    prefix = PrefixCache(16 * MIB, disk=DiskTier(tmp_path, "model", 16 * MIB))
    driver = make_driver(prefix=prefix)
    driver.start(1, prompt, max_tokens=2)
    driver.run()
    prefix.save_one()
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:1000])
    restarted = make_driver(prefix=PrefixCache(16 * MIB, disk=DiskTier(tmp_path, "model", 16 * MIB)))
    restarted.start(1, [*prompt, 5, 6], max_tokens=4)
    assert restarted.run()[1] == alone([*prompt, 5, 6], max_tokens=4)
    assert not file.exists()


def test_rows_with_a_common_beginning_compute_it_once(make_driver: Any, alone: Any) -> None:
    system = conversation(200)
    rows = [[*system, *conversation(10, seed=seed)] for seed in range(2, 10)]
    driver = make_driver(prefix=PrefixCache(16 * MIB))
    for seq, prompt in enumerate(rows):
        driver.start(seq, prompt, max_tokens=6, priority="row")
    driver.run()
    assert [driver.tokens[seq] for seq in range(8)] == [alone(prompt, max_tokens=6) for prompt in rows]
    assert driver.core.prefilled_tokens <= len(system) + 8 * 12
    assert all(driver.cached[seq] >= len(system) - 1 for seq in range(1, 8))
