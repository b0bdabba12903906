"""Structured logs: one line per fact, key=value, through structlog over the standard library's handlers."""

from __future__ import annotations

import logging
from typing import Any

import structlog

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def formatter() -> logging.Formatter:
    """The formatter every handler uses, also for lines of libraries that log without structlog."""
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event", "logger"], bool_as_flag=False),
        ],
    )


class UnexpectedOnly(logging.Filter):
    """Of what Django says about requests, keep exceptions: a refusal, also a 503, is logged where it is made."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is not None


class SeveralWorkers(logging.Filter):
    """The gpu process runs one Dramatiq worker per class of work on one broker; that warning is no news."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "middleware of the same type twice" not in record.getMessage()
