"""The bare BatchGenerator as a child process: what the model can do without a server around it.

    python -m tests.benchmarks.bare_batch MODEL_DIR

Each line on stdin is ``{"messages": [[...], ...], "max_tokens": n}``, with ``"ends": true`` when answers may end before;
the answer is one line with tokens and seconds, prefill included. The same BLAS, threads and weights type as an engine
child, set by the same module.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    from workers.engine import platform

    machine = platform.prepare()
    from transformers import AutoTokenizer

    from workers.engine import loading

    folder = Path(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    loaded = loading.load(folder, platform.resident_dtype("auto", machine.device), machine.device)
    from mlx_lm.generate import BatchGenerator

    print(json.dumps({"ready": True, "dtype": loaded.dtype}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        prompts = [tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False) for one in order["messages"]]
        began = time.perf_counter()
        ends = [[tokenizer.eos_token_id]] if order.get("ends") else None
        generator = BatchGenerator(loaded.model, max_tokens=order["max_tokens"], stop_tokens=ends)
        generator.insert(prompts)
        tokens, running = 0, len(prompts)
        while running:
            _, responses = generator.next()
            tokens += len(responses)
            running -= sum(response.finish_reason is not None for response in responses)
        generator.close()
        print(json.dumps({"tokens": tokens, "seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
