"""News reach the log in order, once, together; whatever happens to the connection."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit, urlunsplit

import pytest

from inference.coordination.event_log import EventLog
from inference.coordination.redis_client import connect
from inference.coordination.waiting_room import Claim
from inference.messages.generation import Delta, Event, EventKind, Finish, FinishReason
from inference.worker.attempt.attempts import Attempt, Notice
from inference.worker.attempt.outbox import Outbox
from inference.worker.attempt.publisher import Publisher
from tests.worker.proxy import LossyProxy
from tests.worker.scripted import (
    MODEL,
    ScriptedWorker,
    Store,
    check_whole,
    ids,
    settings,
    text_of,
    wait_until,
)

MakeWorker = Callable[..., ScriptedWorker]
DONE = Finish(reason=FinishReason.STOP)


@pytest.fixture
def proxy(valkey_url: str) -> Iterator[LossyProxy]:
    address = urlsplit(valkey_url)
    proxy = LossyProxy((address.hostname or "127.0.0.1", address.port or 6379))
    yield proxy
    proxy.close()


@pytest.fixture
def proxied_url(proxy: LossyProxy, valkey_url: str) -> str:
    """The run's Redis, password and all, through the proxy."""
    address = urlsplit(valkey_url)
    credentials, at, _ = address.netloc.rpartition("@")
    return urlunsplit(address._replace(netloc=f"{credentials}{at}127.0.0.1:{proxy.port}"))


@pytest.fixture
def make_publisher(proxy: LossyProxy, proxied_url: str) -> Iterator[Callable[..., Publisher]]:
    """Publishers that reach Redis through the proxy."""
    made: list[Publisher] = []

    def make(**changes: object) -> Publisher:
        config = settings(proxied_url, **changes)
        publisher = Publisher(EventLog(connect(config), config), config)
        publisher.start()
        made.append(publisher)
        return publisher

    yield make
    proxy.mend()
    for publisher in made:
        publisher.stop()


def claimed(store: Store) -> Attempt:
    asked = store.enter("hello")
    claim = store.room.claim(MODEL, "worker-a")
    assert isinstance(claim, Claim)
    assert claim.request.id == asked.id
    return Attempt(claim)


def opened(publisher: Publisher, store: Store) -> Outbox:
    return publisher.open(claimed(store), 0)


def put(publisher: Publisher, outbox: Outbox, token: int, text: str) -> None:
    publisher.put_deltas(outbox, (token,), [Delta("content", text)] if text else [])


def events(store: Store, outbox: Outbox) -> tuple[Event, ...]:
    return store.read(outbox.attempt.generation_id).events


def test_the_first_text_leaves_at_once_and_later_text_together(
    store: Store, make_publisher: Callable[..., Publisher]
) -> None:
    publisher = make_publisher(STREAM_FLUSH_MS=300)
    outbox = opened(publisher, store)
    put(publisher, outbox, 0, "0 ")
    wait_until(lambda: len(events(store, outbox)) == 1)
    for token in range(1, 40):
        put(publisher, outbox, token, f"{token} ")
    wait_until(lambda: len(events(store, outbox)) > 1)
    assert publisher.settle(outbox, 5)
    first, second = events(store, outbox)
    assert first.tokens == (0,)
    assert second.tokens == tuple(range(1, 40))
    assert second.deltas == (Delta("content", "".join(f"{token} " for token in range(1, 40))),)


def test_many_tokens_leave_before_their_time(store: Store, make_publisher: Callable[..., Publisher]) -> None:
    publisher = make_publisher(STREAM_FLUSH_MS=5000, STREAM_FLUSH_TOKENS=10)
    outbox = opened(publisher, store)
    for token in range(11):
        put(publisher, outbox, token, "x")
    wait_until(lambda: sum(len(event.tokens) for event in events(store, outbox)) == 11)


def test_tokens_without_text_wait_for_the_text(store: Store, make_publisher: Callable[..., Publisher]) -> None:
    publisher = make_publisher(STREAM_FLUSH_MS=1)
    outbox = opened(publisher, store)
    put(publisher, outbox, 1, "a")
    put(publisher, outbox, 2, "")
    put(publisher, outbox, 3, "")
    put(publisher, outbox, 4, "é")
    assert publisher.settle(outbox, 5)
    assert all(event.deltas for event in events(store, outbox))
    assert [token for event in events(store, outbox) for token in event.tokens] == [1, 2, 3, 4]


def test_kinds_keep_their_order(store: Store, make_publisher: Callable[..., Publisher]) -> None:
    publisher = make_publisher()
    outbox = opened(publisher, store)
    publisher.put(outbox, Event(kind=EventKind.STARTED, worker="worker-a"))
    publisher.put(outbox, Event(kind=EventKind.PROGRESS, num_done=5, num_total=9))
    publisher.put_deltas(outbox, (1,), [Delta("reasoning", "r"), Delta("content", "c")])
    publisher.finish(outbox, DONE)
    assert outbox.attempt.inbox.get(timeout=5) is Notice.FINISHED
    assert [event.kind for event in events(store, outbox)] == ["started", "progress", "delta", "finish"]
    check_whole(store.read(outbox.attempt.generation_id))


def test_the_last_text_and_the_finish_are_one_write(store: Store, make_publisher: Callable[..., Publisher]) -> None:
    publisher = make_publisher(STREAM_FLUSH_MS=5000)
    outbox = opened(publisher, store)
    put(publisher, outbox, 1, "a")
    assert publisher.settle(outbox, 5)
    put(publisher, outbox, 2, "b")
    publisher.finish(outbox, DONE, [Delta("content", "c")])
    assert outbox.attempt.inbox.get(timeout=5) is Notice.FINISHED
    *_, last_text, finish = events(store, outbox)
    assert (last_text.tokens, last_text.deltas) == ((2,), (Delta("content", "bc"),))
    assert finish.kind is EventKind.FINISH


def test_one_flush_is_one_pipeline(store: Store, make_publisher: Callable[..., Publisher]) -> None:
    publisher = make_publisher(STREAM_FLUSH_MS=200)
    outboxes = [opened(publisher, store) for _ in range(8)]
    for outbox in outboxes:
        put(publisher, outbox, 0, "a")
        assert publisher.settle(outbox, 5)
    calls: list[int] = []
    append = publisher._event_log.append

    def counting(batch: list[object]) -> object:
        calls.append(len(batch))
        return append(batch)  # type: ignore[arg-type]

    publisher._event_log.append = counting  # type: ignore[method-assign,assignment]
    for outbox in outboxes:
        put(publisher, outbox, 1, "b")
    wait_until(lambda: all(len(events(store, outbox)) == 2 for outbox in outboxes))
    assert calls == [8]


def test_a_refused_ticket_is_told_and_nothing_more_is_written(
    store: Store, make_publisher: Callable[..., Publisher]
) -> None:
    publisher = make_publisher()
    outbox = opened(publisher, store)
    store.lose_lease(outbox.attempt.generation_id)
    assert store.room.claim(MODEL, "worker-b") is not None
    put(publisher, outbox, 1, "a")
    assert outbox.attempt.inbox.get(timeout=5) is Notice.LOST
    put(publisher, outbox, 2, "b")
    publisher.finish(outbox, DONE)
    assert publisher.settle(outbox, 5)
    assert events(store, outbox) == ()


def test_the_stop_flag_comes_back_with_an_append(store: Store, make_publisher: Callable[..., Publisher]) -> None:
    publisher = make_publisher()
    outbox = opened(publisher, store)
    from inference.coordination import redis_keys

    store.redis.hset(redis_keys.generation(outbox.attempt.generation_id), "stop", "1")
    put(publisher, outbox, 1, "a")
    assert outbox.attempt.inbox.get(timeout=5) is Notice.STOP


def test_an_append_whose_reply_was_lost_is_not_doubled(
    store: Store, proxy: LossyProxy, make_publisher: Callable[..., Publisher]
) -> None:
    publisher = make_publisher()
    outbox = opened(publisher, store)
    put(publisher, outbox, 1, "a")
    assert publisher.settle(outbox, 5)
    proxy.lose_next_reply()
    put(publisher, outbox, 2, "b")
    wait_until(lambda: proxy.num_lost == 1)
    put(publisher, outbox, 3, "c")
    assert publisher.settle(outbox, 5)
    assert text_of(store.read(outbox.attempt.generation_id))[1] == "abc"
    assert [event.seq for event in events(store, outbox)] == [1, 2, 3]
    assert outbox.attempt.inbox.empty()


def test_a_finish_whose_reply_was_lost_is_a_finish(
    store: Store, proxy: LossyProxy, make_publisher: Callable[..., Publisher]
) -> None:
    publisher = make_publisher(STREAM_FLUSH_MS=5000)
    outbox = opened(publisher, store)
    put(publisher, outbox, 1, "a")
    assert publisher.settle(outbox, 5)
    put(publisher, outbox, 2, "b")
    proxy.lose_next_reply()
    publisher.finish(outbox, DONE)
    assert outbox.attempt.inbox.get(timeout=10) is Notice.FINISHED
    assert proxy.num_lost == 1
    check_whole(store.read(outbox.attempt.generation_id))
    assert text_of(store.read(outbox.attempt.generation_id))[1] == "ab"


def test_a_finish_that_another_wrote_is_not_ours(
    store: Store, proxy: LossyProxy, make_publisher: Callable[..., Publisher]
) -> None:
    publisher = make_publisher()
    outbox = opened(publisher, store)
    proxy.cut()
    publisher.finish(outbox, DONE)
    assert store.log.end(outbox.attempt.generation_id, Finish(reason=FinishReason.CANCELLED))
    proxy.mend()
    assert outbox.attempt.inbox.get(timeout=10) is Notice.LOST
    assert store.finish_of(outbox.attempt.generation_id).reason is FinishReason.CANCELLED


def test_news_wait_while_redis_is_away(
    store: Store, proxy: LossyProxy, make_publisher: Callable[..., Publisher]
) -> None:
    publisher = make_publisher(LEASE_SECONDS=60)
    outboxes = [opened(publisher, store) for _ in range(3)]
    proxy.cut()
    for token in range(300):
        for outbox in outboxes:
            put(publisher, outbox, token, f"{token} ")
    proxy.mend()
    for outbox in outboxes:
        assert publisher.settle(outbox, 10)
        assert [token for event in events(store, outbox) for token in event.tokens] == list(range(300))
        assert len(events(store, outbox)) < 20


def test_an_attempt_is_given_up_after_a_lease_without_redis(
    store: Store, proxy: LossyProxy, make_publisher: Callable[..., Publisher]
) -> None:
    publisher = make_publisher(LEASE_SECONDS=1)
    outbox = opened(publisher, store)
    proxy.cut()
    began = time.monotonic()
    put(publisher, outbox, 1, "a")
    assert outbox.attempt.inbox.get(timeout=10) is Notice.LOST
    assert time.monotonic() - began >= 1
    proxy.mend()
    other = opened(publisher, store)
    put(publisher, other, 1, "others go on")
    assert publisher.settle(other, 10)


def test_a_stopped_publisher_keeps_nobody_waiting(store: Store, make_publisher: Callable[..., Publisher]) -> None:
    publisher = make_publisher()
    early, late = opened(publisher, store), opened(publisher, store)
    publisher.stop()
    publisher.finish(late, DONE)
    assert early.attempt.inbox.get(timeout=5) is Notice.LOST
    assert late.attempt.inbox.get(timeout=5) is Notice.LOST
    assert publisher.settle(early, 5)


def test_a_bad_line_neither_loses_nor_repeats_nor_reorders(
    store: Store, proxy: LossyProxy, make_publisher: Callable[..., Publisher]
) -> None:
    publisher = make_publisher(STREAM_FLUSH_MS=2, LEASE_SECONDS=60)
    outboxes = [opened(publisher, store) for _ in range(6)]
    chance = random.Random(7)

    def write(outbox: Outbox) -> None:
        for token in range(200):
            put(publisher, outbox, token, f"{token} ")
            time.sleep(0.001)
        publisher.finish(outbox, DONE)

    writers = [threading.Thread(target=write, args=(outbox,)) for outbox in outboxes]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        time.sleep(chance.uniform(0.005, 0.03))
        if chance.random() < 0.7:
            proxy.lose_next_reply()
        else:
            proxy.cut()
            proxy.mend()
    for outbox in outboxes:
        assert outbox.attempt.inbox.get(timeout=20) is Notice.FINISHED
        log = store.read(outbox.attempt.generation_id)
        check_whole(log)
        assert [token for event in log.events for token in event.tokens] == list(range(200))
        assert text_of(log)[1] == "".join(f"{token} " for token in range(200))
    assert proxy.num_lost > 0


@pytest.mark.parametrize(("flush_tokens", "flush_ms"), [(1, 1), (10, 500), (64, 40), (10_000, 5_000)])
def test_a_whole_worker_gathers_by_number_or_time_and_loses_nothing(
    store: Store, make_worker: MakeWorker, flush_tokens: int, flush_ms: int
) -> None:
    """First text at once; then entries of so many tokens, or as many as came in the time, whichever is sooner."""
    answer = "naïve 👩‍💻 " * 20
    delay = 0.002
    worker = make_worker(
        {"q": answer},
        STREAM_FLUSH_TOKENS=flush_tokens,
        STREAM_FLUSH_MS=flush_ms,
        backend={"delay_seconds": delay},
    )
    asked = store.enter("q")
    began = time.monotonic()
    worker.answer()
    seconds = time.monotonic() - began
    log = store.read(asked.id)
    check_whole(log)
    assert text_of(log)[1] == answer
    assert [token for event in log.events for token in event.tokens] == ids(answer)
    entries = [event for event in log.events if event.kind is EventKind.DELTA]
    assert len(entries[0].tokens) < 10, "the first text did not wait"
    num_tokens, num_entries = len(ids(answer)), len(entries)
    # Characters of several bytes wait for their last, so an entry may be three tokens short of what was gathered.
    assert num_entries <= 3 + num_tokens / max(1, flush_tokens - 3) + seconds * 1000 / flush_ms
    if flush_tokens == 10:
        longest = max(len(entry.tokens) for entry in entries[1:])
        assert longest < 100, "tokens that are enough did not leave before their time"
        assert num_entries > num_tokens / 100
    if flush_tokens == 10_000:
        assert num_entries <= 2, "what ends sooner than its time does not wait for it either"
        assert seconds < flush_ms / 1000


def test_a_whole_worker_on_a_bad_line(
    store: Store, proxy: LossyProxy, proxied_url: str, make_worker: MakeWorker
) -> None:
    """Replies are lost while claims, appends, renewals and finishes are under way; a sweeper picks up what falls."""
    answers = {f"q{n}": f"answer {n} " * 30 for n in range(6)}
    worker = make_worker(
        answers,
        redis_url=proxied_url,
        STREAM_FLUSH_MS=5,
        LEASE_SECONDS=60,
        backend={"delay_seconds": 0.001},
    )
    asked = {question: store.enter(question) for question in answers}
    chance = random.Random(3)
    threads: list[threading.Thread] = []
    deadline = time.monotonic() + 60
    while any(store.room.standing(one.id).state != "finished" for one in asked.values()):
        assert time.monotonic() < deadline
        threads = [thread for thread in threads if thread.is_alive()]
        while len(threads) < 3 and store.room.num_waiting(MODEL) > len(threads):
            threads.append(worker.doorbell())
        time.sleep(chance.uniform(0.05, 0.2))
        if chance.random() < 0.7 and proxy.num_lost < 30:
            proxy.lose_next_reply()
        under_way = {attempt.generation_id for attempt in worker.runtime.attempts.all()}
        if not any(thread.is_alive() for thread in threads):
            for one in asked.values():
                if store.room.standing(one.id).state in ("leased", "lapsed") and one.id not in under_way:
                    store.lose_lease(one.id)
    for thread in threads:
        thread.join()
    for question, one in asked.items():
        log = store.read(one.id)
        check_whole(log)
        assert text_of(log)[1] == answers[question]
    assert proxy.num_lost > 0
