"""The memory at size: reading 10,000 conversations, searching 10,000 sections, a stage's calls beside a plain batch's."""

from __future__ import annotations

import datetime as dt
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxplatform.inference import client
from mlxplatform.library import starters
from mlxplatform.library.local_models import STARTER
from mlxplatform.memory import index, meaning
from mlxplatform.memory.ingest import ingest
from mlxplatform.memory.models import Section, Vault
from mlxplatform.memory.policy_pages import PAGES as POLICIES
from mlxplatform.memory.sources.registry import READERS
from mlxplatform.memory.stages import extract
from mlxplatform.memory.synthesis import QUOTED, quoted
from tests.benchmarks.table import PAIRS, line, measured
from tests.fixtures.memory_notes import jsonl
from tests.system.stack import Stack, eventually

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

CONVERSATIONS, TURNS = 10_000, 8
PAGES, SECTIONS = 2_000, 5
READS = 100
#: Numbers of one section's vector, as the starter embedding model makes it.
DIMENSIONS = 384
#: Passages of one measured stage, and of the one that warms up.
PASSAGES, WARMING = 6, 2
#: Seconds between two looks: more often, and looking slows down what is measured.
LOOK_S = 0.5
#: Bars: seconds to read all conversations, milliseconds for the slowest of twenty searches, share of the batch's speed.
INGEST_S, SEARCH_MS, BATCH_SHARE = 60.0, 100.0, 0.9

_words = random.Random(7)
VOCABULARY = ["".join(_words.choices("aeioulnrst", k=_words.randint(3, 9))) for _ in range(5_000)]


def text(words: int, chance: random.Random = _words) -> str:
    # A few words are everywhere and most are rare, as in any language.
    return " ".join(VOCABULARY[min(int(chance.paretovariate(0.6)), len(VOCABULARY)) - 1] for _ in range(words))


@pytest.mark.django_db(transaction=True)
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
    taken = []
    for wanted in ("added", "unchanged"):
        started = time.perf_counter()
        report = ingest(vault, "jsonl", READERS["jsonl"](raw, "bench.jsonl"))
        taken.append(time.perf_counter() - started)
        assert getattr(report, wanted) == CONVERSATIONS
    print(
        f"\nread {CONVERSATIONS} conversations of {TURNS} turns ({len(raw) / 1e6:.0f} MB): {taken[0]:.1f} s, "
        f"again {taken[1]:.1f} s"
    )
    assert taken[0] <= INGEST_S


@pytest.mark.django_db(transaction=True)
def test_searching_ten_thousand_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    vault = Vault.objects.create(name="bench")
    for page in range(PAGES):
        body = "".join(f"## {text(3)}\n\n{text(60)}.\n\n" for _ in range(SECTIONS))
        index.update_page(vault, f"Page_{page}", f"# Page {page}\n\n{body}")
    numbers = np.random.default_rng(7)

    def vector() -> bytes:
        raw: bytes = meaning._unit(numbers.standard_normal(DIMENSIONS).astype("<f4")).tobytes()
        return raw

    sections = list(Section.objects.all())
    for section in sections:
        section.vector, section.vector_model = vector(), "m"
    Section.objects.bulk_update(sections, ["vector", "vector_model"], batch_size=500)

    class Embedded:
        vectors = [vector()]

    async def embedded(request: Any) -> Any:
        return Embedded

    monkeypatch.setattr(meaning, "embedding_model", lambda: "m")
    monkeypatch.setattr(client, "run", embedded)
    words, both = [], []
    for _ in range(READS):
        query = " ".join(_words.sample(VOCABULARY[:500], 2))
        started = time.perf_counter()
        found = index.search(vault, query)
        words.append((time.perf_counter() - started) * 1000)
        meaning.fused(found, meaning.search(vault, query), 50)
        both.append((time.perf_counter() - started) * 1000)
    for name, taken in (("by words", words), ("by words and meaning, without embedding the query", both)):
        p95 = statistics.quantiles(taken, n=20)[-1]
        print(f"\nsearch over {PAGES * SECTIONS} sections {name}: p50 {statistics.median(taken):.1f} ms, p95 {p95:.1f} ms")
        assert p95 <= SEARCH_MS


@pytest.fixture
def starter_stack(tmp_path: Path) -> Iterator[Stack]:
    home = tmp_path / "home"
    starters.ensure(home)
    with Stack(home, {"MLXPLATFORM_MODEL": STARTER}) as running:
        yield running


def passages(who: str, pair: int, count: int) -> list[tuple[str, str]]:
    """Questions and answers: the same words for both sides of a pair, so that their answers are as long, behind a
    beginning of its own for each, so that neither finds the other's prompts in a cache."""
    chance = random.Random(pair)
    return [(f"{who} {pair} {n}: what is {text(6, chance)}?", f"It is {text(12, chance)}.") for n in range(count)]


def by_memory(stack: Stack, pair: int, count: int = PASSAGES) -> float:
    """Tokens a second that the extract stage writes for new passages."""
    conversations = [
        {"id": f"m{pair}-{n}", "updated_at": 1_700_000_000 + n, "messages": [said("user", q), said("assistant", a)]}
        for n, (q, a) in enumerate(passages("Memo", pair, count))
    ]
    ended(stack, "/api/memory/import", {"format": "jsonl", "content": jsonl(conversations).decode()})
    job = ended(stack, "/v1/memory/synthesize", {"stages": ["segment", "extract"]})
    events = stack.sql("SELECT at, payload FROM jobs_jobevent WHERE job_id = ? ORDER BY seq", job)
    began = next(at for at, payload in events if json.loads(payload).get("stage") == "extract")
    done = next(at for at, payload in events if json.loads(payload).get("line", "").startswith("extract: read"))
    stages = stack.http.get(f"/api/jobs/{job}").json()["job"]["result"]["stages"]
    told = next(stage for stage in stages if stage["stage"] == "extract")
    assert told["calls"] == count
    return int(told["tokens"]) / (dt.datetime.fromisoformat(done) - dt.datetime.fromisoformat(began)).total_seconds()


def by_batch(stack: Stack, pair: int, count: int = PASSAGES) -> float:
    """Tokens a second of a plain batch of questions of the same kind."""
    system = "\n\n".join([extract.TASK, POLICIES["Entities"], QUOTED])
    lines = []
    for n, (question, answer) in enumerate(passages("Note", pair, count)):
        prompt = quoted(f"User: {question}\nAssistant: {answer}")
        form = {"type": "json_schema", "json_schema": {"name": "names", "strict": True, "schema": extract.SCHEMA}}
        body = {"model": STARTER, "messages": [said("system", system), said("user", prompt)], "max_tokens": 120, "temperature": 0}
        lines.append(
            {"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": {**body, "response_format": form}}
        )
    raw = "\n".join(map(json.dumps, lines)).encode()
    file = stack.http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("b.jsonl", raw)}).json()["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = stack.http.post("/v1/batches", json=asked).json()["id"]
    path = f"/v1/batches/{batch}"
    while stack.http.get(path).json()["status"] != "completed":
        time.sleep(LOOK_S)
    written = stack.http.get(path).json()["usage"]["output_tokens"]
    ended = (
        "SELECT started_at, ended_at FROM jobs_job WHERE kind = 'batch' AND ended_at IS NOT NULL ORDER BY created_at DESC LIMIT 1"
    )
    eventually(lambda: len(stack.sql("SELECT id FROM jobs_job WHERE kind = 'batch' AND ended_at IS NULL")) == 0, what="its job")
    [(began, done)] = stack.sql(ended)
    return int(written) / (dt.datetime.fromisoformat(done) - dt.datetime.fromisoformat(began)).total_seconds()


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def ended(stack: Stack, path: str, body: dict[str, Any]) -> str:
    job: str = stack.http.post(path, json=body).json()["job"]["id"]

    while (state := stack.http.get(f"/api/jobs/{job}").json()["job"]["state"]) != "done":
        assert state not in {"failed", "cancelled"}
        time.sleep(LOOK_S)
    return job


def test_a_stage_asks_as_fast_as_a_plain_batch(starter_stack: Stack) -> None:
    starter_stack.http.post("/api/memory/init", json={})
    by_batch(starter_stack, 0, WARMING), by_memory(starter_stack, 0, WARMING)
    ratios = []
    for pair in range(1, PAIRS + 1):
        plain, stage = by_batch(starter_stack, pair), by_memory(starter_stack, pair)
        ratios.append(stage / plain)
        print(f"\nextract stage {stage:.0f} tokens/s, plain batch {plain:.0f}", flush=True)
    found = measured(ratios)
    print("\n" + line(f"extract stage ÷ plain batch, {PASSAGES} passages, starter", found, "×", f"≥ {BATCH_SHARE}"))
    assert found.high >= BATCH_SHARE
