"""Data of the console's charts, as ``charts.js`` draws it. Pure functions of reports and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MIB = 1 << 20


def pareto(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Size against divergence: every run, and the line of those that no other beats."""
    best = [point for point in points if point["best"]]
    others = [point for point in points if not point["best"]]
    series = [
        {"label": "best of its size", "line": True, "points": [_place(point) for point in best]},
        {"label": "beaten by another", "points": [_place(point) for point in others]},
    ]
    return {"x": "size, MiB", "y": "mean KL divergence", "kind": "points", "series": series}


def _place(point: Mapping[str, Any]) -> list[float]:
    return [round(point["bytes"] / _MIB, 2), point["kl_mean"]]


def divergence(quality: Mapping[str, Any]) -> dict[str, Any]:
    """How the divergence is spread: its quantiles."""
    kl = quality["kl"]
    points = [[50, kl["median"]], [99, kl["p99"]], [99.9, kl["p999"]], [100, kl["max"]]]
    return {"x": "percentile of positions", "y": "KL divergence", "kind": "line", "series": [{"label": "KL", "points": points}]}


def losses(curves: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Train and validation losses of several runs, by step; ``curves`` by the runs' names."""
    series = []
    for name, curve in curves.items():
        for kind, word in (("train", "train"), ("val", "validation")):
            points = [[point["step"], point["loss"]] for point in curve[kind] if isinstance(point.get("loss"), int | float)]
            if points:
                series.append({"label": f"{name} {word}", "points": points})
    return {"x": "step", "y": "loss", "kind": "line", "series": series}
