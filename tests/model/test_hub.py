"""Downloads from the hub, through the real huggingface_hub, against a local server that speaks its interface.

In a process of its own: the library reads its address and cache from the environment when it is imported.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

PROGRAM = """
import sys
from inference.catalog import CatalogEntry, Source, resolve
from inference.errors import ModelFileError
source = Source(hub="owner/repo", file="tiny.gguf", sha256=sys.argv[1])
try:
    print("PATH", resolve(CatalogEntry(name="m", title="M", source=source, context_tokens=512)))
except ModelFileError as error:
    print("REFUSED", error.message)
"""


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, data: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.num_downloads = 0


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        if not (self.path.startswith("/owner/repo/resolve/") and self.path.endswith("/tiny.gguf")):
            self.send_error(404)
            return
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        body = self.server.data[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{self.server.sha256}"')
        self.send_header("X-Linked-Etag", f'"{self.server.sha256}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.server.num_downloads += 1
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tiny_path: Path) -> Iterator[Hub]:
    server = Hub(tiny_path.read_bytes())
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def fetch(home: Path, endpoint: str, sha256: str = "", **env: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "PYTHONWARNINGS": "default", **env}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, sha256],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip().splitlines()[-1]


def test_a_file_is_downloaded_once_and_checked(hub: Hub, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    answer = fetch(tmp_path, endpoint, hub.sha256)
    assert answer.startswith("PATH")
    assert Path(answer.split()[1]).read_bytes() == hub.data
    assert hub.num_downloads == 1
    assert fetch(tmp_path, endpoint, hub.sha256, HF_HUB_OFFLINE="1") == answer
    assert hub.num_downloads == 1


def test_a_damaged_download_is_refused_and_not_kept(hub: Hub, tmp_path: Path) -> None:
    answer = fetch(tmp_path, f"http://127.0.0.1:{hub.server_port}", "0" * 64)
    assert answer.startswith("REFUSED")
    assert "damaged" in answer
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size > 100_000]


def test_offline_is_said_in_one_sentence(tmp_path: Path) -> None:
    answer = fetch(tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert answer.startswith("REFUSED")
    assert "cannot be reached" in answer
    assert "MODEL" in answer
