"""Several models side by side, and a worker that changes its model under load: no answer is lost, none fails."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.bench import shaped_model
from tests import small_gguf
from tests.fleet import MODEL, ROOT, Fleet, Person, Viewed, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

STORY = "Write a long story about a lighthouse keeper and the sea. Write at least twenty paragraphs."
TINY = "tiny-smollm3"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shaped_model.write(tmp_path_factory.mktemp("models") / f"{TINY}.gguf")


@pytest.fixture(scope="module")
def fleet(tiny: Path) -> Iterator[Fleet]:
    env = {"MAX_COMPLETION_TOKENS": "60", "WORKER_SLOTS": "3", "DRAIN_SECONDS": "0.5", "DEFAULT_MODEL": MODEL}
    with Fleet(workers=1, env=env) as running:
        running.start_worker("gpu-2", MODEL=str(tiny))
        running.wait_until_ready(2)
        yield running


def swap(fleet: Fleet, worker: str, model: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "worker", "swap", worker, model, *more],
        cwd=ROOT,
        env=fleet.env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def served(fleet: Fleet) -> dict[str, str]:
    return {worker["name"]: worker["model"] for worker in fleet.workers() if worker["state"] == "ready"}


def begin(person: Person, text: str, model: str = "") -> tuple[str, str]:
    """A new conversation with a model of its own; its id and that of its first answer ("": it is whole already)."""
    answer = person.post("/chat/", text=text, key=str(uuid.uuid4()), model=model)
    assert answer.status_code == 200, answer.text[:500]
    found = re.search(r"/chat/([0-9a-f-]{36})/$", str(answer.url))
    assert found, answer.url
    writing = re.findall(r'data-generation="([0-9a-f-]{36})"', answer.text)
    assert writing or 'class="msg bot done"' in answer.text, "neither being written nor done"
    return found[1], writing[-1] if writing else ""


def check_done(viewed: Viewed) -> None:
    assert viewed.done is not None and viewed.done["status"] == "done", viewed.done
    assert hashlib.sha256(viewed.content.encode()).hexdigest() == viewed.done["content_sha256"]
    assert not any(frame.event == "reset" for frame in viewed.frames)


class Load:
    """People who keep asking until the block ends; every answer must come whole."""

    def __init__(self, fleet: Fleet, *models: str) -> None:
        self._people = [(fleet.person(), model) for model in models]
        self._ending = threading.Event()
        self._errors: list[BaseException] = []
        self.num_answers = 0

    def _ask(self, person: Person, model: str) -> None:
        try:
            while not self._ending.is_set():
                generation = begin(person, "Tell me about the sea.", model)[1]
                done = person.follow(generation).done if generation else {"status": "done"}
                assert done is not None and done["status"] == "done", done
                self.num_answers += 1
        except BaseException as error:  # noqa: BLE001  the test's own thread raises it
            self._errors.append(error)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._ask, args=who) for who in self._people]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(120)
        if self._errors:
            raise self._errors[0]


def test_two_models_answer_side_by_side(fleet: Fleet) -> None:
    alice = fleet.person()
    key = fleet.api_key(alice)
    listed = httpx.get(f"{fleet.url}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=10).json()
    assert {model["id"] for model in listed["data"]} == {MODEL, TINY}
    one, other = begin(alice, "Say hello."), begin(alice, "Say hello.", TINY)
    assert alice.watch(one[1], lambda seen: seen.worker).worker == "gpu-1"
    viewed = alice.follow(other[1])
    check_done(viewed)
    assert viewed.worker == "gpu-2"
    table = fleet.manage("worker", "list")
    assert re.search(rf"^gpu-1 +{MODEL} +ready +\d/3 ", table, re.MULTILINE), table
    assert re.search(rf"^gpu-2 +{TINY} +ready +\d/3 ", table, re.MULTILINE), table


@pytest.mark.slow
def test_bad_swaps_are_refused_and_change_nothing(fleet: Fleet, tmp_path: Path) -> None:
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(b"GGUF and no more")
    for worker, model, sentence in (
        ("gpu-2", "no-such-model", "MODEL must be one of"),
        ("gpu-2", str(torn), str(torn)),
        ("gpu-9", MODEL, "No worker is called gpu-9"),
        ("gpu-1", MODEL, f"gpu-1 serves {MODEL} already"),
    ):
        done = swap(fleet, worker, model)
        assert done.returncode == 1
        assert sentence in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert served(fleet) == {"gpu-1": MODEL, "gpu-2": TINY}


@pytest.mark.slow
def test_model_that_cannot_be_loaded_gives_the_old_one_back(fleet: Fleet, tmp_path: Path) -> None:
    """Its header is good, so only loading it tells."""
    hollow = small_gguf.write(
        tmp_path / "hollow.gguf",
        more=(
            *small_gguf.TOKENS,
            small_gguf.text_value("tokenizer.ggml.model", "gpt2"),
            small_gguf.text_value("tokenizer.ggml.pre", "gpt-2"),
        ),
    )
    pid = fleet._processes["gpu-2"].pid
    done = swap(fleet, "gpu-2", str(hollow))
    assert done.returncode == 1
    assert "could not be loaded" in done.stderr and "loading hollow" in done.stdout, (done.stdout, done.stderr)
    assert served(fleet)["gpu-2"] == TINY
    (worker,) = [worker for worker in fleet.workers() if worker["name"] == "gpu-2"]
    assert any("could not be loaded" in sentence for sentence in worker["degradations"])
    assert fleet._processes["gpu-2"].pid == pid and fleet._processes["gpu-2"].poll() is None
    alice = fleet.person()
    check_done(alice.follow(begin(alice, "Say hello.", TINY)[1]))


def test_last_worker_of_a_model_answers_all_before_it_changes_and_conversations_go_on(fleet: Fleet) -> None:
    alice = fleet.person()
    pid = fleet._processes["gpu-2"].pid
    conversation, running = begin(alice, STORY, TINY)
    waiting = [begin(alice, f"{STORY} Part {number}.", TINY)[1] for number in range(4)]  # more than its 3 slots
    done = swap(fleet, "gpu-2", MODEL)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"checking {MODEL}" and lines[-1] == f"ready: gpu-2 serves {MODEL}", lines
    assert f"loading {MODEL}" in lines
    assert served(fleet) == {"gpu-1": MODEL, "gpu-2": MODEL}
    assert fleet._processes["gpu-2"].pid == pid and fleet._processes["gpu-2"].poll() is None
    for generation in (running, *waiting):
        check_done(alice.follow(generation))
    assert f"{TINY} is not served now" in alice.http.get(f"/chat/{conversation}/").text
    _, generation = alice.send("And then?", conversation)
    check_done(alice.follow(generation))


def test_answers_running_at_a_swap_go_on_at_the_other_worker(fleet: Fleet, tiny: Path) -> None:
    alice = fleet.person()
    generations = [begin(alice, f"{STORY} Part {number}.")[1] for number in range(4)]
    views = [alice.watch(generation, lambda seen: seen.worker and seen.last_seq > 2) for generation in generations]
    assert {view.worker for view in views} == {"gpu-1", "gpu-2"}
    begun = [view.content for view in views]
    assert all(view.done is None for view in views)
    with Load(fleet, MODEL, TINY) as load:
        done = swap(fleet, "gpu-2", str(tiny))
        assert done.returncode == 0, done.stderr
        for generation, view in zip(generations, views, strict=True):
            alice.follow(generation, view)
        wait_for(lambda: load.num_answers >= 4, "answers beside it", 60)
    for view, before in zip(views, begun, strict=True):
        check_done(view)
        assert view.content.startswith(before)
    assert served(fleet) == {"gpu-1": MODEL, "gpu-2": TINY}


@pytest.mark.slow
def test_worker_that_dies_in_a_swap_is_said_to_be_gone_or_back(fleet: Fleet, tiny: Path) -> None:
    """Killed while its last answers run, and started again with what its settings say."""
    alice = fleet.person()
    generation = begin(alice, STORY, TINY)[1]
    alice.watch(generation, lambda seen: seen.last_seq > 1)
    done: list[Any] = []
    command = threading.Thread(target=lambda: done.append(swap(fleet, "gpu-2", MODEL)))
    fleet.send_signal("gpu-2", 19)  # SIGSTOP: it cannot go before it is killed
    command.start()
    wait_for(lambda: redis_has_order(fleet), "the order")
    fleet.send_signal("gpu-2", 18)
    wait_for(lambda: any(w["next_model"] for w in fleet.workers()), "the card that says that it leaves")
    fleet.kill("gpu-2")
    fleet.start_worker("gpu-2", MODEL=str(tiny))
    command.join(90)
    assert done[0].returncode == 1
    assert "ended in the middle of the swap" in done[0].stderr, done[0].stderr
    fleet.wait_until_ready(2)
    check_done(alice.follow(generation))


def redis_has_order(fleet: Fleet) -> bool:
    import redis

    with redis.Redis.from_url(fleet.env["REDIS_URL"]) as connection:
        return bool(connection.exists("{smolfleet}:swap:gpu-2"))


@pytest.mark.slow
def test_ten_swaps_under_load_fail_nobody(fleet: Fleet, tiny: Path) -> None:
    with Load(fleet, MODEL, MODEL, TINY, "") as load:
        for number in range(10):
            done = swap(fleet, "gpu-2", MODEL if number % 2 == 0 else str(tiny))
            assert done.returncode == 0, (number, done.stdout, done.stderr)
            seen = load.num_answers
            wait_for(lambda seen=seen: load.num_answers >= seen + 4, "answers after the swap", 120)
    assert served(fleet) == {"gpu-1": MODEL, "gpu-2": TINY}
    assert load.num_answers >= 40
