"""The way of one message through real processes: sent, streamed, reloaded in the middle, stopped, tried again."""

from __future__ import annotations

import hashlib
import re
import statistics
import threading
import time
import uuid
from uuid import UUID

import httpx
import pytest

from inference import config
from inference.client import InferenceClient
from tests.fleet import MODEL, Fleet, Person, Viewed, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.model]

LONG = "Write a long story about a lighthouse keeper and the sea. Write at least twenty paragraphs."


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def stored(person: Person, conversation: str) -> str:
    """The page as a reload shows it."""
    return person.http.get(f"/chat/{conversation}/").text


def test_answer_streams_and_equals_what_a_reload_shows(fleet: Fleet) -> None:
    alice = fleet.person()
    conversation, generation = alice.send("What is the capital of France? Answer in one sentence.")
    viewed = alice.follow(generation)
    assert viewed.done is not None and viewed.done["status"] == "done", viewed.done
    assert len([f for f in viewed.frames if f.event == "delta"]) > 1, "the answer came in one piece"
    assert sha256(viewed.content) == viewed.done["content_sha256"]
    page = stored(alice, conversation)
    for block in viewed.blocks:
        assert block.strip() in page


def test_what_a_worker_lacks_is_the_same_in_readiness_and_both_metrics(fleet: Fleet) -> None:
    found = httpx.get(f"{fleet.url}/health/ready", timeout=10.0).json()
    assert found["ready"]
    site = httpx.get(f"{fleet.url}/metrics", timeout=10.0).text
    for worker, port in zip(found["checks"]["workers"], fleet.metrics_ports, strict=True):
        number = float(len(worker["degradations"]))
        own = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10.0).text
        assert f'smolfleet_worker_degradations{{model="{MODEL}"}} {number}' in own
        assert f'smolfleet_worker_degradations{{model="{MODEL}",worker="{worker["name"]}"}} {number}' in site
        assert all(f"{worker['name']}: {sentence}" in found["degraded"] for sentence in worker["degradations"])
        if worker["device"].startswith("CPU"):
            assert any("No GPU" in sentence for sentence in worker["degradations"])


def test_reload_in_the_middle_goes_on_at_the_cursor_of_the_page(fleet: Fleet) -> None:
    alice = fleet.person()
    conversation, generation = alice.send(LONG)
    whole = alice.watch(generation, lambda seen: seen.last_seq >= 20)
    page = stored(alice, conversation)
    cursor = re.search(rf'data-generation="{generation}"[^>]*data-cursor="([^"]+)"', page)
    assert cursor is not None
    late = Viewed(cursor=cursor[1], last_seq=int(cursor[1].split(":")[1]))
    assert late.last_seq >= 20, "the page is behind what this person had seen"
    alice.follow(generation, late)
    alice.follow(generation, whole)
    assert whole.done is not None and late.done is not None
    assert sha256(whole.content) == whole.done["content_sha256"]
    assert whole.content.endswith(late.content)
    assert len(late.content) < len(whole.content)
    final = stored(alice, conversation)
    for block in whole.blocks:
        assert block.strip() in final


def test_every_cursor_of_a_finished_stream_resumes_to_the_same_end(fleet: Fleet) -> None:
    alice = fleet.person()
    _, generation = alice.send("Count from one to thirty in words.")
    whole = alice.follow(generation)
    cursors = [f.id for f in whole.frames if f.event == "delta" and f.id]
    for cursor in cursors[:: max(1, len(cursors) // 8)]:
        again = alice.follow(generation, Viewed(cursor=cursor, last_seq=int(cursor.split(":")[1])))
        assert again.done is not None
        assert again.done["content_sha256"] == whole.done["content_sha256"]  # type: ignore[index]
        assert whole.content.endswith(again.content) or again.done["snapshot"]


def test_stop_frees_the_slot_and_keeps_what_was_written(fleet: Fleet) -> None:
    alice = fleet.person()
    conversation, generation = alice.send(LONG)
    viewed = Viewed()
    for frame in alice.stream(generation):
        viewed.take(frame)
        if viewed.last_seq == 10:
            stopped_at = time.monotonic()
            assert alice.stop(generation).status_code in (200, 204)
        if viewed.done:
            break
    took = time.monotonic() - stopped_at
    assert viewed.done is not None and viewed.done["status"] == "stopped"
    assert took < 5.0, f"{took:.1f} s from stop to the recorded end"
    assert sha256(viewed.content) == viewed.done["content_sha256"]
    wait_for(lambda: all(w["slots"] == w["free_slots"] for w in fleet.workers()), "all slots free again", 5.0)
    assert "stopped" in stored(alice, conversation).lower()


def test_stop_ends_the_writing_within_a_second(fleet: Fleet) -> None:
    """Median of five, from the press to the finish in the log, which follows the engine's letting go."""
    alice = fleet.person()
    client = InferenceClient(config.load({"REDIS_URL": fleet.env["REDIS_URL"]}))
    took = []
    for _ in range(5):
        _, generation = alice.send(LONG)
        wait_for(lambda: client.read(UUID(generation)).text("content"), "some text")  # noqa: B023
        pressed_at = time.monotonic()
        alice.stop(generation)
        wait_for(lambda: client.standing(UUID(generation)).state == "finished", "the end")  # noqa: B023
        took.append(time.monotonic() - pressed_at)
        alice.follow(generation)
    client.close()
    assert statistics.median(took) < 1.0, took


def test_stopped_answer_is_part_of_the_next_prompt_and_retry_writes_a_sibling(fleet: Fleet) -> None:
    alice = fleet.person()
    conversation, generation = alice.send(LONG)
    for frame in alice.stream(generation):
        if frame.event == "delta":
            alice.stop(generation)
        if frame.event == "done":
            break
    (answer,) = re.findall(r'class="msg bot stopped" id="m-([0-9a-f-]{36})"', stored(alice, conversation))
    alice.post(f"/chat/messages/{answer}/retry/").raise_for_status()
    again = re.findall(r'data-generation="([0-9a-f-]{36})"', stored(alice, conversation))
    assert again and again[-1] != generation
    alice.stop(again[-1])
    alice.follow(again[-1])
    _, third = alice.send("And then?", conversation)
    assert alice.follow(third).done is not None


def test_stop_while_waiting_ends_at_once_and_harms_nobody(fleet: Fleet) -> None:
    alice, bob = fleet.person(), fleet.person()
    running = [alice.send(LONG)[1] for _ in range(8)]  # as many as there are slots
    _, waiting = bob.send("Hello there")
    first = next(f for f in bob.stream(waiting) if f.event == "status")
    assert first.data["phase"] in ("waiting", "reading", "writing", "loading")
    bob.stop(waiting)
    assert bob.follow(waiting).done["status"] in ("stopped", "done")  # type: ignore[index]
    for generation in running:
        alice.stop(generation)
    assert {alice.follow(g).done["status"] for g in running} <= {"stopped", "done"}  # type: ignore[index]


def test_eight_conversations_stream_together_and_each_sees_its_own_answer(fleet: Fleet) -> None:
    people = [fleet.person() for _ in range(8)]
    sent = [person.send(LONG + f" The keeper's name is Name{number}.") for number, person in enumerate(people)]
    viewed = [Viewed() for _ in people]
    first_at: list[float] = [0.0] * 8
    done_at: list[float] = [0.0] * 8

    def watch(number: int) -> None:
        for frame in people[number].stream(sent[number][1]):
            viewed[number].take(frame)
            if frame.event == "delta" and not first_at[number]:
                first_at[number] = time.monotonic()
            if viewed[number].last_seq > 40 and viewed[number].done is None:
                people[number].stop(sent[number][1])
        done_at[number] = time.monotonic()

    threads = [threading.Thread(target=watch, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(first_at) < min(done_at), "somebody only began when somebody else had ended"
    for number, mine in enumerate(viewed):
        assert mine.done is not None and mine.done["status"] in ("stopped", "done")
        assert sha256(mine.content) == mine.done["content_sha256"]
        others = people[(number + 1) % 8]
        assert others.http.get(f"/chat/generations/{sent[number][1]}/events").status_code == 404
        assert others.http.get(f"/chat/{sent[number][0]}/").status_code == 404


def test_double_submit_is_one_message(fleet: Fleet) -> None:
    alice = fleet.person()
    key = str(uuid.uuid4())
    pages: list[str] = []

    def press() -> None:
        pages.append(str(alice.post("/chat/", text="Say hello.", key=key).url))

    threads = [threading.Thread(target=press) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(pages)) == 1, pages
    conversation = pages[0].rstrip("/").rsplit("/", 1)[1]
    generations = set(re.findall(r'data-generation="([0-9a-f-]{36})"', stored(alice, conversation)))
    assert len(generations) == 1


def test_prompt_too_long_is_refused_before_queueing_with_both_numbers(fleet: Fleet) -> None:
    alice = fleet.person()
    answer = alice.post("/chat/", text="word " * 5000, key=str(uuid.uuid4()))
    assert answer.status_code == 400
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\d{1,3}(?:,\d{3})+", answer.text)]
    assert any(n > 4000 for n in numbers) and any(1000 < n <= 2048 for n in numbers), numbers
    assert "word word" in answer.text, "what was typed is gone"


def test_ask_streams_in_the_terminal(fleet: Fleet) -> None:
    alice = fleet.person()
    said = fleet.manage("ask", "What is the capital of France?", "--user", alice.name, "--temperature", "0")
    assert said.strip(), "no answer"  # that answers are right is asked of the model alone, in tests/model


def test_worker_shows_what_it_measured(fleet: Fleet) -> None:
    alice = fleet.person()
    alice.follow(alice.send("Say hello.")[1])
    said = httpx.get(f"http://127.0.0.1:{fleet.metrics_ports[0]}/metrics").text
    counted = re.search(rf'^smolfleet_ttft_seconds_count{{model="{MODEL}"}} (\S+)$', said, re.MULTILINE)
    assert counted is not None
    assert float(counted[1]) >= 1
