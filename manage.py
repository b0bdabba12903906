#!/usr/bin/env python
"""Django's command line for the platform."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mlxplatform.settings")
    from mlxplatform.environment import BadSetting

    try:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
    except BadSetting as error:
        sys.exit(f"mlxplatform: {error}")


if __name__ == "__main__":
    main()
