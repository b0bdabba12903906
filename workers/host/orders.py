"""What other processes may ask of this host through its control list, besides requests.

Cancels are carried out by the thread that reads the list. What may take long (counting a large prompt, loading a model)
goes to threads of its own, so that no cancel waits behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
import structlog

from mlxplatform.inference.contract import Admitted, Event, Refusal, decode_request
from mlxplatform.library import local_models
from workers.host.control import Operation
from workers.host.pictures import pictures_of
from workers.host.publisher import Publisher
from workers.host.runtime import HostRuntime

log = structlog.get_logger(__name__)

#: Counts under way at once; the preparation child works on one at a time, the others wait for it.
COUNTERS = 4


def read_choices(runtime: HostRuntime) -> None:
    """What people chose for models, from SQL into the host's memory."""
    from django.db import DatabaseError, close_old_connections

    from mlxplatform.library import choices

    try:
        close_old_connections()
        runtime.choose(choices.everything())
    except DatabaseError as error:
        log.warning("choices.not_read", reason=str(error))


def operations(runtime: HostRuntime, publisher: Publisher, client: redis.Redis) -> Mapping[str, Operation]:
    """The operations by name."""

    def cancel(message: dict[str, Any]) -> None:
        runtime.cancel(str(message["request"]), str(message.get("reason", "")))

    def count(message: dict[str, Any]) -> None:
        request = decode_request(message["body"])
        events: list[Event]
        try:
            events = [Admitted(runtime.count(request, pictures_of(client, request)), request.model, runtime.settings.host)]
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

    def choices(message: dict[str, Any]) -> None:
        del message
        read_choices(runtime)

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
            except Exception:  # in a thread of its own nobody else would tell
                log.exception("control.failed", op=message.get("op"))

        return run

    def aside(operation: Operation, pool: ThreadPoolExecutor) -> Operation:
        def run(message: dict[str, Any]) -> None:
            pool.submit(logged(operation), message)

        return run

    counters = ThreadPoolExecutor(COUNTERS, thread_name_prefix="count")
    # One thread: orders about models are carried out in the order they were given.
    models = ThreadPoolExecutor(1, thread_name_prefix="models")

    return {
        "cancel": cancel,
        "count": aside(count, counters),
        "load": aside(load, models),
        "unload": aside(unload, models),
        "choices": aside(choices, models),
        "flush": flush_prefix_cache,
        "mount": logged(mount),
        "unmount": unmount,
    }
