"""`python -m inference.worker`: a GPU worker with the right pool, and nothing on the command line to get wrong.

The same as `celery -A inference.celery worker -P threads`, where queue and concurrency come from `worker.lifecycle`;
further arguments are handed to Celery (`-l debug`, `-n name@%h`).
"""

from __future__ import annotations

import sys

from inference import config
from inference.celery import app
from inference.errors import ConfigError


def main(arguments: list[str]) -> None:
    try:
        name = config.load().worker_name
    except ConfigError as error:
        sys.exit(f"worker: {error.message}")
    app.worker_main(
        [
            *("worker", "-P", "threads", "-n", f"{name}@%h"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "info"),
            *arguments,
        ]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
