"""The hub loses nothing and holds little, whatever happens to pub/sub."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from chatsite.accounts.models import new_id
from chatsite.chat.streams import hub as hub_module
from chatsite.chat.streams.hub import Fresh, Gone, Hub, Reset, Viewer
from chatsite.embedded import BundledValkey
from inference.config import InferenceConfig
from inference.coordination.log_view import Cursor
from inference.messages.generation import ChatMessage, EventKind, GenerationRequest, Role
from tests.web.chat_worker import MODEL, Attempt, StepWorker

DEADLINE_SECONDS = 10.0


def begin(worker: StepWorker) -> Attempt:
    message = ChatMessage(role=Role.USER, content="hi")
    worker.room.enter(GenerationRequest(id=new_id(), model=MODEL, user_key="u", messages=(message,)))
    return worker.claim()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def take(viewer: Viewer, num_events: int) -> list[Any]:
    """News until so many events came."""
    news: list[Any] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while sum(isinstance(item, Fresh) for item in news) < num_events:
            news += [item for item in await viewer.batch(0.2) if not isinstance(item, Gone)]
    return news


def seqs(news: list[Any]) -> list[int]:
    return [item.event.seq for item in news if isinstance(item, Fresh)]


async def acknowledged(hub: Hub, attempt: Attempt) -> None:
    channel = hub.client.news_channel(attempt.id).encode()
    await until(lambda: channel in hub._acknowledged)


async def test_viewer_gets_what_was_written_before_and_after_it_came(hub: Hub, worker: StepWorker) -> None:
    attempt = begin(worker)
    attempt.write("a", "b")
    with hub.viewer(attempt.id) as viewer:
        assert seqs(await take(viewer, 2)) == [1, 2]
        attempt.write("c")
        assert seqs(await take(viewer, 1)) == [3]


async def test_viewer_goes_on_behind_its_cursor(hub: Hub, worker: StepWorker) -> None:
    attempt = begin(worker)
    attempt.write("a", "b", "c")
    with hub.viewer(attempt.id, Cursor(attempt.claim.mark, 2)) as viewer:
        assert seqs(await take(viewer, 1)) == [3]


async def test_nothing_is_lost_between_reading_and_subscribing(hub: Hub, worker: StepWorker) -> None:
    """An append at any moment of the handover arrives, once: twenty viewers come while a worker writes on."""
    attempt = begin(worker)
    is_over = False

    def write_on() -> None:
        while not is_over:
            attempt.write("x")

    writing = asyncio.create_task(asyncio.to_thread(write_on))
    try:
        for _ in range(20):
            with hub.viewer(attempt.id) as viewer:
                news = seqs(await take(viewer, 5))
                news += seqs(await take(viewer, 5))
                assert news == list(range(1, len(news) + 1))
    finally:
        is_over = True
        await writing


async def test_hole_is_filled_from_the_log(hub: Hub, worker: StepWorker, redis: redis_py.Redis) -> None:
    attempt = begin(worker)
    attempt.write("a")
    with hub.viewer(attempt.id) as viewer:
        await acknowledged(hub, attempt)
        assert seqs(await take(viewer, 1)) == [1]
        await viewer.batch(0)
        for mailbox in hub._mailboxes[hub.client.news_channel(attempt.id).encode()]:
            attempt.write("b")
            await until(lambda m=mailbox: m.num_bytes > 0)  # type: ignore[misc]
            mailbox.take()  # as if pub/sub had lost it
        attempt.write("c")
        assert seqs(await take(viewer, 2)) == [2, 3]
        assert hub.num_repairs == 1


async def test_overflow_is_bounded_and_read_again(worker: StepWorker, settings: Any) -> None:
    hub = Hub(settings.INFERENCE, max_mailbox_bytes=2_000)
    attempt = begin(worker)
    attempt.write("a")
    with hub.viewer(attempt.id) as viewer:
        await acknowledged(hub, attempt)
        assert seqs(await take(viewer, 1)) == [1]
        await viewer.batch(0)
        (mailbox,) = hub._mailboxes[hub.client.news_channel(attempt.id).encode()]
        for _ in range(100):
            attempt.write("x" * 50)
            await asyncio.sleep(0)
            assert mailbox.num_bytes <= 2_000
        await until(lambda: mailbox.is_stale)
        assert mailbox.num_bytes == 0
        assert seqs(await take(viewer, 100)) == list(range(2, 102))
    await hub.close()


async def test_silence_is_broken_by_the_watchdog(
    hub: Hub, worker: StepWorker, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "WATCHDOG_SECONDS", 0.1)
    attempt = begin(worker)
    with hub.viewer(attempt.id) as viewer:
        await acknowledged(hub, attempt)
        monkeypatch.setattr("chatsite.chat.streams.mailbox.Mailbox.put", lambda *_: None)  # pub/sub is silently dead
        attempt.write("a")
        assert seqs(await take(viewer, 1)) == [1]


async def test_other_mark_resets_and_shows_the_new_log_from_its_start(
    hub: Hub, worker: StepWorker, redis: redis_py.Redis
) -> None:
    attempt = begin(worker)
    attempt.write("a", "b", "c")
    with hub.viewer(attempt.id) as viewer:
        assert seqs(await take(viewer, 3)) == [1, 2, 3]
        redis.flushall()
        worker.room.enter(attempt.claim.request)
        again = worker.claim()
        again.write("d")
        news = await take(viewer, 1)
    assert news[0] == Reset(again.claim.mark)
    assert seqs(news) == [1]


async def test_cursor_of_another_log_resets(hub: Hub, worker: StepWorker) -> None:
    attempt = begin(worker)
    attempt.write("a", "b")
    with hub.viewer(attempt.id, Cursor("f" * 32, 7)) as viewer:
        news = await take(viewer, 2)
    assert news[0] == Reset(attempt.claim.mark)
    assert seqs(news) == [1, 2]


async def test_unknown_log_is_gone_and_may_come(hub: Hub, worker: StepWorker) -> None:
    message = ChatMessage(role=Role.USER, content="hi")
    request = GenerationRequest(id=new_id(), model=MODEL, user_key="u", messages=(message,))
    with hub.viewer(request.id) as viewer:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not (news := await viewer.batch(0.2)):
                pass
        assert news == [Gone()]
        worker.room.enter(request)
        worker.claim().write("a")
        assert seqs(await take(viewer, 1)) == [1]


async def test_last_viewer_takes_the_subscription_with_it(hub: Hub, worker: StepWorker, redis: redis_py.Redis) -> None:
    attempt = begin(worker)
    channel = hub.client.news_channel(attempt.id)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(hub.viewer(attempt.id))
        await acknowledged(hub, attempt)
        assert hub.num_viewers == hub_module.num_viewers() == 3
        assert redis.pubsub_numsub(channel)[0][1] == 1
    await until(lambda: redis.pubsub_numsub(channel)[0][1] == 0)
    with hub.viewer(attempt.id) as viewer:  # and comes back with the next
        attempt.write("a")
        assert seqs(await take(viewer, 1)) == [1]


async def test_lost_connection_heals_and_nothing_is_missed(hub: Hub, worker: StepWorker, redis: redis_py.Redis) -> None:
    attempt = begin(worker)
    attempt.write("a")
    with hub.viewer(attempt.id) as viewer:
        await acknowledged(hub, attempt)
        assert seqs(await take(viewer, 1)) == [1]
        for _ in range(3):
            redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            attempt.write("b")
        assert seqs(await take(viewer, 3)) == [2, 3, 4]
        await acknowledged(hub, attempt)
        attempt.write("c")
        assert seqs(await take(viewer, 1)) == [5]


@pytest.fixture
async def own_valkey(tmp_path_factory: pytest.TempPathFactory, settings: Any) -> AsyncIterator[Callable[[], Any]]:
    """A server of this test alone, which it may stop and start again on the same address."""
    state_dir = Path(tmp_path_factory.mktemp("valkey"))
    for folder in (state_dir, state_dir.parent):
        folder.chmod(0o711)
    servers: list[BundledValkey] = []

    def start() -> InferenceConfig:
        server = BundledValkey(state_dir)
        servers.append(server)
        return dataclasses.replace(settings.INFERENCE, redis_url=server.start())

    yield start, servers
    for server in servers:
        server.stop()


async def test_restart_of_redis_is_survived(own_valkey: Any) -> None:
    start, servers = own_valkey
    config = start()
    redis = redis_py.Redis.from_url(config.redis_url)
    worker = StepWorker(redis, config)
    hub = Hub(config, max_mailbox_bytes=100_000)
    attempt = begin(worker)
    attempt.write("a")
    with hub.viewer(attempt.id) as viewer:
        assert seqs(await take(viewer, 1)) == [1]
        await asyncio.to_thread(servers.pop().stop)
        assert await viewer.batch(0.3) == []  # away: nothing new, no error
        assert start().redis_url == config.redis_url
        async with asyncio.timeout(DEADLINE_SECONDS):
            news: list[Any] = []
            while not any(isinstance(item, Gone) for item in news):  # it kept nothing, or what it kept is known
                with contextlib.suppress(redis_py.ConnectionError):
                    if redis.exists(f"{{smolfleet}}:gen:{attempt.id}"):
                        break
                news += await viewer.batch(0.2)
        with contextlib.suppress(AssertionError):
            attempt.write("b")
        expected = [2]
        if any(isinstance(item, Gone) for item in news):
            worker.room.enter(attempt.claim.request)
            worker.claim().write("b")
            expected = [1]
        news = await take(viewer, 1)
        assert seqs(news) == expected
        assert isinstance(news[0], Reset) == (expected == [1])
    await hub.close()
    redis.close()


async def test_events_of_one_generation_reach_no_viewer_of_another(hub: Hub, worker: StepWorker) -> None:
    first, second = begin(worker), begin(worker)
    with hub.viewer(first.id) as one, hub.viewer(second.id) as two:
        first.write("for one")
        second.write("for two")
        (a,), (b,) = await take(one, 1), await take(two, 1)
    assert a.event.kind is EventKind.DELTA
    assert [d.text for d in a.event.deltas] == ["for one"]
    assert [d.text for d in b.event.deltas] == ["for two"]


async def test_hub_closes_whenever_it_is_asked(worker: StepWorker, settings: Any) -> None:
    """redis-py swallows a cancellation that comes while it connects: the hub once waited for itself for ever."""
    for moment in range(60):
        hub = Hub(settings.INFERENCE, max_mailbox_bytes=1_000)
        with hub.viewer(new_id()):
            await asyncio.sleep(0.0002 * (moment % 30))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await hub.close()
