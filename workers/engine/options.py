"""The command line of an engine child."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What an engine child is started with; sizes in the unit of their name, 0 where a limit is off."""

    fd: int
    model_dir: Path
    dtype: str
    blas: str
    threads: int
    slots: int
    row_slots: int
    row_share: int
    prefill_ms: int
    prefix_mb: int
    prefix_dir: str
    revision: str
    budget: int
    context: int
    draft: str
    kv_bits: int
    draft_tokens: int
    vision: bool


def parse(argv: list[str]) -> Options:
    parser = argparse.ArgumentParser("workers.engine.main")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the gpu process")
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--blas", default="")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--row-slots", type=int, default=0, help="sequences at once while only rows run; 0: as --slots")
    parser.add_argument("--row-share", type=int, default=0)
    parser.add_argument("--prefill-ms", type=int, default=100)
    parser.add_argument("--prefix-mb", type=int, default=1024)
    parser.add_argument("--prefix-dir", default="", help="folder of the prompt caches on SSD; empty: none")
    parser.add_argument("--revision", default="", help="what the weights and templates are, for the caches on SSD")
    parser.add_argument("--budget", type=int, default=0, help="bytes all engines may use")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--draft", default="", help="how to guess ahead: empty, ngram, or the folder of a smaller model")
    parser.add_argument("--kv-bits", type=int, default=0, choices=(0, 4, 8), help="0: as the model computes them")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--vision", type=int, default=0, choices=(0, 1), help="1: load the model with its eyes")
    return Options(**vars(parser.parse_args(argv)))
