"""/metrics in Prometheus text form: what this web process counted, and what Postgres and Redis say now.

A service that is away is a gauge at 0 and its own numbers are left out; the page itself always answers. Called by
probes, from any thread.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter as Tally
from collections.abc import Iterator

import psycopg
from django.utils import timezone
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from chatsite.audit import log as audit_log
from chatsite.chat.actions import feedback
from chatsite.chat.streams import hub
from chatsite.ops import database, health
from chatsite.usage import quotas
from chatsite.usage.calendar import day_of

RECENT_SECONDS = 3_600

counted = CollectorRegistry()
RESPONSES = Counter("smolfleet_http_responses", "Responses of Django's pages", ["method", "status"], registry=counted)
RESPONSE_SECONDS = Histogram(
    "smolfleet_http_response_seconds",
    "Time to a response of Django's pages",
    buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    registry=counted,
)


def text() -> bytes:
    now = CollectorRegistry()
    now.register(_Now())
    return b"".join(map(generate_latest, (counted, audit_log.counted, feedback.counted, quotas.counted, now)))


def first_id_since(seconds: float) -> uuid.UUID:
    """The smallest UUIDv7 of that long ago: ids carry their time, so the primary key finds recent rows."""
    ms = int((time.time() - seconds) * 1000)
    return uuid.UUID(int=ms << 80 | 0x7 << 76 | 0x2 << 62)


class _Now(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        seen = health.look()
        up = GaugeMetricFamily("smolfleet_up", "1 while the service answers", labels=["service"])
        for name, check in (("postgres", seen.postgres), ("redis", seen.redis), ("site_worker", seen.site_worker)):
            up.add_metric([name], float(check.ok))
        up.add_metric(["worker"], float(bool(seen.usable)))
        yield up
        yield GaugeMetricFamily("smolfleet_ready", "1 while a message sent now would be answered", seen.is_ready)
        yield GaugeMetricFamily("smolfleet_viewers", "Streams open in this web process", hub.num_viewers())
        if seen.redis.ok:
            yield from self._fleet(seen)
            waiting = GaugeMetricFamily("smolfleet_waiting", "Generations in the waiting room", labels=["model"])
            for model, number in seen.num_waiting.items():
                waiting.add_metric([model], number)
            yield waiting
        if seen.postgres.ok:
            yield from self._generations()

    def _fleet(self, seen: health.Health) -> Iterator[GaugeMetricFamily]:
        workers = GaugeMetricFamily("smolfleet_workers", "Live GPU workers", labels=["model", "state"])
        tally = Tally((w.model.name, w.state) for w in seen.workers)
        for labels, number in tally.items():
            workers.add_metric(list(labels), number)
        yield workers
        slots = GaugeMetricFamily("smolfleet_slots", "Slots of a worker", labels=["worker", "model"])
        free = GaugeMetricFamily("smolfleet_free_slots", "Free slots of a worker", labels=["worker", "model"])
        tokens = GaugeMetricFamily(
            "smolfleet_decoded_tokens", "Tokens a worker decoded since it started", labels=["worker", "model"]
        )
        degradations = GaugeMetricFamily(
            "smolfleet_worker_degradations",
            "Ways in which a worker is less than it should be",
            labels=["worker", "model"],
        )
        for w in seen.workers:
            degradations.add_metric([w.name, w.model.name], len(w.degradations))
            slots.add_metric([w.name, w.model.name], w.num_slots)
            free.add_metric([w.name, w.model.name], w.num_free_slots)
            tokens.add_metric([w.name, w.model.name], w.num_decoded_tokens)
        yield from (slots, free, tokens, degradations)

    def _generations(self) -> Iterator[GaugeMetricFamily]:
        try:
            active, eldest, recent, charged = database.ask(
                ("SELECT model, count(*) FROM chat_generation WHERE status = 'active' GROUP BY model", ()),
                (
                    "SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0)"
                    " FROM chat_generation WHERE status = 'active'",
                    (),
                ),
                (
                    "SELECT status, count(*) FROM chat_generation WHERE id >= %s GROUP BY status",
                    (first_id_since(RECENT_SECONDS),),
                ),
                (
                    "SELECT model, source, sum(charged_tokens) FROM usage_usageday WHERE day = %s"
                    " GROUP BY model, source",
                    (day_of(timezone.now()),),
                ),
            )
        except psycopg.Error:  # it went away just now; the next scrape says so
            return
        running = GaugeMetricFamily("smolfleet_generations_active", "Generations that have not ended", labels=["model"])
        for model, number in active:
            running.add_metric([model], number)
        yield running
        yield GaugeMetricFamily("smolfleet_oldest_active_seconds", "Age of the eldest active one", float(eldest[0][0]))
        begun = GaugeMetricFamily(
            "smolfleet_generations_recent", "Generations begun within the last hour, by status", labels=["status"]
        )
        for status, number in recent:
            begun.add_metric([status], number)
        yield begun
        # From the ledger: answers end in the site worker, whose own counters nobody scrapes.
        tokens = GaugeMetricFamily(
            "smolfleet_charged_tokens_today",
            "Tokens that count against quotas, of answers ended since midnight",
            labels=["model", "source"],
        )
        for model, source, number in charged:
            tokens.add_metric([model, source], float(number))
        yield tokens
