"""As whom the bundled servers run, and where that user can read binaries and write data.

Postgres refuses root. As root both servers therefore run as `nobody`; as anybody else they simply run. Whether that
user can use a path is asked by trying it as that user, never by reading permission bits, and no permission is changed
of anything this module did not make. Called by `embedded` alone, from the thread that starts a server.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PR_SET_PDEATHSIG = 1
NOBODY = 65534

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(number: int, *, parent: int | None = None) -> Callable[[], None] | None:
    """A `preexec_fn` that has the kernel send signal `number` when the thread that started the child ends.

    `parent` is who that is, this process by default. None comes back where the platform has no such thing; a leftover
    is then reaped at the next start.
    """
    libc = _libc
    if libc is None:
        return None
    starter = os.getpid() if parent is None else parent

    def ask_kernel() -> None:
        libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != starter:  # it went before we could ask
            os.kill(os.getpid(), signal.SIGKILL)

    return ask_kernel


@dataclass(frozen=True)
class ServerUser:
    """`uid` and `gid` to become, or None for: stay who we are."""

    uid: int | None = None
    gid: int | None = None

    @classmethod
    def choose(cls) -> ServerUser:
        if os.geteuid() != 0:
            return cls()
        try:
            entry = pwd.getpwnam("nobody")
        except KeyError:
            return cls(NOBODY, NOBODY)
        return cls(entry.pw_uid, entry.pw_gid)

    def start(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: IO[bytes],
        death_signal: int | None = None,
        inherited: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start `command` as this user in a session of its own, its output going to `log`; it keeps the descriptors
        `inherited` open."""
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=inherited,
            preexec_fn=die_with_parent(death_signal) if death_signal is not None else None,
            **self._as_user(),
        )

    def works(self, command: Sequence[str]) -> bool:
        """Whether `command` ends well when run as this user."""
        try:
            done = subprocess.run(
                command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=60, **self._as_user()
            )
        except OSError:  # cannot be reached or executed
            return False
        return done.returncode == 0

    def make_own(self, path: Path) -> None:
        """Create the directory `path` for this user alone, or leave it if it is there."""
        path.mkdir(mode=0o700, exist_ok=True)
        if self.uid is not None and path.stat().st_uid != self.uid:
            self._give(path)

    def take_over(self, path: Path) -> None:
        """Give this user a tree that root copied; leave it if it is this user's.

        Raises:
            PermissionError: it is somebody else's.
        """
        owner, mine = path.stat().st_uid, os.geteuid() if self.uid is None else self.uid
        if owner == mine:
            return
        if self.uid is None or owner != 0:
            raise PermissionError(f"{path} belongs to {name_of(owner)}, not to {name_of(mine)}")
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                os.lchown(Path(folder, name), self.uid, self.gid if self.gid is not None else -1)
        self._give(path)

    def write_secret(self, path: Path, text: str) -> None:
        """Write a file that this user and root alone can read."""
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        self._give(path)

    def can_write(self, path: Path) -> bool:
        return self.works(["/bin/sh", "-c", 'test -w "$1" && test -x "$1"', "sh", str(path)])

    def _give(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def _as_user(self) -> dict[str, Any]:
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def name_beside(state_dir: Path) -> str:
    return "smolfleet-" + hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:12]


def place_beside(state_dir: Path, *, lasting: bool) -> Path:
    """A directory outside `state_dir` that everybody can pass through, made by us and owned by us.

    Its name follows from the state directory's path. `lasting` prefers /var/lib to the temporary directory.

    Raises:
        PermissionError: somebody else owns a directory of that name.
    """
    name = name_beside(state_dir)
    roots = [Path(tempfile.gettempdir())]
    if lasting and not state_dir.resolve().is_relative_to(roots[0].resolve()):
        roots.insert(0, Path("/var/lib"))
    place = next((root for root in roots if os.access(root, os.W_OK)), roots[-1]) / name
    previous = os.umask(0)
    try:
        place.mkdir(mode=0o711, exist_ok=True)
    finally:
        os.umask(previous)
    facts = place.lstat()
    if place.is_symlink() or facts.st_uid != os.geteuid():
        raise PermissionError(f"{place} belongs to somebody else")
    return place


def copy_tree(source: Path, target: Path) -> None:
    """Copy `source` to `target` readable by everybody; a copy that was cut short is never taken for a whole one."""
    if target.exists():
        return
    half = target.with_name(target.name + ".part")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(source, half, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "include"))
    for folder, _, files in os.walk(half):
        os.chmod(folder, 0o755)
        for file in files:
            path = Path(folder, file)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    half.rename(target)
