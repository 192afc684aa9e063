"""The README's commands, run as they stand there: `make up` on another port and state directory, the rest beside it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fleet import ROOT, held_port

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

# Shown for machines that this one is not: a GPU, the network, another suite inside this one.
NOT_HERE = ("--model smollm3-3b", "make test", "make check", "CMAKE_ARGS=", "REDIS_URL=redis://gpu:password@10.0.0.5")


def commands() -> list[str]:
    """Every command line of the README's shell blocks, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


@dataclass
class Up:
    """A `make up` of this test's own."""

    process: subprocess.Popen[str]
    port: int
    env: dict[str, str]
    said: list[str]

    def wait_for(self, pattern: str, seconds: float) -> str:
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        for line in self.process.stdout:
            self.said.append(line)
            if re.search(pattern, line):
                return line
            assert time.monotonic() < deadline, f"no {pattern!r} within {seconds} s:\n{''.join(self.said)}"
        raise AssertionError(f"ended without {pattern!r}:\n{''.join(self.said)}")


def start(state_dir: Path, port: int, **env: str) -> Up:
    clean = {
        n: v for n, v in os.environ.items() if n not in ("REDIS_URL", "DATABASE_URL") and not n.startswith("PYTEST")
    }
    clean |= {"STATE_DIR": str(state_dir), "WORKER_THREADS": "1", "MODEL": "smollm2-135m", **env}
    process = subprocess.Popen(
        ["make", "up", f"ARGS=--port {port}"],
        cwd=ROOT,
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    return Up(process, port, clean, [])


def end(up: Up, number: int = signal.SIGINT, seconds: float = 90.0) -> None:
    """As Ctrl-C does: the whole group gets the signal."""
    if up.process.poll() is None:
        os.killpg(up.process.pid, number)
    try:
        up.process.wait(seconds)
    finally:
        if up.process.poll() is None:
            os.killpg(up.process.pid, signal.SIGKILL)
            up.process.wait()
        assert up.process.stdout is not None
        if not up.process.stdout.closed:  # a test may have ended it before its fixture does
            up.said += up.process.stdout.readlines()
            up.process.stdout.close()


@pytest.fixture(scope="module")
def state_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smolfleet-up-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="module")
def up(state_dir: Path) -> Iterator[Up]:
    running = start(state_dir, held_port())
    try:
        running.wait_for(r"^Ready: http://127\.0\.0\.1:\d+$", 180)
        yield running
    finally:
        end(running)


def run(command: str, up: Up, **env: str) -> str:
    command = command.replace("127.0.0.1:8000", f"127.0.0.1:{up.port}")
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env={**up.env, **env}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_first_start_says_name_and_password_of_the_admin(up: Up) -> None:
    said = "".join(up.said)
    assert re.search(r"admin.*password", said, re.IGNORECASE), said
    assert said.strip().endswith(f"Ready: http://127.0.0.1:{up.port}")


def test_every_command_of_the_readme_runs(up: Up) -> None:
    key = ""
    seen = []
    for command in commands():
        if command == "make up" or any(part in command for part in NOT_HERE):
            continue
        said = run(command, up, KEY=key)
        seen.append(shlex.split(command)[0])
        if "createapikey" in command:
            key = said.strip().splitlines()[-1]
            assert key.startswith("sf_")
        elif "manage.py ask" in command:
            assert said.strip(), "no answer"
        elif "/v1/models" in command:
            assert "smollm2-135m" in said
        elif "/v1/chat/completions" in command:
            assert '"content"' in said
        elif "inference.bench" in command:
            assert "new tok/s" in said
    assert "curl" in seen
    assert len(seen) >= 5


def test_second_start_on_the_same_state_is_refused_with_one_sentence(up: Up, state_dir: Path) -> None:
    for other in (start(state_dir, held_port()), start(state_dir, up.port)):
        assert other.process.wait(60) != 0
        assert other.process.stdout is not None
        lines = [line for line in other.process.stdout if "make" not in line]
        other.process.stdout.close()
        assert len(lines) == 1, lines
        assert "Traceback" not in lines[0]


def test_next_start_finds_all_data_again_and_says_no_password(up: Up, state_dir: Path) -> None:
    run(".venv/bin/python manage.py ask 'Say hello.'", up)
    end(up)
    assert "Stopped." in "".join(up.said)
    again = start(state_dir, held_port())
    try:
        again.wait_for(r"^Ready: ", 180)
        assert not re.search(r"password", "".join(again.said), re.IGNORECASE)
        count = "from chatsite.chat.models import Message; print(Message.objects.count())"
        found = run(f'.venv/bin/python manage.py shell --no-imports -c "{count}"', again)
        assert int(found.strip().splitlines()[-1]) >= 2
    finally:
        end(again, signal.SIGTERM)


@pytest.mark.parametrize(
    ("env", "arguments", "names"),
    [
        ({"LEASE_SECONDS": "soon"}, "", "LEASE_SECONDS"),
        ({}, "--port 99999", "--port"),
        ({}, "--model nothing-of-this-name", "nothing-of-this-name"),
        ({}, "--model README.md", "README.md"),
        ({"STATE_DIR": "/proc/nowhere"}, "", "STATE_DIR"),
    ],
)
def test_what_cannot_start_is_one_sentence_and_exit_1(env: dict[str, str], arguments: str, names: str) -> None:
    with tempfile.TemporaryDirectory(prefix="smolfleet-up-") as state:
        clean = {n: v for n, v in os.environ.items() if n not in ("REDIS_URL", "DATABASE_URL", "MODEL")}
        done = subprocess.run(
            [".venv/bin/python", "manage.py", "up", *arguments.split()],
            cwd=ROOT,
            env={**clean, "STATE_DIR": state, **env},
            capture_output=True,
            text=True,
            timeout=60,
        )
    said = (done.stdout + done.stderr).strip()
    assert done.returncode == 1, said
    assert names in said
    assert len(said.splitlines()) == 1, said
