"""The process supervisor with small real children: restarts, order of ending, haste, leftovers, one per directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chatsite.process_id import ProcessId
from chatsite.supervisor import Child, Lock, StartFailed, StopRequested, Supervisor
from inference import native_build

ROOT = Path(__file__).resolve().parents[2]

# A child that says it lives, and writes its name when asked to end; `stubborn` goes on.
SCRIPT = """
import os, signal, sys, time
name, order, stubborn = sys.argv[1], sys.argv[2], sys.argv[3:] == ["stubborn"]
def end(*_):
    with open(order, "a") as file:
        file.write(name + "\\n")
    if not stubborn:
        sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("lives", os.getpid(), flush=True)
while True:
    time.sleep(0.05)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


class Stage:
    """A supervisor, what it said, and children made for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.supervisor = Supervisor(folder, cwd=folder, say=self.said.append)
        self.order = folder / "order"
        self.children: list[Child] = []

    def start(self, name: str, *, script: str = SCRIPT, stubborn: bool = False, grace_seconds: float = 10.0) -> Child:
        arguments = [name, str(self.order), *(["stubborn"] if stubborn else [])]
        log_path = self.folder / f"{name}.log"
        child = Child(name, [sys.executable, "-c", script, *arguments], dict(os.environ), log_path, grace_seconds)
        self.children.append(child)
        self.supervisor.start(child)
        return child

    def watch_until(self, condition: Callable[[], bool]) -> None:
        def look() -> bool:
            self.supervisor.look_after()
            return condition()

        wait_for(look, 30.0)


def lives(child: Child) -> bool:
    return "lives" in child.log_path.read_text()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for child in stage.children:
        if child.process is not None and child.is_running:
            child.process.kill()
            child.process.wait()
        child.close()


def test_killed_child_is_started_again_with_growing_delay(stage: Stage) -> None:
    child = stage.start("worker")
    for number in (1, 2):
        wait_for(lambda: child.is_running and lives(child))
        pid = child.process.pid  # type: ignore[union-attr]
        os.kill(pid, signal.SIGKILL)
        stage.watch_until(lambda pid=pid: child.is_running and child.process.pid != pid)  # type: ignore[union-attr]
        assert f"worker ended (killed by SIGKILL); starting it again in {number} s." in stage.said


def test_groups_end_one_after_the_other(stage: Stage) -> None:
    web, worker, site = stage.start("web"), stage.start("worker"), stage.start("site")
    for child in (web, worker, site):
        wait_for(lambda child=child: lives(child))
    asked: list[list[str]] = []

    def before_last() -> bool:
        asked.append(stage.order.read_text().split())
        return True

    stage.supervisor.stop([[web], [worker], [site]], before_last=before_last)
    assert stage.order.read_text().split() == ["web", "worker", "site"]
    assert asked == [["web", "worker"]]
    assert not any(child.is_running for child in (web, worker, site))


def test_child_that_does_not_end_is_killed_after_its_grace(stage: Stage) -> None:
    child = stage.start("worker", stubborn=True, grace_seconds=0.3)
    wait_for(lambda: lives(child))
    stage.supervisor.stop([[child]])
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL
    assert any("did not end" in line for line in stage.said)


def test_second_signal_hurries(stage: Stage) -> None:
    child = stage.start("worker", stubborn=True, grace_seconds=600.0)
    wait_for(lambda: lives(child))
    stage.supervisor.num_signals = 2
    started = time.monotonic()
    stage.supervisor.stop([[child]])
    assert time.monotonic() - started < 10.0
    assert not child.is_running


def test_child_that_ends_during_the_start_fails_it_with_its_last_words(stage: Stage) -> None:
    stage.start("worker", script="import sys; print('loading'); sys.exit('There is no model file x.gguf.')")
    with pytest.raises(StartFailed, match=r"worker ended while starting: There is no model file x\.gguf\."):
        stage.supervisor.wait_until(lambda: False)


def test_child_that_is_killed_during_the_start_fails_it_with_the_signal_and_the_cure(stage: Stage) -> None:
    script = "import os, signal; print('model_loading', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    child = stage.start("GPU worker", script=script)
    child.task, child.cure = "loading the model SmolLM2", lambda code: native_build.cure(code, "")
    with pytest.raises(StartFailed) as caught:
        stage.supervisor.wait_until(lambda: False)
    sentence = str(caught.value)
    assert sentence.startswith(f"GPU worker was killed by SIGSEGV while loading the model SmolLM2 ({child.log_path}). ")
    assert "CMAKE_ARGS=-DGGML_NATIVE=OFF make install" in sentence
    assert "model_loading" not in sentence


def test_child_that_is_killed_later_is_started_again_and_the_cure_is_said(stage: Stage) -> None:
    child = stage.start("worker")
    child.cure = lambda code: native_build.cure(code, "-DGGML_AMX_INT8=ON")
    wait_for(lambda: lives(child))
    os.kill(child.process.pid, signal.SIGILL)  # type: ignore[union-attr]
    stage.watch_until(lambda: any("killed by SIGILL" in line for line in stage.said))
    assert any("CMAKE_ARGS= make install" in line for line in stage.said)


def test_signal_during_the_start_stops_it(stage: Stage) -> None:
    stage.supervisor.num_signals = 1
    with pytest.raises(StopRequested):
        stage.supervisor.wait_until(lambda: False)


def test_warnings_are_shown_and_the_rest_is_not(stage: Stage) -> None:
    text = "2026-11-28T00:00:00.000000Z [warning  ] out of reach\\n2026-11-28T00:00:00.0Z [info     ] nothing\\n"
    child = stage.start("worker", script=f"import time; print('{text}', flush=True); time.sleep(60)")
    stage.watch_until(lambda: any("out of reach" in line for line in stage.said))
    assert "worker: [warning ] out of reach" in stage.said
    assert not any("nothing" in line for line in stage.said)
    assert "nothing" in child.log_path.read_text()


def test_command_run_once_shows_its_lines_and_fails_with_the_last(stage: Stage) -> None:
    stage.supervisor.run_once([sys.executable, "-c", "print('one'); print('two')"], dict(os.environ), name="Preparing")
    assert stage.said == ["one", "two"]
    with pytest.raises(StartFailed, match="Preparing failed: no such table"):
        stage.supervisor.run_once(
            [sys.executable, "-c", "raise SystemExit('no such table')"], dict(os.environ), name="Preparing"
        )


def test_state_directory_is_used_by_one_supervisor_alone(tmp_path: Path) -> None:
    first = Lock(tmp_path / "lock")
    with pytest.raises(StartFailed, match=rf"in use by another `up` \(process {os.getpid()}\)"):
        Lock(tmp_path / "lock")
    first.release()
    Lock(tmp_path / "lock").release()


OUTER = """
import sys, time
from pathlib import Path
from chatsite.supervisor import Child, Supervisor
import os
folder = Path(sys.argv[1])
supervisor = Supervisor(folder, cwd=folder, say=print)
supervisor.start(Child("inner", [sys.executable, "-c", sys.argv[2], "inner", str(folder / "order")], dict(os.environ),
                       folder / "inner.log", 1.0))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OUTER, str(tmp_path), SCRIPT], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == "started\n"
        log_path = tmp_path / "inner.log"
        wait_for(lambda: "lives" in log_path.read_text())
        inner = ProcessId.of(int(log_path.read_text().split()[1]))
        assert inner.is_alive
        outer.kill()
        outer.wait()
    wait_for(lambda: not inner.is_alive)


def test_leftovers_of_a_killed_supervisor_are_ended_and_nobody_else(stage: Stage, tmp_path: Path) -> None:
    leftover, bystander = (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        for _ in range(2)
    )
    try:
        known = ProcessId.of(leftover.pid).as_json()
        reused = {**ProcessId.of(bystander.pid).as_json(), "command": "python -m daphne"}
        (tmp_path / "children.json").write_text(json.dumps([known, reused, {"pid": "broken"}]))
        reaper = Supervisor(tmp_path, cwd=tmp_path, say=stage.said.append)
        waiter = threading.Thread(target=leftover.wait)  # else it stays a zombie of ours
        waiter.start()
        reaper.end_leftovers()
        waiter.join(10)
        assert leftover.returncode == -signal.SIGTERM
        assert bystander.poll() is None
    finally:
        for process in (leftover, bystander):
            process.kill()
            process.wait()
