"""The Prometheus exposition of hosts' live state."""

from __future__ import annotations

import re

from mlxplatform.api.metrics import GAUGES, render
from mlxplatform.inference.placement import parse_state

STATE = {
    "active": 3,
    "waiting": 1,
    "slots": 16,
    "tokens_per_s": 12.5,
    "memory": {"budget_bytes": 100, "weight_bytes": 40, "kv_bytes": 5},
    "engines": [{"model": 'od"d', "restarts": 2, "adapters": 3, "stats": {"prefix_hits": 7}}],
}


def test_figures_come_with_host_and_model() -> None:
    text = render((parse_state("mac1", STATE),))
    assert 'mlxplatform_up{host="mac1"} 1\n' in text
    assert 'mlxplatform_requests_active{host="mac1"} 3\n' in text
    assert 'mlxplatform_kv_bytes{host="mac1"} 5\n' in text
    assert 'mlxplatform_engine_restarts{host="mac1",model="od\\"d"} 2\n' in text
    assert 'mlxplatform_adapters_mounted{host="mac1",model="od\\"d"} 3\n' in text
    assert 'mlxplatform_prefix_cache_hits{host="mac1",model="od\\"d"} 7\n' in text


def test_every_line_is_a_comment_or_a_sample() -> None:
    for line in render((parse_state("mac1", STATE), parse_state("mac2", {}))).splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+\{.*\} [-+0-9.e]+", line), line


def test_no_host_is_an_answer_too() -> None:
    assert "requests_active" not in render(())


def test_names_are_unique() -> None:
    assert len({gauge.name for gauge in GAUGES}) == len(GAUGES)
