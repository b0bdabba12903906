"""Whether a model fits, with how much context, and how fast it will be. Functions of headers and a machine, nothing measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mlxplatform.library import cache_shape
from mlxplatform.library.local_models import LocalModel
from mlxplatform.library.machine import CHIPS, Machine

#: Bytes of one weight where weights are unpacked (a CPU), and of one cached number on Metal.
_FLOAT32, _FLOAT16 = 4, 2
#: Share of the peak memory bandwidth that decoding reaches.
EFFICIENCY = 0.7
#: Least context speeds are told for: the cache is read for every token too.
TYPICAL_CONTEXT = 8192
#: Room for activations and buffers while reading a prompt, as a share of the weights.
TRANSIENT_SHARE = 0.08
MATRIX_CONTEXT = 32768


@dataclass(frozen=True)
class Report:
    """Bytes and, where they fit, speeds. ``max_safe_context`` 0: the weights alone are too large."""

    fits: bool
    weights_bytes: int
    kv_bytes: int
    transient_bytes: int
    total_bytes: int
    usable_bytes: int
    max_safe_context: int
    predicted_decode_tps: float

    def describe(self) -> dict[str, Any]:
        return asdict(self)


def resident_bytes(model: LocalModel, *, metal: bool) -> int:
    """Weights in memory: as stored on Metal, unpacked to float32 on a CPU."""
    return model.bytes if metal else model.parameters * _FLOAT32


def read_bytes(model: LocalModel, *, metal: bool) -> int:
    """Weights that one token reads: of a mixture of experts, those of the experts it is sent to."""
    weights = resident_bytes(model, metal=metal)
    experts = next(filter(None, map(model.stated, ("num_experts", "n_routed_experts", "num_local_experts"))), 0)
    chosen = next(filter(None, map(model.stated, ("num_experts_per_tok", "num_experts_per_token", "moe_top_k"))), 0)
    if not experts or not chosen or not model.bytes:
        return weights
    return int(weights * (1 - model.expert_bytes / model.bytes * (1 - min(chosen / experts, 1.0))))


def assess(model: LocalModel, machine: Machine, context: int = 0) -> Report:
    """A model on a machine at a context length (0: the model's own)."""
    weights = resident_bytes(model, metal=machine.metal)
    kept, each = cache_shape.shape(model), _FLOAT16 if machine.metal else _FLOAT32
    asked = context or model.context or TYPICAL_CONTEXT
    transient = int(weights * TRANSIENT_SHARE)
    left = machine.budget - weights - transient
    longest = model.context or asked
    held = kept.longest(left // each) if left > 0 else 0
    safe = longest if held is None else min(longest, held)
    kv = kept.numbers(asked) * each
    typical = min(max(asked, TYPICAL_CONTEXT), model.context or TYPICAL_CONTEXT)
    speed = machine.bandwidth * EFFICIENCY / max(read_bytes(model, metal=machine.metal) + kept.numbers(typical // 2) * each, 1)
    total = weights + kv + transient
    return Report(total <= machine.budget, weights, kv, transient, total, machine.budget, max(int(safe), 0), round(speed, 1))


def matrix(model: LocalModel, context: int = MATRIX_CONTEXT) -> list[dict[str, Any]]:
    """The same model on Apple's machines: which sizes hold it at this context, and how fast each chip is."""
    rows = []
    for chip, (bandwidth, sizes) in CHIPS.items():
        for size in sizes:
            memory = size << 30
            machine = Machine(f"Apple {chip}", memory, int(memory * 0.7), bandwidth * 1e9, True, True)
            report = assess(model, machine, min(context, model.context or context))
            rows.append(
                {"chip": chip, "memory_gb": size, "fits": report.fits, "predicted_decode_tps": report.predicted_decode_tps}
            )
    return rows
