"""Which state directory this is: the one it was, one that was moved here, or a copy that must become one of its own.

A state directory carries `identity.json`: a random id and the real path it had when it was last used. A copy carries
the same file; it is known by the original, which is still where the file says. What a copy brings of the original's
running (addresses, processes) is forgotten before anything acts on it. Called by `manage.py up` and by the bundled
servers before they read what the directory remembers.

Data that lie outside have the name of their owner beside them (`DataLock`), which also keeps two servers apart.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from chatsite.process_id import ProcessId
from inference.errors import ConfigError

IDENTITY = "identity.json"
SERVERS = ("postgres.json", "valkey.json")  # what the bundled servers remember
OF_A_RUN = ("services.json", "children.json")  # of what runs just now, and of nothing else
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Identity:
    id: str
    path: Path

    @classmethod
    def read(cls, state_dir: Path) -> Identity | None:
        match read_json(state_dir / IDENTITY):
            case {"id": str(number), "path": str(path)}:
                return cls(number, Path(path))
        return None

    def is_beside(self, here: Path) -> bool:
        """Whether the directory of this identity is still where it was, and another one than `here`."""
        try:
            found = Identity.read(self.path)
            return found is not None and found.id == self.id and not self.path.samefile(here)
        except PermissionError:  # somebody else's: it is there
            return True

    def as_json(self) -> dict[str, object]:
        return {"id": self.id, "path": str(self.path)}


def settle(state_dir: Path) -> Identity:
    """Know this directory again, or make a copy one of its own. Idempotent; for one process at a time.

    Raises:
        ConfigError: it was copied while the original's servers wrote into it, so its data may be torn.
    """
    here = Path(os.path.realpath(state_dir))
    torn_from = _torn_from(here)
    if torn_from:
        raise ConfigError(_torn(here, torn_from))
    known = Identity.read(here)
    if known is not None and known.path == here:
        return known
    original = known.path if known is not None and known.is_beside(here) else None
    if known is None:
        original = _original_of_an_older_copy(here)
    if original is not None:
        if _is_running(here):
            write_private(here / IDENTITY, {"torn_from": str(original)})
            raise ConfigError(_torn(here, str(original)))
        _forget_runs(here)
    identity = Identity(secrets.token_hex(16) if known is None or original is not None else known.id, here)
    write_private(here / IDENTITY, identity.as_json())
    return identity


def _torn_from(here: Path) -> str:
    match read_json(here / IDENTITY):
        case {"torn_from": str(original)}:
            return original
    return ""


def _torn(here: Path, original: str) -> str:
    return f"{here} was copied from {original} while that ran, so its data may be torn; stop that and copy it again."


def _original_of_an_older_copy(here: Path) -> Path | None:
    """Up to 0.4.0 there was no identity, but the servers remembered where their data lie: below the original."""
    for name in SERVERS:
        match read_json(here / name):
            case {"place": str(place)} if Path(place).parent.name == "servers":
                original = Path(place).parent.parent
                if (original / name).exists() and not original.samefile(here):
                    return original
    return None


def _is_running(here: Path) -> bool:
    memories = (read_json(here / name) for name in SERVERS)
    processes = (ProcessId.from_json(memory.get("process")) for memory in memories if isinstance(memory, dict))
    return any(process is not None and process.is_alive for process in processes)


def _forget_runs(here: Path) -> None:
    for name in OF_A_RUN:
        (here / name).unlink(missing_ok=True)
    for name in SERVERS:
        memory = read_json(here / name)
        if isinstance(memory, dict) and ("process" in memory or "owner" in memory):
            write_private(here / name, {key: value for key, value in memory.items() if key not in ("process", "owner")})


class DataLock:
    """One server per data directory. The file lies beside the data, names their owner, and is locked while it is used.

    The server inherits the lock, so it lasts for as long as anybody uses the data, whoever started it.
    """

    def __init__(self, place: Path) -> None:
        self._path = place.with_name(place.name + ".lock")
        self._file: IO[str] | None = None

    @property
    def owner(self) -> Identity | None:
        """Whose data these are, as far as it is written down."""
        match read_json(self._path):
            case {"id": str(number), "path": str(path)}:
                return Identity(number, Path(path))
        return None

    def take(self, identity: Identity, *, seconds: float) -> bool:
        """Hold it, after waiting `seconds` at most for one that is just ending. Whether it was free."""
        if self._file is None:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            self._file = os.fdopen(os.open(self._path, flags, 0o600), "r+")
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self.release()
                    return False
                time.sleep(POLL_SECONDS)
        self._file.seek(0)
        self._file.truncate()
        json.dump(identity.as_json(), self._file)
        self._file.flush()
        return True

    @property
    def descriptor(self) -> int:
        assert self._file is not None, "not taken"
        return self._file.fileno()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_json(path: Path) -> Any:
    """None where there is nothing, or nothing that can be read as JSON."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def write_private(path: Path, value: dict[str, object]) -> None:
    """Replace `path` by the JSON of `value`, readable by its owner alone, whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(value, file, indent=1)
    fresh.rename(path)
