"""Which process was meant: a pid with when it started and how it was called, since pids are used again.

Recorded so that the next start can end what a killed one left behind, and nothing else. Called by `embedded` and
`supervisor`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.02
_HAS_PROC = Path("/proc/self/stat").exists()


@dataclass(frozen=True)
class ProcessId:
    """`started` only compares; it is empty where the platform does not tell."""

    pid: int
    started: str
    command: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid, started_at(pid), command_line(pid))

    @classmethod
    def from_json(cls, value: object) -> ProcessId | None:
        match value:
            case {"pid": int(pid), "started": str(started), "command": str(command)}:
                return cls(pid, started, command)
        return None

    def as_json(self) -> dict[str, object]:
        return {"pid": self.pid, "started": self.started, "command": self.command}

    @property
    def is_alive(self) -> bool:
        """Whether that very process still runs; a zombie does not."""
        command = command_line(self.pid)
        return bool(command) and command == self.command and started_at(self.pid) == self.started

    def end(self, signals: Sequence[int], seconds: float) -> bool:
        """Send one signal after the other, waiting `seconds` after each. Whether it is gone."""
        for number in signals:
            if not self.is_alive:
                return True
            os.kill(self.pid, number)
            deadline = time.monotonic() + seconds
            while self.is_alive and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        return not self.is_alive

    def end_group(self) -> None:
        """Kill what is left of the group this process led: children it did not take with it."""
        for pid in _group(self.pid):
            os.kill(pid, signal.SIGKILL)


def command_line(pid: int) -> str:
    """How process `pid` was started; empty when there is none."""
    if _HAS_PROC:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):
            return ""
    done = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def works_in(pid: int, *folders: Path) -> bool:
    """Whether one of these is the working directory of process `pid`, however it was called when that began.

    A directory that was moved is still the same one; where the platform does not tell, the command line must name it.
    """
    if not _HAS_PROC:
        return any(f" {folder}/" in f"{command_line(pid)}/" for folder in folders)
    try:
        there = os.stat(f"/proc/{pid}/cwd")
    except OSError:  # it is gone, or not ours to ask
        return False
    return any(folder.exists() and os.path.samestat(there, folder.stat()) for folder in folders)


def started_at(pid: int) -> str:
    if _HAS_PROC:
        return next(iter(_stat(pid)[19:]), "")
    done = subprocess.run(["ps", "-p", str(pid), "-o", "lstart="], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the third on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _group(leader: int) -> list[int]:
    """Members of the process group `leader`, itself excluded. A pid is not used again while it names a group."""
    if not _HAS_PROC or command_line(leader):
        return []
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if pid != leader and _stat(pid)[2:3] == [str(leader)]]
