"""The web process: `python -m chatsite.server -b 127.0.0.1 -p 8000`. It takes every option that `daphne` takes."""

from __future__ import annotations

import os
import resource
import sys

from chatsite.server.site import CommandLine

APPLICATION = "chatsite.asgi:application"
DEFAULTS = ["--verbosity", "0", "--no-server-name"]  # no word of which server this is; no log line for each request
MAX_OPEN_FILES = 65_536


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")
    _raise_file_limit()
    CommandLine().run([*DEFAULTS, *sys.argv[1:], APPLICATION])


def _raise_file_limit() -> None:
    """Each connection is an open file, and many systems begin with 1,024 of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
