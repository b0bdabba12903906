"""The web process's ASGI application: Django behind the body guard for HTTP, Channels for the job-progress WebSocket."""

import os
from typing import cast

import django
from channels.routing import ProtocolTypeRouter, URLRouter

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mlxplatform.settings")
django.setup(set_prefix=False)

from mlxplatform.http.front import App, Front  # noqa: E402
from mlxplatform.http.guards import SocketGuard  # noqa: E402
from mlxplatform.http.threads import Handler  # noqa: E402
from mlxplatform.jobs.routing import websocket_urlpatterns  # noqa: E402  models need the app registry

application = ProtocolTypeRouter(
    {
        "http": Front(cast(App, Handler())),
        "websocket": SocketGuard(URLRouter(websocket_urlpatterns)),
    }
)
