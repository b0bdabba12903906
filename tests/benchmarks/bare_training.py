"""mlx-lm's own trainer and converter as child processes: what the same work costs without a platform around it.

    python -m tests.benchmarks.bare_training train MODEL_DIR ROWS.jsonl STEPS BATCH LENGTH
    python -m tests.benchmarks.bare_training convert MODEL_DIR OUT

Prints one JSON line: seconds of each step, or seconds of the conversion. The same BLAS, threads and weights type as
our trainer child, set by the same module.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def train(folder: str, rows: str, steps: str, batch: str, length: str) -> None:
    import mlx.core as mx
    import mlx.optimizers as optim
    from mlx_lm import load
    from mlx_lm.tuner.callbacks import TrainingCallback
    from mlx_lm.tuner.datasets import CacheDataset, ChatDataset
    from mlx_lm.tuner.trainer import TrainingArgs
    from mlx_lm.tuner.trainer import train as run
    from mlx_lm.tuner.utils import linear_to_lora_layers

    model, tokenizer = load(folder)
    model.set_dtype(mx.float32)
    model.freeze()
    linear_to_lora_layers(model, len(model.layers), {"rank": 8, "scale": 20.0, "dropout": 0.0})
    seconds: list[float] = []

    class Watch(TrainingCallback):
        def on_train_loss_report(self, info: dict[str, Any]) -> None:
            seconds.append(1 / info["iterations_per_second"])

    data = CacheDataset(
        ChatDataset([json.loads(line) for line in Path(rows).read_text().splitlines()], tokenizer, mask_prompt=True)
    )
    args = TrainingArgs(
        batch_size=int(batch),
        iters=int(steps),
        steps_per_report=1,
        steps_per_save=10**9,
        max_seq_length=int(length),
        adapter_file=str(Path(rows).with_suffix(".safetensors")),
    )
    optimizer = optim.AdamW(learning_rate=2e-4, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01)
    run(model, optimizer, data, None, args, training_callback=Watch())
    print(json.dumps({"seconds": seconds}), flush=True)


def convert(folder: str, out: str) -> None:
    from mlx_lm import convert as run

    began = time.perf_counter()
    run(folder, out, quantize=True, q_bits=4, q_group_size=64, dtype="bfloat16")
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    from workers.engine import platform

    platform.prepare()
    {"train": train, "convert": convert}[sys.argv[1]](*sys.argv[2:])
