"""The wire protocols batch lines may speak, registered by the package that knows them.

A batch knows lines, files, counts and states; how a body becomes contract requests and how answers become a body
again is looked up here by endpoint. Data and one dictionary: nothing of any protocol is known in this app.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxplatform.inference.contract import InferenceRequest, Refusal, Usage
from mlxplatform.rows.contract import Output


@dataclass(frozen=True)
class ParsedLine:
    """One line's body, checked. ``requests`` have no model yet; ``model`` is the client's word for it."""

    requests: tuple[InferenceRequest, ...]
    model: str | None
    usage: Callable[[Sequence[Output]], Usage]
    #: (request id, model id, unix seconds, answers) to the body of the answer.
    render: Callable[[str, str, int, Sequence[Output]], dict[str, Any]]


@dataclass(frozen=True)
class LineProtocol:
    """How one endpoint's lines are read and errors are worded."""

    endpoint: str
    parse: Callable[[Mapping[str, Any]], ParsedLine]
    error: Callable[[Refusal], dict[str, Any]]


_protocols: dict[str, LineProtocol] = {}


def register(protocol: LineProtocol) -> None:
    _protocols[protocol.endpoint] = protocol


def get(endpoint: str) -> LineProtocol:
    return _protocols[endpoint]


def endpoints() -> list[str]:
    """Endpoints OpenAI batches may name."""
    return [name for name in _protocols if name != MESSAGES]


#: The endpoint Anthropic batches have without naming it.
MESSAGES = "/v1/messages"
