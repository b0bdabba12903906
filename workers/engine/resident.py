"""What one engine child holds: the model, the core that generates, and the side work beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from workers.engine import platform, protocol
from workers.engine.loading import CannotLoad, CannotServe, Loaded, import_light_mlx_lm, load, read_config
from workers.engine.options import Options

MIB = 1024 * 1024
#: Prompt caches in memory may take at most this part of what the weights leave.
PREFIX_SHARE = 4
#: The tier on SSD may grow to this many times the tier in memory.
DISK_FACTOR = 4
#: Guessing by the text's own repetitions.
NGRAM = "ngram"


class NoGeneration:
    """Stands where a core would, for a model that only embeds."""

    idle = True

    def __init__(self) -> None:
        self._refused: list[protocol.Broken] = []

    def start(self, order: protocol.Start) -> None:
        message = "This model only makes embeddings; it cannot answer."
        self._refused.append(protocol.Broken(order.seq, "unsupported_model", message, 400, "model"))
        self.idle = False

    def cancel(self, *seqs: int) -> None:
        del seqs

    def step(self, *, quick: bool = False) -> protocol.Step:
        del quick
        refused, self._refused = self._refused, []
        self.idle = True
        return protocol.Step([], broken=refused)

    def rest(self) -> bool:
        return False

    def flush(self) -> None:
        return

    def forget_adapter(self, name: str) -> None:
        del name

    def shrink(self) -> None:
        import mlx.core as mx

        mx.clear_cache()

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


@dataclass(frozen=True)
class Shares:
    """How bytes are shared out: what the weights leave goes to prompt caches and to KV of running sequences."""

    prefix_bytes: int
    kv_tokens: int

    @classmethod
    def of(cls, budget: int, weight_bytes: int, per_token: int, prefix_mb: int) -> Shares:
        """``kv_tokens`` 0: not limited, since this model's cache grows by no token."""
        room = max(0, budget - weight_bytes - platform.SCRATCH_BYTES)
        prefix_bytes = min(prefix_mb * MIB, room // PREFIX_SHARE)
        return cls(prefix_bytes, max(1, (room - prefix_bytes) // per_token) if per_token else 0)


@dataclass
class Resident:
    """``prefix_mb`` is what the settings allow for prompt caches."""

    core: Any
    side: Any
    facts: dict[str, Any]
    prefix_mb: int = 0

    @classmethod
    def load(cls, options: Options, machine: platform.Platform) -> Resident:
        """Bring the model into memory.

        Raises:
            CannotLoad, CannotServe: with a reason.
        """
        import_light_mlx_lm()
        from workers.engine.encoder import FAMILIES

        config = read_config(options.model_dir)
        platform.set_limits(options.budget or platform.memory_budget())
        if config.get("model_type") in FAMILIES:
            return cls._encoder(options, machine, config)
        if options.vision:
            return cls._seeing(options, machine)
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
        from workers.engine import batch as batching
        from workers.engine.adapters import Adapters
        from workers.engine.choosing import RowChooser
        from workers.engine.core import Core, Limits
        from workers.engine.embedding import Embedder, decoder_states, read_pooling
        from workers.engine.schedule import CHUNK_CAP
        from workers.engine.side import Side
        from workers.engine.solo import Solo

        make_cache = _quantized(loaded, options.kv_bits)
        per_token = kv_bytes_per_token(loaded, make_cache)
        budget = options.budget or platform.memory_budget()
        drafting, speculation = _drafting(options, loaded, machine)
        weights = loaded.weight_bytes + (drafting.weight_bytes if drafting is not None else 0)
        shares = Shares.of(budget, weights, per_token, options.prefix_mb)
        limits = Limits(
            options.slots, options.prefill_ms / 1000, options.row_share, options.context, shares.kv_tokens, options.row_slots
        )
        if make_cache is not None:
            limits = replace(limits, slots=1, row_slots=1)
        prefix = _prefix_cache(options, loaded, machine, shares.prefix_bytes)
        adapters = Adapters(loaded.model)
        chooser = RowChooser(
            vocabulary_size(loaded.config),
            options.model_dir,
            adapters,
            goes_ahead=make_cache is None and batching.always_trims(loaded.model),
            drafting=drafting,
        )
        make_batch = None
        if make_cache is not None:
            make_batch = partial(Solo, loaded.model, chooser, make_cache, prefill_tokens=CHUNK_CAP)
        core = Core(loaded.model, chooser, limits, prefix=prefix, make_batch=make_batch)
        embedder = None
        if (options.model_dir / "modules.json").is_file():
            pooling, normalize = read_pooling(options.model_dir, "last")
            hidden = int(loaded.config["hidden_size"])
            embedder = Embedder(decoder_states(loaded.model), pooling, normalize, hidden, options.context)
        # Scoring merges caches, which quantized ones cannot be.
        shared = prefix if make_cache is None else None
        side = Side(loaded.model, embedder, shared, lambda: not core.idle, adapters)
        facts = _facts(machine, loaded.dtype, weights, per_token)
        facts |= {"kv_tokens": shares.kv_tokens, "speculation": speculation, "kv_bits": options.kv_bits, "slots": limits.slots}
        return cls(core, side, facts, options.prefix_mb)

    @classmethod
    def _seeing(cls, options: Options, machine: platform.Platform) -> Resident:
        from workers.engine import vision
        from workers.engine.choosing import RowChooser
        from workers.engine.core import Core, Limits
        from workers.engine.schedule import CHUNK_CAP
        from workers.engine.side import Side

        if options.kv_bits:
            raise CannotServe("A model that sees cannot run with a quantized KV cache. Set MLXPLATFORM_KV_BITS to 0.")
        loaded = vision.load(options.model_dir, options.dtype, machine.device)
        per_token = kv_bytes_per_token(loaded)
        shares = Shares.of(options.budget or platform.memory_budget(), loaded.weight_bytes, per_token, 0)
        limits = Limits(1, options.prefill_ms / 1000, 0, options.context, shares.kv_tokens)
        chooser = RowChooser(vocabulary_size(loaded.config), options.model_dir)
        make_batch = partial(vision.SeeingSolo, loaded.model, chooser, prefill_tokens=CHUNK_CAP)
        core = Core(loaded.model, chooser, limits, make_batch=make_batch)
        side = Side(loaded.model, None, None, lambda: not core.idle)
        facts = _facts(machine, loaded.dtype, loaded.weight_bytes, per_token)
        facts |= {"kv_tokens": shares.kv_tokens, "speculation": "off", "kv_bits": 0, "slots": 1, "vision": True}
        return cls(core, side, facts)

    def set_budget(self, budget: int) -> dict[str, Any]:
        """Share out another number of bytes, since models beside this one came or went; answers the facts it changed.

        What runs goes on; less room binds whoever is admitted next.
        """
        platform.set_limits(budget)
        if not self.facts["kv_bytes_per_token"]:
            return {}
        shares = Shares.of(budget, self.facts["weight_bytes"], self.facts["kv_bytes_per_token"], self.prefix_mb)
        self.core.resize(shares.prefix_bytes, shares.kv_tokens)
        self.facts = {**self.facts, "kv_tokens": shares.kv_tokens}
        return {"kv_tokens": shares.kv_tokens}

    def close(self) -> None:
        self.core.close()
        self.core = self.side = None


def _drafting(options: Options, loaded: Loaded, machine: platform.Platform) -> tuple[Any, str]:
    """How to guess ahead, and in words what came of the wish. Guessing changes no answer, so a wish that cannot be
    fulfilled costs speed and no request."""
    from workers.engine.batch import always_trims
    from workers.engine.drafting import Drafting, DraftModel

    if not options.draft:
        return None, "off"
    if not always_trims(loaded.model):
        return None, "off: this model's cache cannot be cut, so a wrong guess could not be taken back"
    if options.draft == NGRAM:
        return Drafting(options.draft_tokens), NGRAM
    try:
        smaller = load(Path(options.draft), options.dtype, machine.device)
    except CannotLoad as error:
        return None, f"off: the draft model cannot be loaded ({error})"
    if vocabulary_size(smaller.config) != vocabulary_size(loaded.config):
        return None, "off: the draft model has another vocabulary"
    if not always_trims(smaller.model):
        return None, "off: the draft model's cache cannot be cut"
    return Drafting(options.draft_tokens, DraftModel(smaller.model), smaller.weight_bytes), "draft model"


def _quantized(loaded: Loaded, bits: int) -> Callable[[], list[Any]] | None:
    """Makes quantized caches, None for ordinary ones.

    Raises:
        CannotServe: this model cannot have them.
    """
    if not bits:
        return None
    import mlx.core as mx

    from workers.engine import solo
    from workers.engine.batch import make_prompt_cache

    cache = make_prompt_cache(loaded.model)
    loaded.model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    heads = [
        int(array.shape[-1])
        for layer in cache
        for array in (getattr(layer, "keys", None), getattr(layer, "values", None))
        if isinstance(array, mx.array)
    ]
    reason = solo.unsupported(loaded.model, heads)
    group = solo.group_size(heads)
    if reason is not None or group is None:
        raise CannotServe(f"This model cannot run with a KV cache of {bits} bits: {reason}. Set MLXPLATFORM_KV_BITS to 0.")
    return solo.cache_maker(loaded.model, bits, group)


def kv_bytes_per_token(loaded: Loaded, make_cache: Callable[[], list[Any]] | None = None) -> int:
    """Measured on the model itself, since every architecture keeps something else; 0 when it grows by no token."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from workers.engine.batch import make_prompt_cache

    cache = make_cache() if make_cache is not None else make_prompt_cache(loaded.model)
    loaded.model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    mx.eval([layer.state for layer in cache])
    total = 0
    for layer in cache:
        held = [getattr(layer, "keys", None), getattr(layer, "values", None)]
        for _, array in cast("list[tuple[str, Any]]", tree_flatten(held)):
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
        identity = f"{options.revision} {loaded.dtype} {machine.device} kv{options.kv_bits or ''}"
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
