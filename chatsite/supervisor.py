"""A small process supervisor: starts children, shows what matters of their logs, restarts who dies, ends all in order.

Owns processes and signals; what the children are is for `manage.py up` to say. Runs on the main thread alone: the
kernel ends a child with the thread that started it. Every child has a session of its own, so Ctrl-C reaches the
supervisor first.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from chatsite.process_id import ProcessId
from chatsite.server_user import die_with_parent
from inference.native_build import name_of

POLL_SECONDS = 0.1
FIRST_BACK_OFF_SECONDS = 1.0
LAST_BACK_OFF_SECONDS = 30.0
STEADY_SECONDS = 60.0  # who ran this long starts again without delay
HURRY_SECONDS = 1.0  # what an ending child gets after the second signal
LINE_CHARS = 300
MAX_LOG_BYTES = 20 * 1024 * 1024  # a longer log is put aside, as .1, when its process starts
CHILDREN = "children.json"
IMPORTANT = re.compile(
    r"\[(warning|error|critical)\s*\]|\b(WARNING|ERROR|CRITICAL)\b|\"level\":\s*\"(warning|error|critical)\""
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STAMP = re.compile(r"^\d{4}-\d\d-\d\d[T ][\d:.,]+Z?\s+")


class StartFailed(Exception):
    """Something could not be started; the sentence says what and why."""


class StopRequested(Exception):
    """A signal asked to stop, while something was being waited for."""


class Server(Protocol):
    """A bundled server, as far as the supervisor is concerned."""

    def start(self) -> str: ...
    def stop(self) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def is_running(self) -> bool: ...


@dataclass
class Child:
    """One process to keep running. `follow` picks further lines of its log that are worth showing, `task` says what it
    does while it starts, and `cure` what to do about an exit status that is a crash ("": nothing is known)."""

    name: str
    command: Sequence[str]
    env: dict[str, str]
    log_path: Path
    grace_seconds: float
    follow: re.Pattern[str] | None = None
    task: str = "starting"
    cure: Callable[[int], str] | None = None
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    back_off_seconds: float = FIRST_BACK_OFF_SECONDS
    next_start: float = 0.0
    identity: ProcessId | None = None
    _log: IO[bytes] | None = field(default=None, repr=False)
    _rest: bytes = b""

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, cwd: Path) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        if self.log_path.exists() and self.log_path.stat().st_size > MAX_LOG_BYTES:
            self.close()
            self.log_path.rename(self.log_path.with_suffix(".log.1"))
        with self.log_path.open("ab") as out:
            if self._log is None:
                self._log = self.log_path.open("rb")
                self._log.seek(0, os.SEEK_END)
            self.process = subprocess.Popen(
                self.command,
                cwd=cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )
        self.started = time.monotonic()
        self.identity = ProcessId.of(self.process.pid)

    def new_lines(self) -> list[str]:
        """Whole lines written since the last call."""
        if self._log is None:
            return []
        *lines, self._rest = (self._rest + self._log.read()).split(b"\n")
        return [COLOUR.sub("", line.decode(errors="replace")).rstrip() for line in lines]

    def epitaph(self) -> str:
        """How it ended while it started: a signal by its name and what to do about it, else its last words."""
        assert self.process is not None
        code = self.process.returncode
        if code >= 0:
            return f"{self.name} ended while {self.task}: {self.last_words()} ({self.log_path})"
        cure = self.cure(code) if self.cure else ""
        return f"{self.name} was {name_of(code)} while {self.task} ({self.log_path}). {cure}".strip()

    def last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return COLOUR.sub("", lines[-1])[:LINE_CHARS] if lines else "it said nothing"

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


class Lock:
    """One supervisor per state directory; the kernel lets go of it when we end, however we end."""

    def __init__(self, path: Path) -> None:
        """Raises StartFailed: somebody holds it."""
        self._file = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip()
            self._file.close()
            raise StartFailed(f"{path.parent} is in use by another `up` (process {holder}); stop that first.") from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        self._file.close()


class Supervisor:
    def __init__(self, state_dir: Path, *, cwd: Path, say: Callable[[str], None]) -> None:
        self._state_dir = state_dir
        self._cwd = cwd
        self._say = say
        self._children: list[Child] = []
        self._servers: list[Server] = []
        self.num_signals = 0

    # -- starting

    def listen(self) -> None:
        """Take over SIGINT, SIGTERM and SIGHUP: the first asks to stop, the second to hurry."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self.num_signals += 1  # nothing more: the main loop sees it within POLL_SECONDS

    def end_leftovers(self) -> None:
        """End the children a killed supervisor of this state directory left behind."""
        try:
            recorded = json.loads((self._state_dir / CHILDREN).read_text())
        except (FileNotFoundError, ValueError):
            return
        for value in recorded:
            leftover = ProcessId.from_json(value)
            if leftover is None:
                continue
            if leftover.is_alive:
                self._say(f"Ending process {leftover.pid} of an earlier start.")
                leftover.end((signal.SIGTERM, signal.SIGKILL), 3.0)
            leftover.end_group()

    def start_server(self, server: Server) -> str:
        url = server.start()
        self._servers.append(server)
        return url

    def start(self, child: Child) -> None:
        child.start(self._cwd)
        self._children.append(child)
        self._record()

    def run_once(self, command: Sequence[str], env: dict[str, str], *, name: str) -> None:
        """Run `command` to its end, showing its lines as they come.

        Raises:
            StartFailed: it ended badly. StopRequested: a signal came.
        """
        with subprocess.Popen(
            command,
            cwd=self._cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        ) as process:
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            text, shown, last = b"", 0, ""
            while True:
                has_ended = process.poll() is not None
                text += process.stdout.read() or b""
                *lines, _ = text.split(b"\n")
                for line in lines[shown:]:
                    last = line.decode(errors="replace")
                    self._say(last)
                shown = len(lines)
                if has_ended:
                    break
                if self.num_signals:
                    process.kill()
                    raise StopRequested
                time.sleep(POLL_SECONDS)
        if process.returncode != 0:
            raise StartFailed(f"{name} failed: {last or f'exit {process.returncode}'}")

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Poll `is_reached`, forwarding what children say.

        Raises:
            StartFailed: a child or server ended meanwhile. StopRequested: a signal came.
        """
        while not is_reached():
            if self.num_signals:
                raise StopRequested
            self._forward()
            for child in self._children:
                if not child.is_running:
                    raise StartFailed(child.epitaph())
            for server in self._servers:
                if not server.is_running:
                    raise StartFailed(f"{server.name} ended while starting.")
            time.sleep(POLL_SECONDS)

    # -- keeping it running

    def watch(self) -> None:
        """Keep everything running until a signal comes."""
        while not self.num_signals:
            self.look_after()
            time.sleep(POLL_SECONDS)

    def look_after(self) -> None:
        """One look at everything: show what matters, start again who ended."""
        self._forward()
        for server in self._servers:
            if not server.is_running:
                self._say(f"{server.name} ended; starting it again.")
                server.start()
        for child in self._children:
            self._keep(child)

    def _keep(self, child: Child) -> None:
        now = time.monotonic()
        if child.is_running:
            return
        if child.process is not None:
            code = child.process.returncode
            if now - child.started > STEADY_SECONDS:
                child.back_off_seconds = FIRST_BACK_OFF_SECONDS
            child.next_start = now + child.back_off_seconds
            self._say(f"{child.name} ended ({name_of(code)}); starting it again in {child.back_off_seconds:.0f} s.")
            if child.cure and (cure := child.cure(code)):
                self._say(f"{child.name}: {cure}")
            child.back_off_seconds = min(LAST_BACK_OFF_SECONDS, child.back_off_seconds * 2)
            if child.identity is not None:
                child.identity.end_group()
            child.process = None
        elif now >= child.next_start:
            child.start(self._cwd)
            self._record()

    def _forward(self) -> None:
        for child in self._children:
            for line in child.new_lines():
                if IMPORTANT.search(line) or (child.follow and child.follow.search(line)):
                    self._say(f"{child.name}: {' '.join(STAMP.sub('', line).split())[:LINE_CHARS]}")

    def _record(self) -> None:
        path = self._state_dir / CHILDREN
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(json.dumps([c.identity.as_json() for c in self._children if c.identity is not None]))
        fresh.rename(path)

    # -- ending

    def stop(self, order: Sequence[Sequence[Child]], *, before_last: Callable[[], bool] | None = None) -> None:
        """End children group after group (politely, then not), then the servers in reverse.

        `before_last` is polled before the last group is ended, for as long as it says False and 3 s at most.
        """
        for position, group in enumerate(order):
            if before_last is not None and position == len(order) - 1:
                deadline = time.monotonic() + 3.0
                while not self._in_hurry and time.monotonic() < deadline and not before_last():
                    time.sleep(POLL_SECONDS)
            self._end(group)
        self._end(self._children)
        for server in reversed(self._servers):
            server.stop()
        self._servers.clear()
        self._children.clear()
        self._record()

    @property
    def _in_hurry(self) -> bool:
        return self.num_signals > 1

    def _end(self, group: Sequence[Child]) -> None:
        running = [child for child in group if child.is_running]
        for child in running:
            assert child.process is not None
            child.process.terminate()
        started = time.monotonic()
        hurry_since: float | None = None
        while running:
            now = time.monotonic()
            if self._in_hurry and hurry_since is None:
                hurry_since = now
            self._forward()
            for child in running:
                assert child.process is not None
                is_late = now - started > child.grace_seconds
                if is_late or (hurry_since is not None and now - hurry_since > HURRY_SECONDS):
                    if is_late:
                        self._say(f"{child.name} did not end in {child.grace_seconds:.0f} s and was killed.")
                    child.process.kill()
                    child.process.wait()
            running = [child for child in running if child.is_running]
            if running:
                time.sleep(POLL_SECONDS)
        self._forward()
        for child in group:
            if child.identity is not None:
                child.identity.end_group()
            child.close()
