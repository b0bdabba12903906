"""What this host says of itself: its live state in Redis each second, its row in SQL now and then.

The live state is what ``/stats``, ``/health``, placement and the console read; it expires with its heartbeat,
so a host that is gone says nothing instead of something old.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from typing import Any

import redis
import structlog

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.library import local_adapters, local_models
from workers.host.engine import Engine
from workers.host.orders import read_choices
from workers.host.runtime import HostRuntime

log = structlog.get_logger(__name__)

#: Seconds between two publications of the live state.
INTERVAL = 1.0
#: Seconds between two writes of the row; the live state is what readers use.
ROW_INTERVAL = 10.0
#: Seconds between two looks at what people chose for models; a host is told of changes besides.
CHOICES_INTERVAL = 5.0
#: Figures of an engine child that are summed over the engines of the host.
SUMMED = ("active_rows", "waiting_rows", "kv_bytes", "prefix_bytes", "prefix_entries", "preemptions", "rebuilds")


class HostState:
    """Publishes until stopped. ``instance`` names this run of the gpu process."""

    def __init__(self, runtime: HostRuntime, client: redis.Redis):
        self.instance = secrets.token_hex(8)
        self._runtime, self._client = runtime, client
        self._stopped = threading.Event()
        self._row_written = self._choices_read = 0.0
        self._emitted: tuple[float, float] = (time.monotonic(), 0.0)
        self._thread = threading.Thread(target=self._run, name="host-state", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Withdraw the live state: this host takes no more work."""
        self._stopped.set()
        self._thread.join(INTERVAL * 2)
        try:
            self._client.delete(queues.host_key(self._runtime.settings.host))
        except BROKER_ERRORS:
            return

    def snapshot(self) -> dict[str, Any]:
        """The live state as published."""
        runtime = self._runtime
        engines = runtime.residency.engines()
        current = runtime.current_model()
        main = runtime.residency.get(current.id) if current is not None else None
        active = sum(min(engine.count(rows=False), runtime.settings.slots) for engine in engines)
        machine = runtime.pressure.seen
        totals = {name: sum(engine.stats.get(name, 0.0) for engine in engines) for name in SUMMED}
        return {
            "host": runtime.settings.host,
            "instance": self.instance,
            "pid": os.getpid(),
            "at": time.time(),
            "engine": _engine_summary(main, failed=current is not None and current.id in runtime.residency.failed),
            "engines": [_engine_details(engine) for engine in engines],
            "models": self._models(current),
            "adapters": self._adapters(engines),
            "slots": runtime.settings.slots,
            "queue_limit": runtime.settings.queue_limit,
            "active": active,
            "waiting": sum(engine.waiting() for engine in engines),
            "rows_active": int(totals["active_rows"]),
            "rows_waiting": int(totals["waiting_rows"]),
            "tokens_per_s": self._rate(engines),
            "memory": {
                "budget_bytes": runtime.residency.budget,
                "weight_bytes": sum(int(engine.facts.get("weight_bytes", 0)) for engine in engines),
                "kv_bytes": int(totals["kv_bytes"]),
                "prefix_bytes": int(totals["prefix_bytes"]),
                "machine_available_bytes": machine.available if machine is not None else None,
                "refusing": int(runtime.residency.pressure is not None),
            },
            "preemptions": int(totals["preemptions"]),
            "rebuilds": int(totals["rebuilds"]),
        }

    def _models(self, current: local_models.LocalModel | None) -> list[dict[str, Any]]:
        """Every model, then every adapter whose base is here, under each name that requests may use."""
        home = self._runtime.settings.home
        models = {model.id: model for model in local_models.scan(home)}
        bases = {model.id: self._model(model, current) for model in models.values()}
        tuned = [
            {
                **bases[adapter.base_model],
                "id": name,
                "base": adapter.base_model,
                "adapter": adapter.id,
                "checkpoint": name != adapter.name or bool(adapter.parent),
                "context": self._runtime.context_of(models[adapter.base_model], name),
                "current": False,
                "project": adapter.project,
            }
            for name, adapter in local_adapters.names(home)
            if adapter.fine_tune_type in local_adapters.SERVED and adapter.base_model in bases
        ]
        return [*bases.values(), *tuned]

    def _adapters(self, engines: list[Engine]) -> list[dict[str, Any]]:
        """Every adapter of this host, and what its base model's engine says of it."""
        mounts = {engine.model.id: engine.mounts.listing() for engine in engines}
        return [
            {
                "id": adapter.id,
                "name": adapter.name,
                "base_model": adapter.base_model,
                "rank": adapter.rank,
                "scale": adapter.scale,
                "size_bytes": adapter.bytes,
                "project": adapter.project,
                "fine_tune_type": adapter.fine_tune_type,
                **mounts.get(adapter.base_model, {}).get(adapter.id, {"state": "available"}),
            }
            for adapter in local_adapters.scan(self._runtime.settings.home)
        ]

    def _model(self, model: local_models.LocalModel, current: local_models.LocalModel | None) -> dict[str, Any]:
        engine = self._runtime.residency.get(model.id)
        facts = engine.facts if engine is not None else {}
        is_current = current is not None and model.id == current.id
        if model.kind != "chat":
            default = self._runtime.current_model(model.kind)
            is_current = default is not None and default.id == model.id
        return {
            "id": model.id,
            "kind": model.kind,
            "capabilities": [*model.capabilities, *(["vision"] if self._runtime.settings.sees(model) else [])],
            "context": self._runtime.context_of(model),
            "architecture": model.architecture,
            "bytes": model.bytes,
            "parameters": model.parameters,
            "quantization": model.quantization,
            "plan": self._plan(model),
            "needed_bytes": self._runtime.residency.needs(model),
            "resident": engine is not None and engine.state == "ready",
            "pinned": self._runtime.residency.is_pinned(model.id),
            "current": is_current,
            "vision": model.vision,
            "obstacle": model.obstacle,
            "sees": self._runtime.settings.sees(model),
            "dtype": facts.get("dtype", model.dtype),
            "blas": facts.get("blas", ""),
            "device": facts.get("device", ""),
        }

    def _plan(self, model: local_models.LocalModel) -> dict[str, Any]:
        plan = self._runtime.residency.plan(model)
        return {"fits": plan.fits, "evict": list(plan.evict)}

    def _rate(self, engines: list[Engine]) -> float:
        """Tokens per second since the last snapshot."""
        now, total = time.monotonic(), sum(engine.stats.get("emitted_tokens", 0.0) for engine in engines)
        then, before = self._emitted
        self._emitted = (now, total)
        return round(max(0.0, total - before) / max(now - then, 1e-3), 1)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._read_choices()
                state = self.snapshot()
                self._client.set(queues.host_key(self._runtime.settings.host), json.dumps(state), px=queues.HOST_TTL * 1000)
                self._write_row(state)
            except BROKER_ERRORS as error:
                log.warning("state.broker_away", reason=str(error))
            except Exception:  # the heartbeat must outlive whatever one reading trips over
                log.exception("state.failed")
            try:
                self._runtime.look_after()
            except Exception:  # and whatever upkeep does
                log.exception("state.upkeep_failed")
            self._stopped.wait(INTERVAL)

    def _read_choices(self) -> None:
        """Now and then, for changes this host was not told of."""
        if time.monotonic() - self._choices_read >= CHOICES_INTERVAL or not self._choices_read:
            self._choices_read = time.monotonic()
            read_choices(self._runtime)

    def _write_row(self, state: dict[str, Any]) -> None:
        if time.monotonic() - self._row_written < ROW_INTERVAL and self._row_written:
            return
        from django.db import DatabaseError, close_old_connections
        from django.utils import timezone

        from mlxplatform.inference.models import Host

        memory = state["memory"]
        used = memory["weight_bytes"] + memory["kv_bytes"] + memory["prefix_bytes"]
        try:
            close_old_connections()
            Host.objects.update_or_create(
                name=state["host"],
                defaults={
                    "models": state["models"],
                    "instance": self.instance,
                    "free_bytes": memory["budget_bytes"] - used,
                    "heartbeat_at": timezone.now(),
                },
            )
            self._row_written = time.monotonic()
        except DatabaseError as error:
            log.warning("state.row_not_written", reason=str(error))


def _engine_summary(engine: Engine | None, *, failed: bool) -> dict[str, Any]:
    """The current model's engine: what /health asks about."""
    if engine is None:
        return {"state": "failed" if failed else "absent", "pid": None, "restarts": 0}
    return {"state": engine.state, "pid": engine.pid, "restarts": engine.restarts}


def _engine_details(engine: Engine) -> dict[str, Any]:
    return {
        "model": engine.model.id,
        "state": engine.state,
        "pid": engine.pid,
        "restarts": engine.restarts,
        "load_seconds": engine.load_seconds,
        "requests": engine.running,
        "adapters": sum(mount["state"] == "mounted" for mount in engine.mounts.listing().values()),
        "facts": engine.facts,
        "stats": engine.stats,
    }
