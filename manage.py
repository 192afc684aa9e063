#!/usr/bin/env python
"""Entry of every command of the site. A missing or bad setting, or a database that is away, is said in one sentence."""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")
    if arguments[1:2] == ["up"]:
        from chatsite import state_dir

        state_dir.take_flag(arguments)  # settings keep their secret key there: it counts before they are read
    try:
        from django.core.management import execute_from_command_line
        from django.db import DatabaseError
    except ImportError:
        sys.exit(f"Django is not installed for {sys.executable}; `make install` makes .venv with everything in it.")
    try:
        execute_from_command_line(arguments)
    except DatabaseError as error:
        if "--traceback" in arguments:
            raise
        from chatsite.settings import database_trouble

        sys.exit(database_trouble(error))


if __name__ == "__main__":
    main(sys.argv)
