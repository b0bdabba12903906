"""OpenAI surfaces this server does not have, refused in words rather than by an unknown path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal


def unavailable(code: str, message: str, status: int = 501) -> Callable[..., Any]:
    async def refuse(request: HttpRequest, **_: Any) -> None:
        raise Refusal(status, code, message)

    return endpoint(POST=refuse)


moderations = unavailable("unsupported_execution", "This server has no moderation model.")
compact = unavailable("unsupported_execution", "Conversations are not compacted here; 'truncation': 'auto' makes long ones fit.")
images = unavailable("unsupported_execution", "This server makes no images.")
speech = unavailable("unsupported_execution", "This server makes no speech.")
