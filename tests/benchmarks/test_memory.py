"""The memory at size: reading 10,000 conversations, searching 10,000 sections. Printed by ``make bench``."""

from __future__ import annotations

import random
import statistics
import time

import pytest

from mlxplatform.memory import index
from mlxplatform.memory.ingest import ingest
from mlxplatform.memory.models import Vault
from mlxplatform.memory.sources.registry import READERS
from tests.fixtures.memory_notes import jsonl

pytestmark = [pytest.mark.bench, pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

CONVERSATIONS, TURNS = 10_000, 8
PAGES, SECTIONS = 2_000, 5
READS = 100
#: Bars: seconds to read all conversations, milliseconds for the slowest of twenty searches.
INGEST_S, SEARCH_MS = 60.0, 100.0

_words = random.Random(7)
VOCABULARY = ["".join(_words.choices("aeioulnrst", k=_words.randint(3, 9))) for _ in range(5_000)]


def text(words: int) -> str:
    # A few words are everywhere and most are rare, as in any language.
    return " ".join(VOCABULARY[min(int(_words.paretovariate(0.6)), len(VOCABULARY)) - 1] for _ in range(words))


def test_reading_ten_thousand_conversations() -> None:
    many = [
        {
            "id": f"c{n}",
            "updated_at": 1_700_000_000 + n,
            "messages": [{"role": ("user", "assistant")[t % 2], "content": text(60)} for t in range(TURNS)],
        }
        for n in range(CONVERSATIONS)
    ]
    raw = jsonl(many)
    vault = Vault.objects.create(name="bench")
    started = time.perf_counter()
    report = ingest(vault, "jsonl", READERS["jsonl"](raw, "bench.jsonl"))
    taken = time.perf_counter() - started
    print(f"\nread {CONVERSATIONS} conversations of {TURNS} turns ({len(raw) / 1e6:.0f} MB): {taken:.1f} s")
    assert report.added == CONVERSATIONS
    assert taken <= INGEST_S


def test_searching_ten_thousand_sections() -> None:
    vault = Vault.objects.create(name="bench")
    for page in range(PAGES):
        body = "".join(f"## {text(3)}\n\n{text(60)}.\n\n" for _ in range(SECTIONS))
        index.update_page(vault, f"Page_{page}", f"# Page {page}\n\n{body}")
    taken = []
    for _ in range(READS):
        query = " ".join(_words.sample(VOCABULARY[:500], 2))
        started = time.perf_counter()
        index.search(vault, query)
        taken.append((time.perf_counter() - started) * 1000)
    p95 = statistics.quantiles(taken, n=20)[-1]
    print(f"\nsearch over {PAGES * SECTIONS} sections: p50 {statistics.median(taken):.1f} ms, p95 {p95:.1f} ms")
    assert p95 <= SEARCH_MS
