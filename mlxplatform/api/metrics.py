"""``GET /metrics``: the hosts' live figures as Prometheus gauges, in its text format.

Read from the live state each host publishes; nothing is counted here, so any number of web processes may be
scraped and none holds state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.http.views import endpoint
from mlxplatform.inference.placement import HostState, live_hosts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Gauge:
    """One family. ``path`` leads to the figure in a host's state, or in one engine's when ``per_model``."""

    name: str
    help: str
    path: tuple[str, ...]
    per_model: bool = False


GAUGES: tuple[Gauge, ...] = (
    Gauge("requests_active", "Interactive requests in an engine slot.", ("active",)),
    Gauge("requests_waiting", "Interactive requests waiting for a slot.", ("waiting",)),
    Gauge("rows_active", "Rows of batches and datasets in an engine slot.", ("rows_active",)),
    Gauge("rows_waiting", "Rows waiting for a slot.", ("rows_waiting",)),
    Gauge("slots", "Sequences an engine decodes at once while chat runs.", ("slots",)),
    Gauge("tokens_per_second", "Tokens emitted in the last second.", ("tokens_per_s",)),
    Gauge("memory_budget_bytes", "Memory all engines may use.", ("memory", "budget_bytes")),
    Gauge("weight_bytes", "Weights in memory.", ("memory", "weight_bytes")),
    Gauge("kv_bytes", "KV caches of running sequences.", ("memory", "kv_bytes")),
    Gauge(
        "machine_available_bytes",
        "Memory of the machine that is free, whoever uses the rest.",
        ("memory", "machine_available_bytes"),
    ),
    Gauge("refusing_for_memory", "1 while new work is refused because the machine runs out of memory.", ("memory", "refusing")),
    Gauge("engine_kv_tokens", "Tokens of KV that fit beside the weights.", ("facts", "kv_tokens"), True),
    Gauge("guessed_tokens", "Tokens guessed ahead.", ("stats", "guessed_tokens"), True),
    Gauge("held_tokens", "Guessed tokens that held.", ("stats", "held_tokens"), True),
    Gauge("engine_restarts", "Deaths of the model's engine since it was loaded.", ("restarts",), True),
    Gauge("engine_load_seconds", "Time from start to ready.", ("load_seconds",), True),
    Gauge("adapters_mounted", "Adapters ready for requests.", ("adapters",), True),
    Gauge("engine_rss_bytes", "Memory of the engine process.", ("stats", "rss_bytes"), True),
    Gauge("prefill_tokens_per_second", "Measured prefill speed.", ("stats", "prefill_tokens_per_s"), True),
    Gauge("prefilled_tokens", "Prompt tokens computed.", ("stats", "prefilled_tokens"), True),
    Gauge("emitted_tokens", "Tokens emitted.", ("stats", "emitted_tokens"), True),
    Gauge("preemptions", "Rows that gave up their slot to chat.", ("stats", "preemptions"), True),
    Gauge("rebuilds", "Generators rebuilt after a failed step.", ("stats", "rebuilds"), True),
    Gauge("prefix_cache_entries", "Prompt caches in memory.", ("stats", "prefix_entries"), True),
    Gauge("prefix_cache_bytes", "Bytes of prompt caches in memory.", ("stats", "prefix_bytes"), True),
    Gauge("prefix_cache_hits", "Prompts that found a cache.", ("stats", "prefix_hits"), True),
    Gauge("prefix_cache_misses", "Prompts that found none.", ("stats", "prefix_misses"), True),
    Gauge("prefix_cache_hit_tokens", "Prompt tokens not computed again.", ("stats", "prefix_hit_tokens"), True),
    Gauge("prefix_cache_disk_hits", "Caches read back from SSD.", ("stats", "prefix_disk_hits"), True),
    Gauge("embedded_texts", "Texts turned into vectors.", ("stats", "embedded_texts"), True),
    Gauge("scored_prompts", "Prompts scored without generating.", ("stats", "scored"), True),
)


def render(hosts: tuple[HostState, ...]) -> str:
    """The exposition of these hosts."""
    lines = ["# HELP mlxplatform_up Whether a host is alive.", "# TYPE mlxplatform_up gauge"]
    lines += [f'mlxplatform_up{{host="{_escaped(host.name)}"}} 1' for host in hosts]
    for gauge in GAUGES:
        samples = [sample for host in hosts for sample in _samples(gauge, host)]
        if samples:
            lines += [f"# HELP mlxplatform_{gauge.name} {gauge.help}", f"# TYPE mlxplatform_{gauge.name} gauge", *samples]
    return "\n".join(lines) + "\n"


def _samples(gauge: Gauge, host: HostState) -> Iterator[str]:
    if not gauge.per_model:
        yield from _sample(gauge, host.raw, f'host="{_escaped(host.name)}"')
        return
    for engine in host.raw.get("engines", ()):
        yield from _sample(gauge, engine, f'host="{_escaped(host.name)}",model="{_escaped(str(engine.get("model")))}"')


def _sample(gauge: Gauge, state: Any, labels: str) -> Iterator[str]:
    value = state
    for step in gauge.path:
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, int | float):
        yield f"mlxplatform_{gauge.name}{{{labels}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


async def metrics(request: HttpRequest) -> HttpResponse:
    try:
        hosts = await live_hosts()
    except BROKER_ERRORS:
        hosts = ()
    return HttpResponse(render(hosts), content_type=CONTENT_TYPE)


metrics_view = endpoint(GET=metrics)
