"""The lifeline: a pipe whose closing tells a child that its parent is gone, however the parent died.

The parent keeps the write end and never writes; every child inherits the read end and ends itself at
end-of-file. Unlike Linux's parent-death signal this works on macOS, and unlike a heartbeat it needs no time.
The write end is not inheritable, so a grandchild cannot keep the pipe open.

It knows nothing of Django, Redis or mlx: every process of the platform may import it first thing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

#: Environment variable that carries the number of the inherited read end.
VARIABLE = "MLXP_LIFELINE"
#: Seconds a child may spend on an orderly end before it exits the hard way.
GRACE = 3.0


class Lifeline:
    """The parent's side. Pass ``read_fd`` in ``pass_fds`` and :meth:`environment` in ``env`` of each child."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()

    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.read_fd)}

    def close(self) -> None:
        """Tell the children to end, as the parent's death would."""
        for fd in (self.read_fd, self._write_fd):
            os.close(fd)


def end_with_parent(on_end: Callable[[], None] | None = None, *, grace: float = GRACE) -> None:
    """Watch the inherited lifeline from a daemon thread; without one (started by hand) do nothing.

    At the parent's end ``on_end`` is called if given, otherwise this process gets SIGTERM, so that its usual
    orderly end runs. After ``grace`` seconds it exits whatever it is doing. A native call that holds the
    interpreter lock delays this; the gpu supervisor kills such children by signal.
    """
    number = os.environ.pop(VARIABLE, "")
    if not number:
        return
    fd = int(number)
    os.set_inheritable(fd, False)

    def watch() -> None:
        try:
            while os.read(fd, 1):
                pass
        except OSError:
            pass  # closed under us: the same news
        last_resort = threading.Timer(grace, os._exit, args=(1,))
        last_resort.daemon = True
        last_resort.start()
        if on_end is not None:
            on_end()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
