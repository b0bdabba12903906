"""What this host is set to: its own limits, and what each engine child is told when it starts. Decides, starts nothing."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import structlog

from mlxplatform.library import local_models
from mlxplatform.library.local_models import LocalModel
from workers.host.residency import CHILD_OVERHEAD, declared_bytes
from workers.prepare.model import UNSTATED_CONTEXT

log = structlog.get_logger(__name__)

#: Guessing ahead by the text's own repetitions.
NGRAM = "ngram"


@dataclass(frozen=True)
class Settings:
    """``context`` 0: the model's own window. ``queue_limit`` interactive requests may wait beyond ``slots``.
    ``row_slots`` sequences run at once while all are rows, if that is more than ``slots``."""

    host: str
    home: Path
    slots: int = 16
    queue_limit: int = 64
    row_slots: int = 0
    row_share: int = 0
    context: int = 0
    prefill_ms: int = 100
    prefix_mb: int = 1024
    dtype: str = "auto"
    blas: str = ""
    threads: int = 0
    budget: int = 0
    keep_alive: float = 0.0
    memory_floor: float = 0.0
    room_wait: float = 0.0
    draft: str = ""
    kv_bits: int = 0
    draft_tokens: int = 4
    vision: bool = False

    def sees(self, model: LocalModel) -> bool:
        """Whether a model's eyes are open on this host."""
        return model.vision and self.vision and not self.kv_bits

    def window(self, model: LocalModel) -> int:
        """Tokens an engine is started for; a preset may narrow what requests get of it at any time."""
        return min(filter(None, (self.context, model.context)), default=UNSTATED_CONTEXT)

    def engine_options(self, model: LocalModel, budget: int) -> dict[str, object]:
        """Command line of an engine child, names without dashes; ``budget`` in bytes."""
        return {
            "dtype": self.dtype,
            "blas": self.blas,
            "threads": self.threads,
            "slots": self.slots,
            "row-slots": self.row_slots,
            "row-share": self.row_share,
            "prefill-ms": self.prefill_ms,
            "prefix-mb": self.prefix_mb,
            "prefix-dir": self.home / "cache" / "prefix",
            "revision": model.revision,
            "budget": budget,
            "context": self.window(model),
            "draft": self._draft_for(model),
            "draft-tokens": self.draft_tokens,
            "kv-bits": self.kv_bits,
            "vision": int(self.sees(model)),
        }

    def draft_bytes(self, model: LocalModel) -> int:
        """What the model that guesses for this one takes beside it."""
        draft = self._draft_model(model)
        return declared_bytes(draft, self.dtype) - CHILD_OVERHEAD if draft is not None else 0

    def _draft_for(self, model: LocalModel) -> str:
        """How an engine guesses ahead: as set, or the folder of the draft model."""
        if self.draft == NGRAM:
            return NGRAM
        draft = self._draft_model(model)
        if draft is None and self.draft not in ("", model.id):
            log.warning("engine.no_draft_model", draft=self.draft, model=model.id)
        return str(draft.path) if draft is not None else ""

    def _draft_model(self, model: LocalModel) -> LocalModel | None:
        """The smaller model that guesses for this one; none guesses for itself or for embeddings."""
        if self.draft in ("", NGRAM, model.id) or model.kind != "chat":
            return None
        return local_models.find(self.draft, self.home)


def from_environment() -> Settings:
    from mlxplatform import environment

    env = environment.read()
    mib = 1024 * 1024
    return Settings(
        host=env.host_id,
        home=env.home,
        slots=env.slots,
        queue_limit=env.queue_limit,
        context=env.context,
        prefill_ms=env.prefill_target_ms,
        prefix_mb=env.prefix_cache_mb,
        dtype=env.dtype,
        blas=env.blas,
        threads=env.threads,
        budget=env.memory_budget_mb * mib,
        row_slots=env.rows_at_once,
        row_share=min(env.row_share, env.slots - 1),
        keep_alive=float(env.keep_alive_seconds),
        memory_floor=env.memory_floor_percent / 100,
        room_wait=float(env.room_wait_seconds),
        draft=env.draft,
        kv_bits=int(env.kv_bits),
        draft_tokens=env.draft_tokens,
        vision=env.vision == "auto" and importlib.util.find_spec("mlx_vlm") is not None,
    )
