"""One Redis subscription per web process, shared by every viewer in it. Nothing is lost for good, and nothing grows.

Pub/sub only says that there is news; the log is the truth. A viewer reads the log whenever it cannot be sure: after
each acknowledgement of its subscription (the first, and those after a reconnect), after a hole, after its mailbox
overflowed, and every two seconds while nothing comes. So a lost message costs time, never text.

    Hub      the connection: subscribes for the first viewer of a channel, leaves with the last, mends itself
    Viewer   one reader of one generation: a cursor and a bounded mailbox; `batch` gives what is new

Knows Redis' channels and the log, not Postgres, not HTML. A hub lives on one event loop; `hub` gives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from uuid import UUID

import redis
import redis.asyncio
import structlog
from django.conf import settings
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from chatsite.chat import notify
from chatsite.chat.streams.cancel import end_tasks
from chatsite.chat.streams.mailbox import Mailbox
from chatsite.chat.streams.progress import Fleet
from inference.client import AsyncInferenceClient
from inference.config import InferenceConfig
from inference.coordination.log_view import Cursor, Log
from inference.errors import EventsExpired, InvalidRequest, StoreUnavailable
from inference.messages.generation import Event

log = structlog.get_logger(__name__)

WATCHDOG_SECONDS = 2.0  # a half-open link never errors; so long it can delay news
PING_SECONDS = 10.0  # ... and after twice this without any sign of life the connection is made anew
CONNECT_SECONDS = 2.0
MIN_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 2.0
KEEPALIVE_CHANNEL = "{smolfleet}:hub"  # always subscribed, so that the connection is one for listening from the start


@dataclass(frozen=True)
class Fresh:
    """The next event of the log with this mark."""

    mark: str
    event: Event


@dataclass(frozen=True)
class Reset:
    """Another log than the cursor's: ask Postgres; if the answer has not ended, this log follows from its start."""

    mark: str


@dataclass(frozen=True)
class Gone:
    """Redis knows no log of it: ask Postgres; if the answer has not ended, a log may yet come."""


News = Fresh | Reset | Gone


class Hub:
    def __init__(self, config: InferenceConfig, *, max_mailbox_bytes: int) -> None:
        self.client = AsyncInferenceClient(config)
        # No retries inside redis-py: a reconnect that nobody notices is a gap that nobody fills.
        self._redis = redis.asyncio.Redis.from_url(
            config.redis_url,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=CONNECT_SECONDS,
            health_check_interval=0,
        )
        self.fleet = Fleet(self.client)
        self._max_mailbox_bytes = max_mailbox_bytes
        self._mailboxes: dict[bytes, set[Mailbox]] = {}
        self._acknowledged: set[bytes] = set()  # channels whose news this connection is sure to get
        self._changed = asyncio.Event()
        self._heard_at = 0.0
        self._pump: asyncio.Task[None] | None = None
        self.num_viewers = 0
        self.num_repairs = 0  # logs read again because something was missing, or might be

    @contextlib.contextmanager
    def viewer(self, generation_id: UUID, after: Cursor | None = None) -> Iterator[Viewer]:
        """A viewer of one generation from behind `after`, or from the log's start, for the length of the block."""
        with self._mailbox(self.client.news_channel(generation_id)) as mailbox:
            self.num_viewers += 1
            try:
                yield Viewer(self, generation_id, mailbox, after)
            finally:
                self.num_viewers -= 1

    @contextlib.contextmanager
    def notices(self, conversation_id: UUID) -> Iterator[Mailbox]:
        """Ids of generations that begin in a conversation, as text. Hints: who listens also looks into Postgres."""
        with self._mailbox(notify.channel_of(conversation_id)) as mailbox:
            yield mailbox

    @contextlib.contextmanager
    def hints(self, user_id: UUID) -> Iterator[Mailbox]:
        """What changes in a person's list, as `<change> <conversation>`. Hints; stale when some may be missing."""
        with self._mailbox(notify.channel_of_list(user_id)) as mailbox:
            yield mailbox

    @contextlib.contextmanager
    def standing(self, user_id: UUID) -> Iterator[Mailbox]:
        """Word that something of a person's, or of everybody's, changed on which it depends what they may see."""
        with self._mailbox(notify.channel_of_standing(user_id), notify.STANDING_OF_ALL) as mailbox:
            yield mailbox

    async def follow(self, generation_id: UUID, after: Cursor | None = None) -> AsyncGenerator[News, None]:
        """As `viewer`, one by one and without end. Close the iterator (`aclosing`) to leave."""
        with self.viewer(generation_id, after) as viewer:
            while True:
                for news in await viewer.batch(WATCHDOG_SECONDS):
                    yield news

    async def close(self) -> None:
        """End the connection. For tests, and for a process that stops in order."""
        await end_tasks(self._pump)
        await self._redis.aclose()
        await self.client.aclose()

    @contextlib.contextmanager
    def _mailbox(self, *channel_names: str) -> Iterator[Mailbox]:
        names = [name.encode() for name in channel_names]
        mailbox = Mailbox(self._max_mailbox_bytes)
        for name in names:
            if name not in self._mailboxes:
                self._mailboxes[name] = set()
                self._changed.set()
            self._mailboxes[name].add(mailbox)
            if name in self._acknowledged:
                mailbox.go_stale()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run(), name="hub")
        try:
            yield mailbox
        finally:
            for name in names:
                self._mailboxes[name].discard(mailbox)
                if not self._mailboxes[name]:
                    del self._mailboxes[name]
                    self._changed.set()

    async def _run(self) -> None:
        """Keep one connection for ever. While there is none, the viewers' watchdogs bridge the gap."""
        backoff = MIN_BACKOFF_SECONDS
        while True:
            pubsub = self._redis.pubsub()
            try:
                await pubsub.subscribe(KEEPALIVE_CHANNEL)
                backoff = MIN_BACKOFF_SECONDS
                await self._serve(pubsub)
            except (redis.RedisError, OSError) as error:
                log.warning("hub has no connection", reason=type(error).__name__)
            finally:
                self._acknowledged.clear()
                with contextlib.suppress(redis.RedisError, OSError):  # most likely broken already
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)

    async def _serve(self, pubsub: PubSub) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        parts = [asyncio.create_task(part) for part in (self._listen(pubsub), self._keep(pubsub), self._ping(pubsub))]
        try:
            await asyncio.gather(*parts)
        finally:
            await end_tasks(*parts)

    async def _keep(self, pubsub: PubSub) -> None:
        """Subscriptions as the viewers want them."""
        subscribed: set[bytes] = set()
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = set(self._mailboxes)
            if joined := wanted - subscribed:
                await pubsub.subscribe(*joined)
            if left := subscribed - wanted:
                self._acknowledged -= left
                await pubsub.unsubscribe(*left)
            subscribed = wanted

    async def _listen(self, pubsub: PubSub) -> None:
        while True:
            message = await pubsub.get_message(timeout=None)
            self._heard_at = asyncio.get_running_loop().time()
            if message is None:
                continue
            name = message["channel"]
            if message["type"] == "message":
                for mailbox in self._mailboxes.get(name, ()):
                    mailbox.put(message["data"])
            elif message["type"] == "subscribe":
                # What was published before this moment may be missing. That holds for every acknowledgement, also one
                # that redis-py asked for when it reconnected by itself.
                self._acknowledged.add(name)
                for mailbox in self._mailboxes.get(name, ()):
                    mailbox.go_stale()

    async def _ping(self, pubsub: PubSub) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            if asyncio.get_running_loop().time() - self._heard_at > 2 * PING_SECONDS:
                raise redis.ConnectionError("no sign of life")
            await pubsub.ping()


class Viewer:
    def __init__(self, hub: Hub, generation_id: UUID, mailbox: Mailbox, after: Cursor | None) -> None:
        self.cursor = after
        self._hub = hub
        self._generation_id = generation_id
        self._mailbox = mailbox
        self._sure_at = asyncio.get_running_loop().time()  # when the log was last read, or news last came in order

    async def batch(self, seconds: float) -> list[News]:
        """What is new, in order, waiting for it up to so many seconds; empty when nothing came, or Redis is away."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while True:
            if self._mailbox.is_stale or clock() >= self._sure_at + WATCHDOG_SECONDS:
                news = await self._read()
            else:
                news = self._drain()
            if news or (clock() >= deadline and not self._mailbox.is_stale):
                return news
            if not self._mailbox.is_stale:
                await self._mailbox.wait(max(0.0, min(deadline, self._sure_at + WATCHDOG_SECONDS) - clock()))

    def _drain(self) -> list[News]:
        news: list[News] = []
        for letter in self._mailbox.take():
            try:
                mark, event = self._hub.client.parse_news(letter)
            except InvalidRequest:  # no entry of a log; the log itself says what is
                self._mailbox.go_stale()
                break
            if self.cursor is None or mark != self.cursor.mark or event.seq > self.cursor.seq + 1:
                self._hub.num_repairs += 1
                self._mailbox.go_stale()
                break
            if event.seq == self.cursor.seq + 1:
                news.append(self._step(mark, event))
        if news:
            self._sure_at = asyncio.get_running_loop().time()
        return news

    async def _read(self) -> list[News]:
        self._mailbox.begin_anew()  # before the read: what comes meanwhile is kept, and told apart by its seq
        self._sure_at = asyncio.get_running_loop().time()
        news: list[News] = []
        try:
            found = await self._hub.client.read(self._generation_id, after=self.cursor.seq if self.cursor else 0)
            if self.cursor is not None and found.mark != self.cursor.mark:
                found = await self._hub.client.read(self._generation_id)
                news.append(Reset(found.mark))
        except EventsExpired:
            return [Gone()]
        except StoreUnavailable:
            return []
        return news + self._steps(found, begins=bool(news) or self.cursor is None)

    def _steps(self, found: Log, *, begins: bool) -> list[News]:
        if begins:
            self.cursor = Cursor(found.mark, 0)
        return [self._step(found.mark, event) for event in found.events]

    def _step(self, mark: str, event: Event) -> Fresh:
        self.cursor = Cursor(mark, event.seq)
        return Fresh(mark, event)


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop: one per web process, made at first use."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub(settings.INFERENCE, max_mailbox_bytes=settings.SMOLFLEET.stream_buffer_bytes)
    return _hubs[loop]


def num_viewers() -> int:
    """Viewers of this process, for the metrics page; any thread."""
    return sum(hub.num_viewers for hub in _hubs.values())
