"""WebSocket routes of jobs."""

from typing import Any, cast

from channels.auth import AuthMiddlewareStack
from django.urls import path, re_path

from mlxplatform.jobs.sockets import JobSocket


async def no_socket(scope: Any, receive: Any, send: Any) -> None:
    """Any other path: the handshake is answered with 403. Without a route it would be an error of ours, a 500."""
    await send({"type": "websocket.close"})


websocket_urlpatterns = [
    path("ws/jobs/<str:job_id>", AuthMiddlewareStack(JobSocket.as_asgi())),
    re_path("", cast(Any, no_socket)),  # Channels routes ASGI applications by Django's paths
]
