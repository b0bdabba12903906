"""The control list of one gpu process: cancellations and a few orders from web processes, in msgpack."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import redis
import structlog

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS

log = structlog.get_logger(__name__)

#: Seconds one blocking read waits, so that a stop is noticed.
READ_SECONDS = 1.0
#: Seconds between attempts while the broker is away.
RETRY_SECONDS = 0.5

Operation = Callable[[dict[str, Any]], None]


class Control:
    """Reads the list and calls the operation named by each message's ``op``."""

    def __init__(self, client: redis.Redis, host: str, operations: Mapping[str, Operation]):
        self._client, self._key, self._operations = client, queues.control_key(host), operations
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                item: Any = self._client.blpop([self._key], timeout=READ_SECONDS)
            except BROKER_ERRORS as error:
                log.warning("control.broker_away", reason=str(error))
                self._stopped.wait(RETRY_SECONDS)
                continue
            if item is not None:
                self._handle(item[1])

    def _handle(self, raw: bytes) -> None:
        try:
            message = msgspec.msgpack.decode(raw, type=dict[str, Any])
        except msgspec.DecodeError as error:
            log.warning("control.unreadable", reason=str(error))
            return
        operation = self._operations.get(str(message.get("op")))
        if operation is None:
            log.warning("control.unknown", op=message.get("op"))
            return
        try:
            operation(message)
        except Exception:  # one bad order must not stop cancellations from being read
            log.exception("control.failed", op=message.get("op"))
