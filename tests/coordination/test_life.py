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

from collections.abc import Callable, Iterator

import redis as redis_py
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from inference import celery
from inference.client import InferenceClient
from inference.config import InferenceConfig
from inference.coordination import redis_keys
from inference.coordination.event_log import EventLog, parse_news
from inference.coordination.lease import Leases
from inference.coordination.log_view import Log
from inference.coordination.waiting_room import WaitingRoom
from inference.messages.generation import Event, EventKind
from tests.coordination.cast import NUM_TOKENS, Budget, Services, Worker, tokens_of
from tests.coordination.conftest import MODEL
from tests.coordination.story import SITE_BELLS, Story


class Life(RuleBasedStateMachine):
    def __init__(self, services: Services) -> None:
        super().__init__()
        self.story = Story(services)
        self.published: dict[str, list[Event]] = {}
        self.latest: Log | None = None
        self.news = self.story.services.redis.pubsub()
        self.news.subscribe(redis_keys.news(self.story.id))
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
        self.story.budget = budget

    @rule(number=st.integers(0, 2**20))
    def step(self, number: int) -> None:
        steps = list(self._steps())
        name, action = steps[number % len(steps)]
        note(name)
        action()

    def _steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        story = self.story
        yield from self._web_steps()
        for index, worker in enumerate(story.workers):
            yield from self._worker_steps(index, worker)
        yield from self._mishaps()
        yield from self._site_steps()
        if not story.viewer.has_seen_end and self._has_news():
            yield "view one", lambda: story.view(1)
            yield "view all", lambda: story.view(9)

    def _has_news(self) -> bool:
        story = self.story
        log = self.latest
        is_behind = log and (log.mark != story.viewer.mark or len(log.events) > story.viewer.last)
        return bool(is_behind) or story.row.status != "active"

    def _web_steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        story = self.story
        if not story.is_sent:
            yield "submit", story.submit
            if story.budget.web_deaths:
                yield "web dies before submit", story.web_dies_before_submit
        elif story.budget.late_submits:
            yield "late submit", story.late_submit
        if story.row.status == "active" and not story.row.stop and story.budget.stops:
            yield "stop", lambda: story.stop(True)
            yield "stop, web dies before Redis", lambda: story.stop(False)

    def _worker_steps(self, index: int, worker: Worker) -> Iterator[tuple[str, Callable[[], object]]]:
        story = self.story
        if worker.phase == "idle" and story.services.redis.llen(redis_keys.bells(MODEL)):
            yield f"claim {index}", lambda: story.claim(index)
        if worker.phase == "claimed":
            yield f"read log {index}", lambda: story.read_log(index)
        if worker.phase == "running" and worker.is_over:
            yield f"finish {index}", lambda: story.finish(index)
        if worker.phase == "running" and not worker.is_over:
            yield f"write {index}", lambda: story.write(index)
            yield f"write with seq {index}", lambda: story.write(index, is_numbered=True)
            yield f"write twice {index}", lambda: story.write(index, is_numbered=True, loses_answer=True)
        if worker.phase == "ended":
            yield f"send record {index}", lambda: story.send_record(index)
        if worker.phase == "running":
            yield f"renew {index}", lambda: story.renew(index)
        if worker.phase in ("claimed", "running") and story.budget.drains:
            yield f"release {index}", lambda: story.release(index)
        if worker.phase in ("claimed", "running") and story.budget.kills:
            yield f"give up {index}", lambda: story.give_up(index)
        if worker.phase == "given up":
            yield f"re-enter {index}", lambda: story.reenter(index)
        if worker.phase != "idle" and story.budget.kills:
            yield f"kill {index}", lambda: story.kill(index)

    def _mishaps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        story = self.story
        if story.budget.lapses and story.services.redis.zcard(redis_keys.LEASES):
            yield "lease lapses", story.lease_lapses
        if story.budget.wipes and story.services.redis.exists(redis_keys.generation(story.id)):
            yield "Redis loses everything", story.redis_loses_everything
        for name in (redis_keys.bells(MODEL), SITE_BELLS):
            if story.budget.losses and story.services.redis.llen(name):
                yield f"lose a message of {name}", lambda name=name: story.lose_message(name)

    def _site_steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        story = self.story
        if not story.is_record_pending and story.services.redis.llen(SITE_BELLS):
            yield "record commits", story.record_commits
            yield "record delivered twice", lambda: story.record_commits(is_delivered_again=True)
        if story.is_record_pending:
            yield "recorded written", story.write_recorded
            yield "recorder dies before its entry", lambda: story.write_recorded(dies=True)
        if story.is_sent:
            yield "sweep", story.sweep

    # what must hold after every step

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
        story = self.story
        self._drain_news()
        self.latest = log = story.read()
        if log:
            assert [event.seq for event in log.events] == list(range(1, len(log.events) + 1)), "the log has a hole"
            assert list(log.events) == self.published.get(log.mark, []), "news and log differ"
            whole = tuple(f"{log.mark}/{n}" for n in range(1, NUM_TOKENS + 1))
            assert tokens_of(log.events) == whole[: len(tokens_of(log.events))], "the log mixes or repeats"
            kinds = [event.kind for event in log.events if event.kind is not EventKind.DELTA]
            assert kinds == [EventKind.FINISH, EventKind.RECORDED][: len(kinds)], "an entry after the end"
        assert len({text.partition("/")[0] for text in story.row.text}) <= 1, "the stored text mixes two logs"
        numbers = [int(text.partition("/")[2]) for text in story.row.text]
        assert numbers == list(range(1, len(numbers) + 1)), "the stored text has a hole or a repeat"
        assert story.row.num_commits <= 1, "ended twice"
        if story.viewer.has_seen_end:
            assert story.row.status != "active", "the viewer saw the end before it was durable"
            assert story.viewer.shown == story.row.text, "the viewer's text differs from the stored one"
        if story.row.status == "done":
            assert len(story.row.text) == NUM_TOKENS, "done but incomplete"
        own = [
            k
            for k in story.services.redis.keys(f"{redis_keys.PREFIX}*")
            if not k.startswith(redis_keys.CELERY_PREFIX.encode())
        ]
        with story.services.redis.pipeline() as pipeline:
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
        story = self.story
        story.is_sent, story.budget = True, Budget()
        for _ in range(60):
            if story.row.status != "active" and story.viewer.has_seen_end:
                break
            for index in range(len(story.workers)):
                for name, action in list(self._worker_steps(index, story.workers[index]))[:1]:
                    note(f"(end) {name}")
                    action()
            standing = story.services.client.standing(story.id)
            holders = {f"worker-{i}" for i, worker in enumerate(story.workers) if worker.phase != "idle"}
            if standing.state == "leased" and standing.worker not in holders:
                story.services.leases.lapse(story.id, force=True)
            for _, action in list(self._site_steps())[:1]:
                action()
            story.sweep()
            if not story.viewer.has_seen_end:
                story.view(9)
            self.nothing_is_broken()
        assert story.row.status != "active", "never ended"
        assert story.viewer.has_seen_end, "the viewer never saw the end"
        assert story.viewer.shown == story.row.text


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
