"""WebSocket routes of jobs."""

from django.urls import path

from mlxplatform.jobs.sockets import JobSocket

websocket_urlpatterns = [path("ws/jobs/<str:job_id>", JobSocket.as_asgi())]
