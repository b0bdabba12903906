"""What one engine child holds: the model, the core that generates, and the side work beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.engine import platform, protocol
from workers.engine.loading import CannotLoad, Loaded, import_light_mlx_lm, load, read_config
from workers.engine.options import Options

MIB = 1024 * 1024
#: Prompt caches in memory may take at most this part of what the weights leave.
PREFIX_SHARE = 4
#: The tier on SSD may grow to this many times the tier in memory.
DISK_FACTOR = 4


class NoGeneration:
    """Stands where a core would, for a model that only embeds."""

    idle = True

    def __init__(self) -> None:
        self._refused: list[protocol.Broken] = []

    def start(self, order: protocol.Start) -> None:
        message = "This model only makes embeddings; it cannot answer."
        self._refused.append(protocol.Broken(order.seq, "unsupported_model", message, 400, "model"))
        self.idle = False

    def cancel(self, seq: int) -> None:
        del seq

    def step(self) -> protocol.Step:
        refused, self._refused = self._refused, []
        self.idle = True
        return protocol.Step([], broken=refused)

    def rest(self) -> bool:
        return False

    def flush(self) -> None:
        return

    def stats(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        return


def vocabulary_size(config: dict[str, Any]) -> int:
    """Rows of the output layer.

    Raises:
        CannotLoad: the configuration does not say.
    """
    text = config.get("text_config")
    size = (text if isinstance(text, dict) and "vocab_size" in text else config).get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise CannotLoad("The model's configuration names no vocabulary size.")
    return size


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
        import_light_mlx_lm()
        from workers.engine.encoder import FAMILIES

        config = read_config(options.model_dir)
        platform.set_limits(options.budget or platform.memory_budget())
        if config.get("model_type") in FAMILIES:
            return cls._encoder(options, machine, config)
        return cls._decoder(options, machine, load(options.model_dir, options.dtype, machine.device))

    @classmethod
    def _encoder(cls, options: Options, machine: platform.Platform, config: dict[str, Any]) -> Resident:
        from workers.engine.embedding import Embedder, read_pooling
        from workers.engine.encoder import Encoder
        from workers.engine.side import Side

        dtype = platform.resident_dtype(options.dtype, machine.device)
        encoder = Encoder(options.model_dir, config, dtype)
        pooling, normalize = read_pooling(options.model_dir, "mean")
        embedder = Embedder(encoder, pooling, normalize, encoder.hidden, encoder.context)
        facts = _facts(machine, dtype, encoder.weight_bytes, 0)
        return cls(NoGeneration(), Side(None, embedder, None, lambda: False), facts)

    @classmethod
    def _decoder(cls, options: Options, machine: platform.Platform, loaded: Loaded) -> Resident:
        from workers.engine.adapters import Adapters
        from workers.engine.choosing import RowChooser
        from workers.engine.core import Core, Limits
        from workers.engine.embedding import Embedder, decoder_states, read_pooling
        from workers.engine.side import Side

        per_token = kv_bytes_per_token(loaded)
        budget = options.budget or platform.memory_budget()
        room = max(0, budget - loaded.weight_bytes - platform.SCRATCH_BYTES)
        prefix_bytes = min(options.prefix_mb * MIB, room // PREFIX_SHARE)
        kv_tokens = max(1, (room - prefix_bytes) // per_token) if per_token else 0
        limits = Limits(options.slots, options.prefill_ms / 1000, options.row_share, options.context, kv_tokens)
        prefix = _prefix_cache(options, loaded, machine, prefix_bytes)
        adapters = Adapters(loaded.model)
        chooser = RowChooser(vocabulary_size(loaded.config), options.model_dir, adapters)
        core = Core(loaded.model, chooser, limits, prefix=prefix)
        embedder = None
        if (options.model_dir / "modules.json").is_file():
            pooling, normalize = read_pooling(options.model_dir, "last")
            hidden = int(loaded.config["hidden_size"])
            embedder = Embedder(decoder_states(loaded.model), pooling, normalize, hidden, options.context)
        side = Side(loaded.model, embedder, prefix, lambda: not core.idle, adapters)
        facts = _facts(machine, loaded.dtype, loaded.weight_bytes, per_token)
        return cls(core, side, {**facts, "kv_tokens": kv_tokens})

    def close(self) -> None:
        self.core.close()
        self.core = self.side = None


def kv_bytes_per_token(loaded: Loaded) -> int:
    """Measured on the model itself, since every architecture keeps something else; 0 when it grows by no token."""
    import mlx.core as mx

    from workers.engine.batch import make_prompt_cache

    cache = make_prompt_cache(loaded.model)
    loaded.model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    mx.eval([layer.state for layer in cache])
    total = 0
    for layer in cache:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        for array in (keys, values):
            if isinstance(array, mx.array):
                total += array.nbytes // array.shape[2]
    return total


def _prefix_cache(options: Options, loaded: Loaded, machine: platform.Platform, size: int) -> Any:
    if not size:
        return None
    from workers.engine.prefix_cache import PrefixCache
    from workers.engine.prefix_disk import DiskTier

    disk = None
    if options.prefix_dir:
        identity = f"{options.revision} {loaded.dtype} {machine.device}"
        disk = DiskTier(Path(options.prefix_dir), identity, DISK_FACTOR * size)
    return PrefixCache(size, disk=disk)


def _facts(machine: platform.Platform, dtype: str, weight_bytes: int, kv_bytes: int) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "device": machine.device,
        "blas": machine.blas,
        "threads": machine.threads,
        "weight_bytes": weight_bytes,
        "kv_bytes_per_token": kv_bytes,
    }
