"""The life of one generation under random mishaps, on the real scripts and a real server.

Drives what the protocol's model explores: two workers that may die (or say first that they give up), be slow or drain,
leases that lapse at any time, lost and repeated doorbells and records, a user's stop with the web process dying before
Redis, a late submit, the sweeper, a recorder dying between commit and its entry, the loss of everything in Redis, and a
viewer with a cursor.
Checks after every step that the log and the stored text have no hole, repeat or mix, that there is at most one end, and
that the viewer saw what is stored; and at the end that every story can still end.

Not covered: Postgres (one row in memory stands for it), threads, the clock (lapses are forced).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import redis as redis_py
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from inference import celery, keys
from inference.client import InferenceClient, Swept
from inference.config import InferenceConfig
from inference.errors import EventsExpired
from inference.event_log import EventLog, parse_news
from inference.lease import Leases
from inference.log import Log
from inference.protocol import Event, EventKind, Finish, FinishReason
from inference.waiting_room import Claim, WaitingRoom
from tests.coordination.cast import NUM_TOKENS, Budget, Row, Services, Viewer, Worker, tokens_of
from tests.coordination.conftest import MODEL, delta, make_request

STATUS = {FinishReason.STOP: "done", FinishReason.CANCELLED: "stopped", FinishReason.ERROR: "failed"}
SITE_BELLS = f"{keys.CELERY_PREFIX}{celery.SITE_QUEUE}"


class Life(RuleBasedStateMachine):
    def __init__(self, services: Services) -> None:
        super().__init__()
        self.s = services
        self.s.redis.flushall()
        self.request = make_request()
        self.id = self.request.id
        self.row, self.viewer, self.budget = Row(), Viewer(), Budget()
        self.workers = [Worker(), Worker()]
        self.is_sent = False
        self.is_record_pending = False
        self.published: dict[str, list[Event]] = {}
        self.latest: Log | None = None
        self.news = self.s.redis.pubsub()
        self.news.subscribe(keys.news(self.id))
        self._drain_news()

    # Each step that can be taken now, as in the model; one rule draws among them, so that none is spent on nothing.
    # Each story has its own few kinds of mishaps: with all kinds in all stories most end before two of them meet.

    @initialize(
        budget=st.builds(
            Budget,
            kills=st.sampled_from([0, 0, 2]),
            lapses=st.sampled_from([0, 2, 4]),
            wipes=st.sampled_from([0, 0, 1, 2]),
            drains=st.sampled_from([0, 0, 2]),
            web_deaths=st.sampled_from([0, 0, 1]),
            late_submits=st.sampled_from([0, 0, 2]),
            losses=st.sampled_from([0, 0, 2]),
            stops=st.sampled_from([0, 0, 1]),
        )
    )
    def begin(self, budget: Budget) -> None:
        self.budget = budget

    @rule(number=st.integers(0, 2**20))
    def step(self, number: int) -> None:
        steps = list(self._steps())
        name, action = steps[number % len(steps)]
        note(name)
        action()

    def _steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        yield from self._web_steps()
        for index, worker in enumerate(self.workers):
            yield from self._worker_steps(index, worker)
        yield from self._mishaps()
        yield from self._site_steps()
        if not self.viewer.has_seen_end and self._has_news():
            yield "view one", lambda: self.view(1)
            yield "view all", lambda: self.view(9)

    def _has_news(self) -> bool:
        log = self.latest
        is_behind = log and (log.mark != self.viewer.mark or len(log.events) > self.viewer.last)
        return bool(is_behind) or self.row.status != "active"

    def _web_steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        if not self.is_sent:
            yield "submit", self.submit
            if self.budget.web_deaths:
                yield "web dies before submit", self.web_dies_before_submit
        elif self.budget.late_submits:
            yield "late submit", self.late_submit
        if self.row.status == "active" and not self.row.stop and self.budget.stops:
            yield "stop", lambda: self.stop(True)
            yield "stop, web dies before Redis", lambda: self.stop(False)

    def _worker_steps(self, index: int, worker: Worker) -> Iterator[tuple[str, Callable[[], object]]]:
        if worker.phase == "idle" and self.s.redis.llen(keys.bells(MODEL)):
            yield f"claim {index}", lambda: self.claim(index)
        if worker.phase == "claimed":
            yield f"read log {index}", lambda: self.read_log(index)
        if worker.phase == "running" and worker.is_over:
            yield f"finish {index}", lambda: self.finish(index)
        if worker.phase == "running" and not worker.is_over:
            yield f"write {index}", lambda: self.write(index)
            yield f"write with seq {index}", lambda: self.write(index, is_numbered=True)
            yield f"write twice {index}", lambda: self.write(index, is_numbered=True, loses_answer=True)
        if worker.phase == "ended":
            yield f"send record {index}", lambda: self.send_record(index)
        if worker.phase == "running":
            yield f"renew {index}", lambda: self.renew(index)
        if worker.phase in ("claimed", "running") and self.budget.drains:
            yield f"release {index}", lambda: self.release(index)
        if worker.phase in ("claimed", "running") and self.budget.kills:
            yield f"give up {index}", lambda: self.give_up(index)
        if worker.phase == "given up":
            yield f"re-enter {index}", lambda: self.reenter(index)
        if worker.phase != "idle" and self.budget.kills:
            yield f"kill {index}", lambda: self.kill(index)

    def _mishaps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        if self.budget.lapses and self.s.redis.zcard(keys.LEASES):
            yield "lease lapses", self.lease_lapses
        if self.budget.wipes and self.s.redis.exists(keys.generation(self.id)):
            yield "Redis loses everything", self.redis_loses_everything
        for name in (keys.bells(MODEL), SITE_BELLS):
            if self.budget.losses and self.s.redis.llen(name):
                yield f"lose a message of {name}", lambda name=name: self.lose_message(name)

    def _site_steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        if not self.is_record_pending and self.s.redis.llen(SITE_BELLS):
            yield "record commits", self.record_commits
            yield "record delivered twice", lambda: self.record_commits(is_delivered_again=True)
        if self.is_record_pending:
            yield "recorded written", self.write_recorded
            yield "recorder dies before its entry", lambda: self.write_recorded(dies=True)
        if self.is_sent:
            yield "sweep", self.sweep

    # web

    def submit(self) -> None:
        self.s.client.submit(self.request)
        self.is_sent = True

    def web_dies_before_submit(self) -> None:
        self.is_sent, self.budget.web_deaths = True, 0

    def late_submit(self) -> None:
        """A web process that was held up for long; the row may have ended and the log be gone."""
        self.budget.late_submits -= 1
        self.s.client.submit(self.request)

    def stop(self, reaches_redis: bool) -> None:
        self.row.stop = True
        if reaches_redis:
            self.s.client.cancel(self.id)

    # workers

    def _take_message(self, name: str) -> bool:
        data = self.s.redis.rpop(name)
        if data is None:
            return False
        assert json.loads(data)["headers"]["task"] in (celery.GENERATE_TASK, celery.RECORD_TASK)
        return True

    def claim(self, index: int) -> None:
        if self._take_message(keys.bells(MODEL)):
            claim = self.s.room.claim(MODEL, f"worker-{index}")
            if isinstance(claim, Claim):
                assert claim.request == self.request
                self.workers[index] = Worker("claimed", claim)

    def read_log(self, index: int) -> None:
        try:
            log = self.s.log.read(self.id)
        except EventsExpired:
            self.workers[index] = Worker()
            return
        self.workers[index].phase = "running"
        self.workers[index].seq = log.events[-1].seq if log.events else 0

    def write(self, index: int, is_numbered: bool = False, loses_answer: bool = False) -> None:
        worker = self.workers[index]
        event = delta(f"{worker.claim.mark}/{worker.seq + 1}", worker.seq + 1 if is_numbered else 0)
        (appended,) = self.s.log.append([(self.id, worker.claim.ticket, event)])
        if loses_answer:
            (again,) = self.s.log.append([(self.id, worker.claim.ticket, event)])
            assert again.seq == appended.seq
        if appended.seq is None:
            self.workers[index] = Worker()
            return
        worker.seq += 1
        worker.sees_stop |= appended.stop

    def finish(self, index: int) -> None:
        worker = self.workers[index]
        reason = FinishReason.CANCELLED if worker.sees_stop else FinishReason.STOP
        appended = self.s.log.finish(self.id, worker.claim.ticket, Finish(reason=reason))
        if appended.seq is None:
            self.workers[index] = Worker()
        else:
            worker.phase = "ended"

    def renew(self, index: int) -> None:
        worker = self.workers[index]
        (renewal,) = self.s.leases.renew([(self.id, worker.claim.ticket)])
        worker.sees_stop |= renewal.stop and renewal.held

    def send_record(self, index: int) -> None:
        self.s.send_record(self.id)
        self.workers[index] = Worker()

    def release(self, index: int) -> None:
        self.budget.drains -= 1
        if self.s.room.release(self.id, self.workers[index].claim.ticket):
            self.s.client.ring(MODEL)
        self.workers[index] = Worker()

    def give_up(self, index: int) -> None:
        """Its engine died; it can still say so."""
        self.budget.kills -= 1
        given_up = self.s.leases.give_up(self.id, self.workers[index].claim.ticket)
        self.workers[index] = Worker(phase="given up" if given_up else "idle")

    def reenter(self, index: int) -> None:
        if self.s.room.reenter(self.id):
            self.s.client.ring(MODEL)
        self.workers[index] = Worker()

    def kill(self, index: int) -> None:
        self.budget.kills -= 1
        self.workers[index] = Worker()

    # mishaps

    def lease_lapses(self) -> None:
        self.budget.lapses -= 1
        assert self.s.leases.lapse(self.id, force=True)

    def redis_loses_everything(self) -> None:
        self.budget.wipes -= 1
        self.s.redis.flushall()

    def lose_message(self, name: str) -> None:
        self.budget.losses -= 1
        self.s.redis.rpop(name)

    # site worker

    def record_commits(self, is_delivered_again: bool = False) -> None:
        if not self._take_message(SITE_BELLS):
            return
        if is_delivered_again:
            self.s.send_record(self.id)
        log = self._read()
        if log and log.finish:
            self.row.end(STATUS[log.finish.reason], tokens_of(log.events))
            self.is_record_pending = True

    def write_recorded(self, dies: bool = False) -> None:
        self.is_record_pending = False
        if not dies:
            self.s.client.record(self.id)

    def sweep(self) -> None:
        if self.row.status != "active":
            standing = self.s.client.standing(self.id)
            if standing.state == "finished":
                self.is_record_pending |= not standing.is_recorded
            elif standing.state != "unknown":
                self.s.client.end(self.id, Finish(reason=FinishReason.CANCELLED))
            return
        swept = self.s.client.sweep(self.id, stop_requested=self.row.stop)
        if swept in (Swept.FINISHED, Swept.ENDED):
            self.s.send_record(self.id)
        elif swept is Swept.UNKNOWN and self.row.stop:
            self.row.end("stopped")
        elif swept is Swept.UNKNOWN:
            self.s.client.submit(self.request)

    # viewer

    def view(self, num_events: int) -> None:
        viewer = self.viewer
        log = self._read()
        is_other = (log.mark if log else "") != viewer.mark
        if self.row.status != "active" and (is_other or not log or not log.events):
            viewer.shown, viewer.has_seen_end = self.row.text, True
            return
        if not log:
            return
        for event in [e for e in log.events if is_other or e.seq > viewer.last][:num_events]:
            if log.mark != viewer.mark:
                viewer.mark, viewer.shown = log.mark, ()
            viewer.last = event.seq
            viewer.shown += tuple(d.text for d in event.deltas)
            viewer.has_seen_end = event.kind is EventKind.RECORDED

    # what must hold after every step

    def _read(self) -> Log | None:
        try:
            return self.s.client.read(self.id)
        except EventsExpired:
            return None

    def _drain_news(self) -> None:
        """Take all that was published so far: what comes before the answer to a ping."""
        self.news.ping("end")
        while True:
            message = self.news.get_message(timeout=5)
            assert message is not None, "Redis did not answer a ping"
            if message["type"] == "pong":
                return
            if message["type"] == "message":
                mark, event = parse_news(message["data"])
                self.published.setdefault(mark, []).append(event)

    @invariant()
    def nothing_is_broken(self) -> None:
        self._drain_news()
        self.latest = log = self._read()
        if log:
            assert [event.seq for event in log.events] == list(range(1, len(log.events) + 1)), "the log has a hole"
            assert list(log.events) == self.published.get(log.mark, []), "news and log differ"
            whole = tuple(f"{log.mark}/{n}" for n in range(1, NUM_TOKENS + 1))
            assert tokens_of(log.events) == whole[: len(tokens_of(log.events))], "the log mixes or repeats"
            kinds = [event.kind for event in log.events if event.kind is not EventKind.DELTA]
            assert kinds == [EventKind.FINISH, EventKind.RECORDED][: len(kinds)], "an entry after the end"
        assert len({text.partition("/")[0] for text in self.row.text}) <= 1, "the stored text mixes two logs"
        numbers = [int(text.partition("/")[2]) for text in self.row.text]
        assert numbers == list(range(1, len(numbers) + 1)), "the stored text has a hole or a repeat"
        assert self.row.num_commits <= 1, "ended twice"
        if self.viewer.has_seen_end:
            assert self.row.status != "active", "the viewer saw the end before it was durable"
            assert self.viewer.shown == self.row.text, "the viewer's text differs from the stored one"
        if self.row.status == "done":
            assert len(self.row.text) == NUM_TOKENS, "done but incomplete"
        own = [k for k in self.s.redis.keys(f"{keys.PREFIX}*") if not k.startswith(keys.CELERY_PREFIX.encode())]
        with self.s.redis.pipeline() as pipeline:
            for key in own:
                pipeline.pttl(key)
            assert -1 not in pipeline.execute(), f"a key of {own} never expires"

    def teardown(self) -> None:
        try:
            self._can_still_end()
        finally:
            self.news.close()

    def _can_still_end(self) -> None:
        """Everyone goes on without further mishaps."""
        self.is_sent, self.budget = True, Budget()
        for _ in range(60):
            if self.row.status != "active" and self.viewer.has_seen_end:
                break
            for index in range(len(self.workers)):
                for name, action in list(self._worker_steps(index, self.workers[index]))[:1]:
                    note(f"(end) {name}")
                    action()
            standing = self.s.client.standing(self.id)
            holders = {f"worker-{i}" for i, worker in enumerate(self.workers) if worker.phase != "idle"}
            if standing.state == "leased" and standing.worker not in holders:
                self.s.leases.lapse(self.id, force=True)
            for _, action in list(self._site_steps())[:1]:
                action()
            self.sweep()
            if not self.viewer.has_seen_end:
                self.view(9)
            self.nothing_is_broken()
        assert self.row.status != "active", "never ended"
        assert self.viewer.has_seen_end, "the viewer never saw the end"
        assert self.viewer.shown == self.row.text


def test_no_mishap_loses_doubles_or_mixes_an_answer(
    redis: redis_py.Redis, config: InferenceConfig, room: WaitingRoom, leases: Leases, log: EventLog
) -> None:
    client = InferenceClient(config, ring_again_ms=0)
    services = Services(redis, client, room, leases, log, celery.producer(config))
    profile = settings(
        max_examples=100,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # add Phase.shrink to shorten a story that was found; it takes minutes
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(lambda: Life(services), settings=profile)
    finally:
        client.close()
        services.site.close()
