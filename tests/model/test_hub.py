"""Downloads from the hub, through the real huggingface_hub, against a local server that speaks its interface.

In a process of its own: the library reads its address and cache from the environment when it is imported.
"""

from __future__ import annotations

import hashlib
import os
import re
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
from inference.model_files import download
from inference.catalog import CatalogEntry, Source, resolve
from inference.errors import ModelFileError
download.REPORT_SECONDS = download.RETRY_SECONDS = 0.0
source = Source(hub=sys.argv[2], file=sys.argv[3], sha256=sys.argv[1])
try:
    entry = CatalogEntry(name="m", title="M", source=source, context_tokens=512)
    print("PATH", resolve(entry, model_dir=sys.argv[4]).path)
except ModelFileError as error:
    print("REFUSED", error.message)
"""
TOKEN = "hf_ofThisTestAlone"
ROOT = Path(__file__).resolve().parents[2]


class Hub(ThreadingHTTPServer):
    """`served` is what comes as the file's bytes; `cuts` are how many of them each of the next answers sends before its
    connection breaks."""

    daemon_threads = True

    def __init__(self, data: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.data = self.served = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.size = len(data)
        self.cuts: list[int] = []
        self.asked_from: list[int] = []
        self.refusal: tuple[int, str] | None = None
        self.token = ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def num_downloads(self) -> int:
        return len(self.asked_from)


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        server = self.server
        refusal = server.refusal
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            refusal = (401, "RepoNotFound")
        elif not self.path.startswith("/owner/repo/resolve/"):
            refusal = (404, "RepoNotFound")
        elif not self.path.endswith("/tiny.gguf"):
            refusal = (404, "EntryNotFound")
        if refusal is not None:
            self.send_response(refusal[0])
            if refusal[1]:
                self.send_header("X-Error-Code", refusal[1])
            self.send_header("X-Repo-Commit", "a" * 40)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        body = server.served[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{server.sha256}"')
        self.send_header("X-Linked-Etag", f'"{server.sha256}"')
        self.send_header("X-Linked-Size", str(server.size))
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.served) - 1}/{len(server.served)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            server.asked_from.append(start)
            cut = server.cuts.pop(0) if server.cuts else len(body)
            self.wfile.write(body[:cut])
            if cut < len(body):
                self.wfile.flush()
                self.close_connection = True

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


def environment(home: Path, endpoint: str, **env: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    return clean | {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "PYTHONWARNINGS": "default", **env}


def started(
    home: Path,
    endpoint: str,
    sha256: str = "",
    *,
    repo: str = "owner/repo",
    file: str = "tiny.gguf",
    into: str = "",
    **env: str,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, sha256, repo, file, into],
        env=environment(home, endpoint, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    return said.strip()


def fetch(home: Path, endpoint: str, sha256: str = "", **more: str) -> str:
    return ended(started(home, endpoint, sha256, **more)).splitlines()[-1]  # type: ignore[arg-type]


def large_files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size > 100_000]


@pytest.mark.parametrize("into", ["", "models"])
def test_a_file_is_downloaded_once_and_checked(hub: Hub, tmp_path: Path, into: str) -> None:
    folder = str(tmp_path / into) if into else ""
    answer = fetch(tmp_path, hub.address, hub.sha256, into=folder)
    assert answer.startswith("PATH")
    path = Path(answer.split()[1])
    assert path.read_bytes() == hub.data
    assert not into or path == tmp_path / "models" / "tiny.gguf"
    assert len(large_files(tmp_path)) == 1, "no second copy, no leftover"
    if not into:
        assert fetch(tmp_path, hub.address, hub.sha256, HF_HUB_OFFLINE="1") == answer
    assert hub.num_downloads == 1


@pytest.mark.parametrize("sha256", ["", "the hub's"])
def test_a_damaged_download_is_refused_and_not_kept(hub: Hub, tmp_path: Path, sha256: str) -> None:
    hub.served = hub.data[:5000] + bytes([hub.data[5000] ^ 1]) + hub.data[5001:]
    answer = fetch(tmp_path, hub.address, hub.sha256 if sha256 else "")
    assert answer.startswith("REFUSED")
    assert "damaged" in answer
    assert not large_files(tmp_path)
    hub.served = hub.data
    assert fetch(tmp_path, hub.address).startswith("PATH")


def test_another_file_than_the_catalog_names_is_not_even_downloaded(hub: Hub, tmp_path: Path) -> None:
    answer = fetch(tmp_path, hub.address, "0" * 64)
    assert answer.startswith("REFUSED")
    assert hub.sha256 in answer
    assert hub.num_downloads == 0


def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = [300_000, 0, 200_000]
    said = ended(started(tmp_path, hub.address))
    assert Path(said.splitlines()[-1].split()[1]).read_bytes() == hub.data
    assert hub.asked_from == sorted(hub.asked_from), "never back to a byte that was there already"
    assert hub.asked_from[:2] == [0, 300_000]
    assert re.search(r"model_download_progress .*percent=\d+", said), "lines where nobody watches a terminal"


def test_a_process_that_was_killed_leaves_what_the_next_one_goes_on_from(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = [400_000] + [0] * 100
    first = started(tmp_path, hub.address)
    while not any(p.stat().st_size >= 400_000 for p in large_files(tmp_path)):
        assert first.poll() is None
    first.kill()
    first.communicate(timeout=30)
    hub.cuts, hub.asked_from = [], []
    assert fetch(tmp_path, hub.address).startswith("PATH")
    assert hub.asked_from == [400_000]


def test_workers_that_start_together_download_once(hub: Hub, tmp_path: Path) -> None:
    answers = [ended(p).splitlines()[-1] for p in [started(tmp_path, hub.address) for _ in range(3)]]
    assert len(set(answers)) == 1
    assert answers[0].startswith("PATH")
    assert hub.asked_from == [0]
    assert len(large_files(tmp_path)) == 1


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((403, "GatedRepo"), ["HF_TOKEN", "terms"]),
        ((401, ""), ["HF_TOKEN"]),
        ((403, ""), ["HF_TOKEN", "403"]),
        ((404, "RevisionNotFound"), ["revision"]),
        ((500, ""), ["500|cannot be reached", "kept"]),
    ],
)
def test_a_refusal_is_one_sentence_that_says_what_helps(
    hub: Hub, tmp_path: Path, refusal: tuple[int, str], words: list[str]
) -> None:
    hub.refusal = refusal
    answer = fetch(tmp_path, hub.address)
    assert answer.startswith("REFUSED")
    for word in words:
        assert re.search(word, answer), answer


def test_a_repository_and_a_file_that_are_not_there_are_named(hub: Hub, tmp_path: Path) -> None:
    assert "no repository owner/other" in fetch(tmp_path, hub.address, repo="owner/other")
    assert "has no file other.gguf" in fetch(tmp_path, hub.address, file="other.gguf")
    assert "no name of a hub repository" in fetch(tmp_path, hub.address, repo="a/b/c")


def test_a_private_repository_opens_with_the_token_of_the_environment(hub: Hub, tmp_path: Path) -> None:
    hub.token = TOKEN
    assert "HF_TOKEN" in fetch(tmp_path, hub.address)
    answer = fetch(tmp_path, hub.address, HF_TOKEN=TOKEN)
    assert answer.startswith("PATH")
    assert TOKEN not in answer


def test_a_disk_without_room_is_said_before_anything_is_loaded(hub: Hub, tmp_path: Path) -> None:
    hub.size = 1 << 60
    answer = fetch(tmp_path, hub.address)
    assert "no room on the disk" in answer
    assert hub.num_downloads == 0


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "offline"])
def test_offline_is_said_in_one_sentence(tmp_path: Path, endpoint: str) -> None:
    answer = fetch(tmp_path, "http://127.0.0.1:9", **({"HF_HUB_OFFLINE": "1"} if endpoint == "offline" else {}))
    assert answer.startswith("REFUSED")
    assert "cannot be reached" in answer
    assert "MODEL" in answer


def test_pullmodel_prints_the_path_last(hub: Hub, tmp_path: Path, tiny_path: Path) -> None:
    env = environment(tmp_path, hub.address, MODEL_DIR=str(tmp_path / "models"), STATE_DIR=str(tmp_path / "state"))

    def pull(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", "pullmodel", name]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)

    for name, path in (("owner/repo:tiny.gguf", tmp_path / "models" / "tiny.gguf"), (str(tiny_path), tiny_path)):
        done = pull(name)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(path)
        assert path.read_bytes() == hub.data
    assert hub.num_downloads == 1
    for name in ("owner/repo:none.gguf", "nothing", str(ROOT / "README.md"), str(tmp_path / "none.gguf")):
        done = pull(name)
        assert done.returncode == 1
        assert name.split(":")[-1] in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
