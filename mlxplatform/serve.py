"""The web process: Django and Channels behind Daphne, on one address.

It checks that the address may be served at all (other machines need a key), then runs until told to end. It
never imports mlx, and must start within three seconds and 200 MB.
"""

from __future__ import annotations

import os
import signal
import sys

from workers import listener
from workers.guard import end_with_parent
from workers.turns import keep_what_is_loaded, take_short_turns

#: Seconds running requests may go on after SIGTERM. Less than the supervisor's patience.
DRAIN_SECONDS = 5.0
#: The same after SIGUSR1: another web process has taken over, and nobody waits for the end of this one.
HANDOVER_SECONDS = 600.0
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def refusal_to_bind(host: str) -> str:
    """Why ``host`` must not be served, or "". Needs Django to be set up and the database migrated."""
    if host in LOOPBACK:
        return ""
    from mlxplatform.accounts.keys import any_key_exists

    if any_key_exists():
        return ""
    return (
        f"MLXPLATFORM_HOST={host} would serve other machines without any key. "
        "Make one first (python manage.py keys create), or serve 127.0.0.1."
    )


def endpoint(host: str, port: int) -> str:
    """Where to accept, in Twisted's endpoint language: the supervisor's socket, else the address with its colons escaped."""
    door = listener.inherited()
    if door is not None:
        return f"fd:fileno={door}"
    return f"tcp:port={port}:interface={host.replace(':', chr(92) + ':')}"


def main() -> None:
    end_with_parent()
    take_short_turns()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mlxplatform.settings")
    from mlxplatform import environment

    try:
        environment.read()
    except environment.BadSetting as error:
        print(f"mlxplatform: {error}", file=sys.stderr)  # noqa: T201  logging is set up by what just failed
        sys.exit(os.EX_CONFIG)

    from mlxplatform.http.daphne_server import Server  # before Django: it chooses Twisted's reactor

    from mlxplatform.asgi import application  # isort: skip
    from django.conf import settings

    from mlxplatform import tracing
    from mlxplatform.http.front import limit_of

    try:
        tracing.start("web")
    except environment.BadSetting as error:
        print(f"mlxplatform: {error}", file=sys.stderr)  # noqa: T201  a sentence for the terminal
        sys.exit(os.EX_CONFIG)
    if reason := refusal_to_bind(settings.ENV.host):
        print(f"mlxplatform: {reason}", file=sys.stderr)  # noqa: T201  a sentence for the terminal
        sys.exit(os.EX_CONFIG)
    server = Server(
        application,
        endpoints=[endpoint(settings.ENV.host, settings.ENV.port)],
        body_limit=limit_of,
        drain_seconds=DRAIN_SECONDS,
        on_accepting=listener.tell_ready,
    )
    signal.signal(signal.SIGUSR1, lambda *_: server.hand_over(HANDOVER_SECONDS))
    keep_what_is_loaded()
    server.run()


if __name__ == "__main__":
    main()
