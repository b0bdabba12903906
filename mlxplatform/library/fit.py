"""Whether a model fits, with how much context, and how fast it will be. Functions of headers and a machine, nothing measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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


def kv_bytes_per_token(model: LocalModel, *, metal: bool) -> int:
    """Keys and values of one token over all layers; 0 when the config does not say."""
    queries = model.stated("num_attention_heads")
    width = model.stated("head_dim") or (model.stated("hidden_size") // queries if queries else 0)
    numbers = model.stated("num_hidden_layers") * (model.stated("num_key_value_heads") or queries) * width
    return 2 * numbers * (_FLOAT16 if metal else _FLOAT32)


def assess(model: LocalModel, machine: Machine, context: int = 0) -> Report:
    """A model on a machine at a context length (0: the model's own)."""
    weights = resident_bytes(model, metal=machine.metal)
    per_token = kv_bytes_per_token(model, metal=machine.metal)
    asked = context or model.context or TYPICAL_CONTEXT
    transient = int(weights * TRANSIENT_SHARE)
    left = machine.budget - weights - transient
    longest = model.context or asked
    safe = min(longest, left // per_token) if per_token and left > 0 else (longest if left > 0 else 0)
    kv = per_token * asked
    typical = min(max(asked, TYPICAL_CONTEXT), model.context or TYPICAL_CONTEXT)
    speed = machine.bandwidth * EFFICIENCY / max(weights + per_token * typical // 2, 1)
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
