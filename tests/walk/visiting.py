"""One request of one visitor, and all that came of it: the answer, what it tells of the owner, and what it wrote.

What it wrote is rolled back, and Redis is put back too, so that every visitor finds the same world.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field
from typing import Any

import redis as redis_py
from asgiref.sync import async_to_sync
from django.contrib.messages.storage.cookie import CookieStorage
from django.db import DatabaseError, connection
from django.http import HttpResponseBase
from django.test import RequestFactory
from django.test.client import ClientHandler

from tests.walk.world import World

TOKEN = "a" * 32  # of CSRF: one that the cookie and the form agree on
FORGED = "evil.example"
HX = {"HX-Request": "true", "HX-Current-URL": "http://testserver/offline/?page"}
OWN_TABLES = {"django_session", "usersessions_usersession"}  # every request may write of its own session there
OF_MIGRATING = {"django_content_type", "auth_permission", "django_migrations"}
REDIS_LIMITS = (b"{smolfleet}:cache", b"{smolfleet}:rate")  # counts of attempts


@dataclass(frozen=True)
class Change:
    """Rows of one table, as Postgres prints them, that were there before alone or are there now alone."""

    lost: frozenset[str] = frozenset()
    new: frozenset[str] = frozenset()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str  # all of it: headers, cookies, and files inside a zip
    body: str
    error: BaseException | None = None
    changes: dict[str, Change] = field(default_factory=dict)  # by table; what sessions keep of themselves is left out
    redis_keys: set[bytes] = field(default_factory=set)  # that changed; counts of attempts are left out

    @property
    def location(self) -> str:
        return self.headers.get("Location", self.headers.get("HX-Redirect", ""))

    @property
    def has_written(self) -> bool:
        return bool(self.changes or self.redis_keys)


class _Handler(ClientHandler):
    """Keeps the exception behind a 500."""

    error: BaseException | None = None

    def process_exception_by_middleware(self, exception: Exception, request: Any) -> Any:
        self.error = exception
        return super().process_exception_by_middleware(exception, request)


class Site:
    """The world behind Django's pages. Not for two threads."""

    def __init__(self, world: World, redis: redis_py.Redis) -> None:
        self.world = world
        self._redis = redis
        self._handler = _Handler(enforce_csrf_checks=True)
        self._requests = _Environments()
        self._first_rows = self._rows = rows()
        self._kept = self._dump()
        self._num_redis_writes = self._redis_writes()
        self.num_requests = 0

    def visit(
        self,
        visitor: str,
        method: str,
        address: str,
        form: dict[str, Any] | None = None,
        *,
        with_token: bool = True,
        headers: dict[str, str] | None = None,
        **environ: Any,
    ) -> Answer:
        self.num_requests += 1
        cookies = {"csrftoken": TOKEN} if with_token else {}
        if visitor != "stranger":
            cookies["sessionid"] = self.world.cookies[visitor]
        environ["HTTP_COOKIE"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        environ.setdefault("REMOTE_ADDR", "198.51.100.9")  # nobody here is on the machine itself
        environ.setdefault("HTTP_X_FORWARDED_HOST", FORGED)
        sent = {**(headers or {}), **({"X-CSRFToken": TOKEN} if with_token else {})}
        made = getattr(self._requests, method)(address, form or {}, headers=sent, **environ)
        self._handler.error = None
        answer = self._read(self._handler(made))
        self._settle(answer)
        return answer

    def _read(self, response: HttpResponseBase) -> Answer:
        body = _body_of(response)
        told = [_text_of(response, body)]
        told += [f"{name}: {value}" for name, value in response.items()]
        told += [morsel.OutputString() for morsel in response.cookies.values()]
        if "messages" in response.cookies:
            told.append(str(CookieStorage(None)._decode(response.cookies["messages"].value)))
        error = self._handler.error if response.status_code >= 500 else None
        return Answer(response.status_code, dict(response.items()), "\n".join(told), told[0], error)

    # -- what was written

    def begin(self, *, anew: bool = False) -> None:
        """For each test, in its own transaction: where each request goes back to; `anew` after a change of its own."""
        if anew:
            self._rows = rows()
        with connection.cursor() as cursor:
            cursor.execute("SAVEPOINT walk")
        self._place = place_in_log()

    def forget_changes(self) -> None:
        """The test's own, which end with its transaction."""
        self._rows = self._first_rows

    def _settle(self, answer: Answer) -> None:
        """Note what the request wrote, and undo it."""
        connection.needs_rollback = False
        try:
            has_written = place_in_log() != self._place
        except DatabaseError:  # the page went on after an error: what it wrote is gone
            has_written = False
            self._go_back()
        if has_written:
            changes = compared(self._rows, rows())
            answer.changes = {table: change for table, change in changes.items() if table not in OWN_TABLES}
            self._go_back()
        if (writes := self._redis_writes()) != self._num_redis_writes:
            answer.redis_keys = {key for key in self._restore() if not key.startswith(REDIS_LIMITS)}
            writes = self._redis_writes()
        self._num_redis_writes = writes

    def _go_back(self) -> None:
        connection.run_on_commit.clear()
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK TO SAVEPOINT walk")
        self._place = place_in_log()

    def all_rows(self) -> dict[str, frozenset[str]]:
        """By table, as they were before the walk."""
        return self._first_rows

    def check_untouched(self) -> None:
        """Nothing of the walk stayed, not even by another connection."""
        assert compared(self._first_rows, rows()) == {}

    def _redis_writes(self) -> int:
        return int(self._redis.info("persistence")["rdb_changes_since_last_save"])

    def _dump(self) -> dict[bytes, tuple[bytes, int]]:
        keys = sorted(self._redis.scan_iter(count=1000))
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.dump(key).pttl(key)
        told = pipeline.execute()
        return {key: (told[2 * at], told[2 * at + 1]) for at, key in enumerate(keys) if told[2 * at] is not None}

    def _restore(self) -> set[bytes]:
        now = self._dump()
        changed = {
            key for key in now.keys() | self._kept.keys() if now.get(key, (b"",))[0] != self._kept.get(key, (b"",))[0]
        }
        for key in changed:
            if key in self._kept:
                value, milliseconds = self._kept[key]
                self._redis.restore(key, max(0, milliseconds), value, replace=True)
            else:
                self._redis.delete(key)
        return changed


class _Environments(RequestFactory):
    """Makes what a server hands to the handler, instead of a request."""

    def request(self, **request: Any) -> Any:
        return self._base_environ(**request)


def _body_of(response: Any) -> bytes:
    if not response.streaming:
        return bytes(response.content)
    if not response.is_async:
        return b"".join(response.streaming_content)

    async def collected() -> bytes:
        return b"".join([part async for part in response.streaming_content])

    return async_to_sync(collected)()


def _text_of(response: HttpResponseBase, body: bytes) -> str:
    if body[:4] != b"PK\x03\x04":
        return body.decode(errors="replace")
    with zipfile.ZipFile(io.BytesIO(body)) as files:
        return "\n".join(name + "\n" + files.read(name).decode(errors="replace") for name in files.namelist())


# -- rows


def place_in_log() -> str:
    """How far Postgres has written of whatever changed: the same again means that nothing did."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn()")
        return str(cursor.fetchone()[0])


def rows() -> dict[str, frozenset[str]]:
    """Every row of every table that people or the site write."""
    with connection.cursor() as cursor:
        names = [name for name in connection.introspection.table_names(cursor) if name not in OF_MIGRATING]
        parts = [f"SELECT '{name}', row::text FROM {connection.ops.quote_name(name)} AS row" for name in names]
        cursor.execute(" UNION ALL ".join(parts))
        found: dict[str, set[str]] = {name: set() for name in names}
        for name, text in cursor.fetchall():
            found[name].add(text)
    return {name: frozenset(texts) for name, texts in found.items()}


def compared(before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]) -> dict[str, Change]:
    return {
        name: Change(before[name] - after[name], after[name] - before[name])
        for name in before
        if before[name] != after[name]
    }
