"""What other processes may ask of this host through its control list, besides requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from mlxplatform.inference.contract import Admitted, Event, Refusal, decode_request
from mlxplatform.library import local_models
from workers.host.control import Operation
from workers.host.publisher import Publisher
from workers.host.runtime import HostRuntime

log = structlog.get_logger(__name__)


def operations(runtime: HostRuntime, publisher: Publisher) -> Mapping[str, Operation]:
    """The operations by name."""

    def cancel(message: dict[str, Any]) -> None:
        runtime.cancel(str(message["request"]), str(message.get("reason", "")))

    def count(message: dict[str, Any]) -> None:
        request = decode_request(message["body"])
        events: list[Event]
        try:
            events = [Admitted(runtime.count(request), request.model, runtime.settings.host)]
        except Refusal as refusal:
            events = [refusal.failed()]
        publisher.sink(request)(events)
        publisher.flush()

    def load(message: dict[str, Any]) -> None:
        model = local_models.find(message["model"], runtime.settings.home)
        if model is not None:
            runtime.residency.obtain(model)

    def unload(message: dict[str, Any]) -> None:
        runtime.residency.unload(str(message["model"]))

    def pin(message: dict[str, Any]) -> None:
        runtime.residency.pin(str(message["model"]), bool(message.get("pinned", True)))

    def flush_prefix_cache(message: dict[str, Any]) -> None:
        del message
        for engine in runtime.residency.engines():
            engine.flush_prefix_cache()

    def mount(message: dict[str, Any]) -> None:
        runtime.mount(str(message["adapter"]))

    def unmount(message: dict[str, Any]) -> None:
        runtime.unmount(str(message["adapter"]))

    def logged(operation: Operation) -> Operation:
        def run(message: dict[str, Any]) -> None:
            try:
                operation(message)
            except Refusal as refusal:
                log.info("control.refused", op=message.get("op"), code=refusal.code, reason=refusal.message)

        return run

    return {
        "cancel": cancel,
        "count": count,
        "load": logged(load),
        "unload": logged(unload),
        "pin": pin,
        "flush": flush_prefix_cache,
        "mount": logged(mount),
        "unmount": unmount,
    }
