"""What dies while answers are being written: workers, Redis, web, site worker, Postgres. Nothing is lost or doubled."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest
import redis

from tests.fleet import Fleet, Viewed, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

STORY = "Write a long story about a lighthouse keeper and the sea. Write at least twenty paragraphs."
SERVICES = {"postgres", "redis", "site_worker", "worker"}
KILL_AT_WORDS = 30  # about 40 tokens of this model's prose


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(workers=2, env={"MAX_COMPLETION_TOKENS": "90", "LEASE_SECONDS": "1"}) as running:
        yield running


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def is_begun(viewed: Viewed) -> bool:
    """Some text has come, and whose it is is known."""
    return bool(viewed.worker) and viewed.last_seq >= 5


def is_whole(viewed: Viewed) -> bool:
    assert viewed.done is not None
    assert sha256(viewed.content) == viewed.done["content_sha256"], "the viewer's text differs from the stored one"
    assert len(viewed.content) == viewed.done["num_chars"]
    return True


@pytest.mark.parametrize("num_kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_worker_at_token_40_again_and_again_loses_and_repeats_nothing(fleet: Fleet, num_kills: int) -> None:
    alice = fleet.person()
    for number in range(num_kills):
        _, generation = alice.send(f"{STORY} Chapter {number}.")
        viewed = alice.watch(generation, lambda seen: seen.worker and len(seen.content.split()) >= KILL_AT_WORDS)
        victim = viewed.worker
        assert viewed.done is None, "the answer ended before its worker could be killed"
        before = viewed.content
        fleet.kill(victim)
        fleet.start_worker(victim)  # comes back while the other one goes on with the answer
        alice.follow(generation, viewed)
        assert viewed.done is not None and viewed.done["status"] == "done", viewed.done
        assert is_whole(viewed)
        assert viewed.content.startswith(before)
        assert not any(frame.event == "reset" for frame in viewed.frames)
        fleet.wait_until_ready(2)


def test_terminated_worker_hands_its_answers_on(fleet: Fleet) -> None:
    alice = fleet.person()
    _, generation = alice.send(STORY)
    viewed = alice.watch(generation, is_begun)
    victim = viewed.worker
    assert fleet.terminate(victim) == 0
    alice.follow(generation, viewed)
    assert viewed.done is not None and viewed.done["status"] == "done" and is_whole(viewed)
    fleet.start_worker(victim)
    fleet.wait_until_ready(2)


def test_restarted_redis_hangs_nothing(fleet: Fleet) -> None:
    alice, bob = fleet.person(), fleet.person()
    _, first = alice.send(STORY)
    viewed = alice.watch(first, is_begun)
    fleet.valkey.kill()
    _, during = bob.send("Say hello.")  # accepted while Redis is away: kept, entered later
    fleet.valkey.start()
    alice.follow(first, viewed)
    assert viewed.done is not None and viewed.done["status"] in ("done", "failed") and is_whole(viewed)
    assert bob.follow(during).done["status"] == "done"  # type: ignore[index]
    assert bob.follow(bob.send("Say hello again.")[1]).done["status"] == "done"  # type: ignore[index]


def test_wiped_redis_begins_the_answer_anew_and_mixes_nothing(fleet: Fleet) -> None:
    alice = fleet.person()
    _, generation = alice.send(STORY)
    viewed = alice.watch(generation, is_begun)
    with redis.Redis.from_url(fleet.env["REDIS_URL"]) as connection:
        connection.flushall()
    alice.follow(generation, viewed)
    assert viewed.done is not None and viewed.done["status"] in ("done", "failed") and is_whole(viewed)
    fleet.wait_until_ready(2)


def test_web_restart_in_the_middle_is_invisible(fleet: Fleet) -> None:
    alice = fleet.person()
    _, generation = alice.send(STORY)
    viewed = alice.watch(generation, is_begun)
    fleet.kill("web")
    fleet.start_web()
    fleet.wait_until_ready(2)
    alice.follow(generation, viewed)
    assert viewed.done is not None and viewed.done["status"] == "done" and is_whole(viewed)


def test_dead_site_worker_only_delays_the_end(fleet: Fleet) -> None:
    alice = fleet.person()
    fleet.kill("site")
    _, generation = alice.send("Say hello.")
    viewed = Viewed()
    reader = threading.Thread(target=alice.follow, args=(generation, viewed))
    reader.start()
    wait_for(lambda: viewed.content, "text without the site worker")
    assert viewed.done is None, "said done before it was durable"
    fleet.start_site_worker()
    reader.join(60)
    assert viewed.done is not None and viewed.done["status"] == "done" and is_whole(viewed)


def test_frozen_worker_that_wakes_up_writes_nothing(fleet: Fleet) -> None:
    alice = fleet.person()
    _, generation = alice.send(STORY)
    viewed = alice.watch(generation, is_begun)
    victim = viewed.worker
    fleet.send_signal(victim, signal.SIGSTOP)
    try:
        alice.follow(generation, viewed)
    finally:
        fleet.send_signal(victim, signal.SIGCONT)
    assert viewed.done is not None and viewed.done["status"] == "done" and is_whole(viewed)
    fleet.wait_until_ready(2)


def test_health_tells_the_truth_in_each_state(fleet: Fleet) -> None:
    def live() -> int:
        return httpx.get(f"{fleet.url}/health/live", timeout=10).status_code

    def up() -> set[str]:
        """What /metrics says is up."""
        return {name for name in SERVICES if fleet.metrics()[f'smolfleet_up{{service="{name}"}}']}

    status, found = fleet.health()
    assert status == 200 and found["ready"] and live() == 200
    assert up() == SERVICES
    assert fleet.metrics()["smolfleet_ready"] == 1.0

    for name in ("gpu-1", "gpu-2"):
        fleet.kill(name)
    wait_for(lambda: fleet.health()[0] == 503, "not ready without a worker")
    status, found = fleet.health()
    assert found["checks"]["postgres"]["ok"] and found["checks"]["redis"]["ok"] and live() == 200
    assert any("worker" in reason for reason in found["reasons"])
    assert up() == SERVICES - {"worker"}
    assert fleet.metrics()["smolfleet_ready"] == 0.0
    alice = fleet.person()
    conversation, generation = alice.send("Is anybody there?")
    phase = next(f.data["phase"] for f in alice.stream(generation) if f.event == "status")
    assert phase == "no_worker"
    for name in ("gpu-1", "gpu-2"):
        fleet.start_worker(name)
    fleet.wait_until_ready(2)
    assert alice.follow(generation).done["status"] == "done"  # type: ignore[index]

    fleet.valkey.kill()
    wait_for(lambda: fleet.health()[0] == 503, "not ready without Redis")
    found = fleet.health()[1]
    assert not found["checks"]["redis"]["ok"] and found["checks"]["postgres"]["ok"] and live() == 200
    assert "redis" not in up() and "postgres" in up()
    assert alice.http.get(f"/chat/{conversation}/").status_code == 200
    fleet.valkey.start()
    fleet.wait_until_ready(2)

    fleet.postgres.stop()
    wait_for(lambda: fleet.health()[0] == 503, "not ready without Postgres")
    found = fleet.health()[1]
    assert not found["checks"]["postgres"]["ok"] and found["checks"]["redis"]["ok"] and live() == 200
    assert "postgres" not in up() and "redis" in up()
    fleet.postgres.start()
    fleet.wait_until_ready(2)
    assert alice.follow(alice.send("Are you back?")[1]).done["status"] == "done"  # type: ignore[index]
