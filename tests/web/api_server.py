"""The web process itself, for tests that talk HTTP: the site's server, on a port of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import httpx

from tests.web.api_worker import wait_until

START_SECONDS = 60.0


@contextlib.contextmanager
def serving(database_name: str, **environment: str) -> Iterator[str]:
    """The base address of a server on that database, while the block runs."""
    with running(database_name, **environment) as (base_url, _):
        yield base_url


@contextlib.contextmanager
def running(database_name: str, **environment: str) -> Iterator[tuple[str, int]]:
    """The same, with the process's id."""
    with socket.socket() as listener, tempfile.TemporaryFile() as output:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        env = {**os.environ, "DATABASE_URL": _with_database(os.environ["DATABASE_URL"], database_name), **environment}
        process = subprocess.Popen(
            [sys.executable, "-m", "chatsite.server", "-v", "1", "--fd", str(listener.fileno())],
            env=env,
            pass_fds=[listener.fileno()],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: _answers(base_url, process), seconds=START_SECONDS)
            yield base_url, process.pid
        finally:
            process.terminate()
            process.wait(timeout=20)
            output.seek(0)
            text = output.read().decode(errors="replace")
            sys.stdout.write(text)  # pytest shows it where a test failed
        assert "Exception inside application" not in text, "an application ended with a failure of its own"


def _answers(base_url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the server ended"
    try:
        return httpx.get(f"{base_url}/v1/nothing", timeout=1.0).status_code == 404
    except httpx.TransportError:
        return False


def _with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
