"""What one engine child holds: the model, the core that generates, and the side work beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.engine import platform, protocol
from workers.engine.loading import load, read_config

if TYPE_CHECKING:
    from workers.engine.main import Options


MIB = 1024 * 1024
#: The tier on SSD may grow to this many times the tier in memory.
DISK_FACTOR = 4


def vocabulary_size(config: dict[str, Any]) -> int:
    """Rows of the output layer."""
    text = config.get("text_config")
    return int((text if isinstance(text, dict) and "vocab_size" in text else config)["vocab_size"])


class Side:
    """Orders that are not generation."""

    idle = True

    def order(self, order: protocol.Order) -> None:
        del order

    def cancel(self, seq: int) -> None:
        del seq

    def step(self) -> list[protocol.Report]:
        return []

    def stats(self) -> dict[str, float]:
        return {}


@dataclass
class Resident:
    core: Any
    side: Any
    facts: dict[str, Any]

    @classmethod
    def load(cls, options: Options, machine: platform.Platform) -> Resident:
        """Bring the model into memory.

        Raises:
            CannotLoad: with a reason.
        """
        read_config(options.model_dir)
        loaded = load(options.model_dir, options.dtype, machine.device)
        from workers.engine.choosing import RowChooser
        from workers.engine.core import Core, Limits
        from workers.engine.prefix_cache import PrefixCache
        from workers.engine.prefix_disk import DiskTier

        platform.set_limits(options.budget or platform.memory_budget())
        limits = Limits(options.slots, options.prefill_ms / 1000, options.row_share, options.context)
        facts = {
            "dtype": loaded.dtype,
            "device": machine.device,
            "blas": machine.blas,
            "threads": machine.threads,
            "weight_bytes": loaded.weight_bytes,
        }
        prefix = None
        if options.prefix_mb:
            disk = None
            if options.prefix_dir:
                identity = f"{options.revision} {loaded.dtype} {machine.device}"
                disk = DiskTier(Path(options.prefix_dir), identity, DISK_FACTOR * options.prefix_mb * MIB)
            prefix = PrefixCache(options.prefix_mb * MIB, disk=disk)
        chooser = RowChooser(vocabulary_size(loaded.config))
        return cls(Core(loaded.model, chooser, limits, prefix=prefix), Side(), facts)

    def close(self) -> None:
        self.core.close()
        self.core = self.side = None
