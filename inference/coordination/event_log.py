"""The ordered, fenced, expiring log of one generation.

One Redis Stream per generation; its entries are numbered from 1 without holes, across attempts. Every write shows the
ticket and is published as it is written, in one script, so what a refused writer wrote is seen by nobody. Workers
append and finish, the site worker ends and records, anyone reads. Redis's own errors pass through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import redis
import structlog

from inference.config import InferenceConfig
from inference.coordination import redis_keys
from inference.coordination.fair_cost import cost
from inference.coordination.log_view import Log
from inference.coordination.redis_client import Scripts, active_ttl_ms
from inference.errors import EventsExpired, InvalidRequest, LogUnreadable
from inference.messages.generation import Event, EventKind, Finish, FinishReason, Usage
from inference.messages.serialization import decode, encode

logger = structlog.get_logger(__name__)

MAX_LOG_BYTES = 16 * 1024 * 1024  # of one generation; the longest context in one-token entries stays below it
MAX_ENTRIES = 262_144  # of one that is read: `append` counts bytes, but a worker can reach the log without it

# What Redis, and Lua inside it, say of values that no script of ours left there.
GARBLED = ("WRONGTYPE", "attempt to", "bad argument", "not an integer", "not a valid float", "equal or smaller")


@dataclass(frozen=True)
class Appended:
    """`seq` of the entry, None when it was refused; `is_full` says that this was for the log's size, not the ticket."""

    seq: int | None
    stop: bool
    is_full: bool = False


class EventLog:
    def __init__(self, client: redis.Redis, config: InferenceConfig, *, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._redis: Any = client
        self._scripts = Scripts(client)
        self._max_bytes = max_bytes
        self._ttl_ms = active_ttl_ms(config)
        self._ended_ttl_ms = config.log_ttl_seconds * 1000

    def append(self, entries: Sequence[tuple[UUID, str, Event]]) -> list[Appended]:
        """Write (generation, ticket, event) each as its log's next entry, in one round trip, in order.

        An event with a `seq` of its own is written only as that entry; when it is there already nothing happens. So a
        writer that lost an answer may append the same events again.

        Raises:
            redis.ResponseError: a seq that would leave a hole; the entries before and after it were written.
        """
        if not entries:
            return []
        calls = [
            (self._ttl_ms, str(generation_id), ticket, unnumbered(event), event.seq, self._max_bytes)
            for generation_id, ticket, event in entries
        ]
        appended = []
        for (generation_id, _, _), reply in zip(entries, self._scripts.run_all("append", calls), strict=True):
            if isinstance(reply, Exception):
                raise reply
            seq, stop, is_full = reply
            if is_full:
                logger.error("log_full", generation_id=str(generation_id), max_bytes=self._max_bytes)
            appended.append(Appended(seq=seq or None, stop=bool(stop), is_full=bool(is_full)))
        return appended

    def finish(self, generation_id: UUID, ticket: str, finish: Finish, event: Event | None = None) -> Appended:
        """Write the end, after the last text if `event` holds some. Then send `record`. Ticket and lease are void."""
        reply = self._scripts.run(
            "finish",
            self._ttl_ms,
            str(generation_id),
            ticket,
            unnumbered(event) if event else "",
            finish_event(finish),
            cost(finish.usage) if finish.usage != Usage() or finish.reason is not FinishReason.ERROR else -1,
        )
        return Appended(seq=reply[0] or None, stop=bool(reply[1]))

    def end(self, generation_id: UUID, finish: Finish) -> bool:
        """Write the end without a worker, wherever it stands; viewers see it. Then send `record`.

        Returns False when it has finished already or Redis does not know it.
        """
        usage_cost = cost(finish.usage) if finish.usage != Usage() else -1
        return bool(self._scripts.run("end", self._ttl_ms, str(generation_id), finish_event(finish), usage_cost))

    def record(self, generation_id: UUID) -> bool:
        """Write `recorded`, the last entry, and let the log expire. Call it after the commit.

        Returns False when it is there already, nothing finished, or Redis does not know the generation.
        """
        return bool(self._scripts.run("record", self._ended_ttl_ms, str(generation_id)))

    def read(self, generation_id: UUID, after: int = 0) -> Log:
        """The log's mark and its events whose seq is above `after`.

        Raises:
            EventsExpired: Redis does not know the generation; ask the database.
            LogUnreadable: what lies there is no log.
        """
        with expecting_a_log(generation_id), self._redis.pipeline(transaction=True) as pipeline:
            queue_read(pipeline, generation_id, after)
            mark, entries = pipeline.execute()
        return log_of(generation_id, mark, entries)


def queue_read(pipeline: Any, generation_id: UUID, after: int) -> None:
    """Queue the two commands of a read; one MULTI, so that mark and entries belong together."""
    pipeline.hget(redis_keys.generation(generation_id), "mark")
    pipeline.xrange(redis_keys.log(generation_id), min=f"{after + 1}-0", count=MAX_ENTRIES + 1)


@contextlib.contextmanager
def expecting_a_log(generation_id: UUID) -> Iterator[None]:
    """Turn Redis's word that what lies there is of another kind than a generation into LogUnreadable."""
    try:
        yield
    except redis.ResponseError as error:
        if not any(sign in str(error) for sign in GARBLED):
            raise
        raise LogUnreadable(f"What Redis has of generation {generation_id} is none.") from error


def log_of(generation_id: UUID, mark: bytes | None, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> Log:
    """The Log that a read's two replies tell.

    Raises:
        EventsExpired: there is no mark.
        LogUnreadable: no worker of ours wrote that, or more than one writes.
    """
    if mark is None:
        raise EventsExpired(f"The log of generation {generation_id} is not in Redis.")
    try:
        num_bytes = sum(len(fields.get(b"event", b"")) for _, fields in entries)
        if len(entries) > MAX_ENTRIES or num_bytes > 2 * MAX_LOG_BYTES:
            raise InvalidRequest("a log that is too long")
        return Log(mark=mark.decode("ascii"), events=tuple(_numbered(at, fields) for at, fields in entries))
    except (InvalidRequest, UnicodeDecodeError) as error:
        logger.error("log_unreadable", generation_id=str(generation_id), error=str(error)[:500])
        raise LogUnreadable(f"The log of generation {generation_id} cannot be read.") from error


def _numbered(entry_id: bytes, fields: dict[bytes, bytes]) -> Event:
    data = fields.get(b"event", b"")
    return decode(b'{"seq":%s,%s' % (entry_id.partition(b"-")[0], data[1:]), Event)


def unnumbered(event: Event) -> bytes:
    """The event as it is stored: its number is the entry's id."""
    return encode(msgspec.structs.replace(event, seq=0))


def finish_event(finish: Finish) -> bytes:
    return encode(Event(kind=EventKind.FINISH, finish=finish))


def parse_news(payload: bytes) -> tuple[str, Event]:
    """The mark and the numbered event of one published entry.

    Raises:
        InvalidRequest: it is not of that form.
    """
    mark, _, data = payload.partition(b" ")
    if not mark.isascii():
        raise InvalidRequest("not an entry of a log")
    return mark.decode("ascii"), decode(data, Event)
