"""``mlx-platform``: the one command of an installed wheel. Without words it starts the platform.

With words it is ``manage.py``: ``mlx-platform keys create laptop``. A clone keeps its data in ``./var``; whoever installed a
package has no such place, so the data directory is the usual one of the operating system unless MLXPLATFORM_HOME is set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

START_WORDS: tuple[list[str], ...] = ([], ["run"], ["start"])
USAGE = """\
mlx-platform              start the platform and everything it consists of
mlx-platform COMMAND …    one of the management commands, such as:
    keys create NAME      make an API key          people add NAME     let somebody sign in
    models pull NAME      fetch a model            chat                talk to it here
    jobs                  list and follow jobs     doctor              find what does not agree
    quantize MODEL        make a smaller copy      finetune MODEL …    teach a model
    memory                a wiki from your chats   restart             take up new code
    backup FILE           save everything          restore FILE        bring it back
mlx-platform help         all commands

Data directory: {home}   (MLXPLATFORM_HOME)
"""


def user_data_dir(platform: str = sys.platform, environ: dict[str, str] | None = None) -> Path:
    """Where programs of this operating system keep what their user made."""
    environ = dict(os.environ) if environ is None else environ
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "mlx-platform"
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "mlx-platform"


def main() -> None:
    os.environ.setdefault("MLXPLATFORM_HOME", str(user_data_dir()))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mlxplatform.settings")
    words = sys.argv[1:]
    if words in START_WORDS:
        from workers.supervisor import main as start

        start()
    elif words[0] in {"-h", "--help"}:
        sys.stdout.write(USAGE.format(home=os.environ["MLXPLATFORM_HOME"]))
    else:
        from django.core.management import execute_from_command_line

        from mlxplatform.environment import BadSetting

        try:
            execute_from_command_line(["mlx-platform", *words])
        except BadSetting as error:
            sys.exit(f"mlxplatform: {error}")


if __name__ == "__main__":
    main()
