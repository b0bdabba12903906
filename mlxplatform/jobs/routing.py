"""WebSocket routes of jobs."""

from channels.auth import AuthMiddlewareStack
from django.urls import path

from mlxplatform.jobs.sockets import JobSocket

websocket_urlpatterns = [path("ws/jobs/<str:job_id>", AuthMiddlewareStack(JobSocket.as_asgi()))]
