"""A whole site of real processes for tests: bundled servers, Daphne, the site worker, GPU workers with SmolLM2.

Each process is one this harness started and ends by its own pid. Tests kill, stop and restart them; nothing is shared
with the servers of other tests. `Person` is a browser without a screen: cookies, forms, event streams.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import redis

from chatsite.embedded import BundledPostgres, BundledValkey
from chatsite.server_user import die_with_parent

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2-135m"
START_SECONDS = 120.0


_held_ports: list[socket.socket] = []


def held_port() -> int:
    """A port of loopback that nobody else is given while this process lives, though a server may bind it meanwhile.

    A socket bound with SO_REUSEADDR that never listens does that; a merely free port may be somebody's a second later.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _held_ports.append(holder)
    return int(holder.getsockname()[1])


def wait_for(reached: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """The first true value of `reached`, asked every 50 ms; an AssertionError that says `what` did not happen."""
    deadline = time.monotonic() + seconds
    while True:
        value = reached()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


class Fleet:
    """Start with `with Fleet() as fleet:`; everything ends with the block."""

    def __init__(self, *, workers: int = 1, env: dict[str, str] | None = None) -> None:
        self.state_dir = Path(tempfile.mkdtemp(prefix="smolfleet-e2e-"))
        self.state_dir.chmod(0o711)
        self.valkey = BundledValkey(self.state_dir)
        self.postgres = BundledPostgres(self.state_dir, durable=False)
        self.port = held_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._num_workers = workers
        self._given_env = env or {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._people: list[Person] = []
        self.metrics_ports: list[int] = []
        self.env: dict[str, str] = {}

    def __enter__(self) -> Fleet:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "STATE_DIR": str(self.state_dir),
            "REDIS_URL": self.valkey.start(),
            "DATABASE_URL": self.postgres.start(),
            "MODEL": MODEL,
            "LEASE_SECONDS": "2",
            "WORKER_THREADS": "1",  # a second one spins for a core that web and tests have
            "WORKER_SLOTS": "8",
            "WORKER_CONTEXT_TOKENS": "2048",
            "MAX_COMPLETION_TOKENS": "160",
            "MAX_ACTIVE_PER_USER": "64",
            "MAX_REQUESTS_PER_MINUTE": "0",
            "MODEL_TITLES": "0",  # else a slot may be busy just when a test counts the free ones
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "chatsite.settings",
            **self._given_env,
        }
        for number in range(self._num_workers):
            self.metrics_ports.append(held_port())
            self.start_worker(f"gpu-{number + 1}", WORKER_METRICS_PORT=str(self.metrics_ports[-1]))
        self.manage("prepare")
        self.start_site_worker()
        self.start_web()
        self.wait_until_ready()

    def close(self) -> None:
        for person in self._people:
            person.http.close()
        for name in ("web", *[n for n in self._processes if n.startswith("gpu-")], "site"):
            if name in self._processes:
                self.kill(name)
        self.valkey.stop()
        self.postgres.stop()
        shutil.rmtree(self.state_dir, ignore_errors=True)

    # -- processes

    def start_worker(self, name: str, **env: str) -> None:
        own = {"REDIS_URL": self.valkey.gpu_url, "WORKER_NAME": name}
        self._spawn(name, ["-m", "inference.worker"], {**own, **env})

    def start_site_worker(self) -> None:
        arguments = ["-m", "celery", "-A", "chatsite.celery", "worker", "-B", "-P", "threads", "-c", "8", "-Q", "site"]
        self._spawn("site", [*arguments, "-l", "INFO", "-s", str(self.state_dir / "beat")], {})

    def start_web(self) -> None:
        self._spawn("web", ["-m", "chatsite.server", "-b", "127.0.0.1", "-p", str(self.port)], {})

    def _spawn(self, name: str, arguments: list[str], env: dict[str, str]) -> None:
        with self.log_path(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),  # a killed test run leaves nothing behind
            )

    def log_path(self, name: str) -> Path:
        return self.state_dir / f"{name}.log"

    def kill(self, name: str) -> None:
        """SIGKILL to the process and whatever it started."""
        process = self._processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def terminate(self, name: str, seconds: float = 60.0) -> int:
        """SIGTERM, then wait for the end; its exit status."""
        process = self._processes.pop(name)
        process.terminate()
        try:
            return process.wait(seconds)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def send_signal(self, name: str, number: int) -> None:
        self._processes[name].send_signal(number)

    def manage(self, *arguments: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"manage.py {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    # -- what it says of itself

    def health(self) -> tuple[int, dict[str, Any]]:
        answer = httpx.get(f"{self.url}/health/ready", timeout=10.0)
        return answer.status_code, answer.json()

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its full name, labels included."""
        answer = httpx.get(f"{self.url}/metrics", timeout=10.0)
        assert answer.status_code == 200, answer.text
        lines = [line for line in answer.text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def workers(self) -> list[dict[str, Any]]:
        return self.health()[1]["checks"]["workers"]

    def is_ready(self) -> bool:
        try:
            return self.health()[0] == 200
        except httpx.TransportError:
            return False

    def wait_until_ready(self, num_workers: int | None = None) -> None:
        wanted = self._num_workers if num_workers is None else num_workers

        def reached() -> bool:
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended: {self.log_path(name).read_text()[-2000:]}"
            return self.is_ready() and sum(w["state"] == "ready" for w in self.workers()) >= wanted

        wait_for(reached, f"ready with {wanted} workers", START_SECONDS)

    # -- people

    def person(self, name: str | None = None) -> Person:
        """Somebody new, signed up and in."""
        self.forget_sign_ups()
        self._people.append(Person(self, name or f"person-{uuid.uuid4().hex[:8]}"))
        return self._people[-1]

    def forget_sign_ups(self) -> None:
        """So many a minute may come from one address, and everybody here comes from one."""
        with redis.Redis.from_url(self.env["REDIS_URL"]) as connection:
            for key in connection.scan_iter("*:cache:*"):
                connection.delete(key)

    def api_key(self, person: Person) -> str:
        return self.manage("createapikey", person.name).strip().splitlines()[-1]


@dataclass
class Frame:
    """One event of an event stream."""

    event: str
    data: dict[str, Any]
    id: str = ""


@dataclass
class Viewed:
    """What a viewer has put together from the frames of one answer, over any number of connections."""

    content: str = ""
    reasoning: str = ""
    blocks: list[str] = field(default_factory=list)
    tail: str = ""
    cursor: str = ""
    last_seq: int = 0
    worker: str = ""  # who writes it, as its newest status says
    done: dict[str, Any] | None = None
    frames: list[Frame] = field(default_factory=list)

    def take(self, frame: Frame) -> None:
        self.frames.append(frame)
        if frame.event == "status":
            self.worker = str(frame.data.get("worker") or self.worker)
        elif frame.event == "delta":
            assert frame.data["seq"] > self.last_seq, (frame.data["seq"], self.last_seq)
            self.last_seq = frame.data["seq"]
            self.content += frame.data.get("content", "")
            self.reasoning += frame.data.get("reasoning", "")
            if "blocks" in frame.data:
                self.blocks += frame.data["blocks"]
                self.tail = frame.data["tail"]
            else:
                self.tail += frame.data.get("content", "")
        elif frame.event == "reset":
            self.content, self.reasoning, self.blocks, self.tail, self.last_seq = "", "", [], "", 0
        elif frame.event == "done":
            self.done = frame.data
            if frame.data.get("snapshot"):
                self.content, self.reasoning = frame.data["content"], frame.data["reasoning"]
            else:
                self.blocks += frame.data["blocks"]
        if frame.id:
            self.cursor = frame.id


class Person:
    """Somebody with an account and a browser's cookies."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet = fleet
        self.name = name
        self.password = "correct horse battery"
        self.http = httpx.Client(base_url=fleet.url, timeout=30.0, follow_redirects=True)
        self.post(
            "/accounts/signup/", username=name, password1=self.password, password2=self.password, email=""
        ).raise_for_status()
        assert "sessionid" in self.http.cookies, "signing up did not sign in"

    def post(self, path: str, **fields: str) -> httpx.Response:
        if "csrftoken" not in self.http.cookies:
            self.http.get("/accounts/login/")
        return self.http.post(
            path,
            data={**fields, "csrfmiddlewaretoken": self.http.cookies["csrftoken"]},
            headers={"Referer": self.fleet.url},
        )

    def send(self, text: str, conversation: str = "") -> tuple[str, str]:
        """Send a message; (conversation id, generation id)."""
        path = f"/chat/{conversation}/send/" if conversation else "/chat/"
        answer = self.post(path, text=text, key=str(uuid.uuid4()))
        assert answer.status_code == 200, (answer.status_code, answer.text[:500])
        found = re.search(r"/chat/([0-9a-f-]{36})/$", str(answer.url))
        assert found, answer.url
        generations = re.findall(r'data-generation="([0-9a-f-]{36})"', answer.text)
        assert generations, "the page shows no answer being written"
        return found[1], generations[-1]

    def stream(self, generation: str, after: str = "", seconds: float = 120.0) -> Iterator[Frame]:
        """Frames of one connection, until the server ends it."""
        path = f"/chat/generations/{generation}/events"
        deadline = time.monotonic() + seconds
        with self.http.stream("GET", path, params={"after": after} if after else {}) as response:
            assert response.status_code == 200, response.status_code
            event, data, id_ = "", [], ""
            for line in response.iter_lines():
                assert time.monotonic() < deadline, f"no end of the stream within {seconds} s"
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    data.append(line[6:])
                elif line.startswith("id: "):
                    id_ = line[4:]
                elif not line and data:
                    yield Frame(event, json.loads("\n".join(data)), id_)
                    event, data, id_ = "", [], ""

    def watch(self, generation: str, until: Callable[[Viewed], object]) -> Viewed:
        """What one connection showed when `until` came true, or at its end."""
        viewed = Viewed()
        for frame in self.stream(generation):
            viewed.take(frame)
            if until(viewed):
                break
        return viewed

    def follow(self, generation: str, viewed: Viewed | None = None, seconds: float = 120.0) -> Viewed:
        """Watch until the end, connecting again as often as it takes, as a browser would."""
        viewed = viewed or Viewed()
        deadline = time.monotonic() + seconds
        while viewed.done is None:
            assert time.monotonic() < deadline, f"no end of {generation} within {seconds} s"
            try:
                for frame in self.stream(generation, viewed.cursor, deadline - time.monotonic()):
                    viewed.take(frame)
            except httpx.TransportError:
                time.sleep(0.1)
        return viewed

    def stop(self, generation: str) -> httpx.Response:
        return self.post(f"/chat/generations/{generation}/stop/")
