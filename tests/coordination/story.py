"""The story of one generation: all that can happen in it, each on the real scripts and a real server.

`test_life` draws what happens next, and checks after each step what must hold.
"""

from __future__ import annotations

import json

from inference import celery
from inference.client import Swept
from inference.coordination import redis_keys
from inference.coordination.log_view import Log
from inference.coordination.waiting_room import Claim
from inference.errors import EventsExpired
from inference.messages.generation import EventKind, Finish, FinishReason
from tests.coordination.cast import Budget, Row, Services, Viewer, Worker, tokens_of
from tests.coordination.conftest import MODEL, delta, make_request

STATUS = {FinishReason.STOP: "done", FinishReason.CANCELLED: "stopped", FinishReason.ERROR: "failed"}
SITE_BELLS = f"{redis_keys.CELERY_PREFIX}{celery.SITE_QUEUE}"


class Story:
    """What everyone who takes part holds, and every step that one of them may take or suffer.

    Which steps are possible now, and whether their budget allows them, the caller knows.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.services.redis.flushall()
        self.request = make_request()
        self.id = self.request.id
        self.row, self.viewer, self.budget = Row(), Viewer(), Budget()
        self.workers = [Worker(), Worker()]
        self.is_sent = False
        self.is_record_pending = False

    def read(self) -> Log | None:
        """The log as the site sees it; none once it has expired."""
        try:
            return self.services.client.read(self.id)
        except EventsExpired:
            return None

    # web

    def submit(self) -> None:
        self.services.client.submit(self.request)
        self.is_sent = True

    def web_dies_before_submit(self) -> None:
        self.is_sent, self.budget.web_deaths = True, 0

    def late_submit(self) -> None:
        """A web process that was held up for long; the row may have ended and the log be gone."""
        self.budget.late_submits -= 1
        self.services.client.submit(self.request)

    def stop(self, reaches_redis: bool) -> None:
        self.row.stop = True
        if reaches_redis:
            self.services.client.cancel(self.id)

    # workers

    def _take_message(self, name: str) -> bool:
        data = self.services.redis.rpop(name)
        if data is None:
            return False
        assert json.loads(data)["headers"]["task"] in (celery.GENERATE_TASK, celery.RECORD_TASK)
        return True

    def claim(self, index: int) -> None:
        if self._take_message(redis_keys.bells(MODEL)):
            claim = self.services.room.claim(MODEL, f"worker-{index}")
            if isinstance(claim, Claim):
                assert claim.request == self.request
                self.workers[index] = Worker("claimed", claim)

    def read_log(self, index: int) -> None:
        try:
            log = self.services.log.read(self.id)
        except EventsExpired:
            self.workers[index] = Worker()
            return
        self.workers[index].phase = "running"
        self.workers[index].seq = log.events[-1].seq if log.events else 0

    def write(self, index: int, is_numbered: bool = False, loses_answer: bool = False) -> None:
        worker = self.workers[index]
        event = delta(f"{worker.claim.mark}/{worker.seq + 1}", worker.seq + 1 if is_numbered else 0)
        (appended,) = self.services.log.append([(self.id, worker.claim.ticket, event)])
        if loses_answer:
            (again,) = self.services.log.append([(self.id, worker.claim.ticket, event)])
            assert again.seq == appended.seq
        if appended.seq is None:
            self.workers[index] = Worker()
            return
        worker.seq += 1
        worker.sees_stop |= appended.stop

    def finish(self, index: int) -> None:
        worker = self.workers[index]
        reason = FinishReason.CANCELLED if worker.sees_stop else FinishReason.STOP
        appended = self.services.log.finish(self.id, worker.claim.ticket, Finish(reason=reason))
        if appended.seq is None:
            self.workers[index] = Worker()
        else:
            worker.phase = "ended"

    def renew(self, index: int) -> None:
        worker = self.workers[index]
        (renewal,) = self.services.leases.renew([(self.id, worker.claim.ticket)])
        worker.sees_stop |= renewal.stop and renewal.held

    def send_record(self, index: int) -> None:
        self.services.send_record(self.id)
        self.workers[index] = Worker()

    def release(self, index: int) -> None:
        self.budget.drains -= 1
        if self.services.room.release(self.id, self.workers[index].claim.ticket):
            self.services.client.ring(MODEL)
        self.workers[index] = Worker()

    def give_up(self, index: int) -> None:
        """Its engine died; it can still say so."""
        self.budget.kills -= 1
        given_up = self.services.leases.give_up(self.id, self.workers[index].claim.ticket)
        self.workers[index] = Worker(phase="given up" if given_up else "idle")

    def reenter(self, index: int) -> None:
        if self.services.room.reenter(self.id):
            self.services.client.ring(MODEL)
        self.workers[index] = Worker()

    def kill(self, index: int) -> None:
        self.budget.kills -= 1
        self.workers[index] = Worker()

    # mishaps

    def lease_lapses(self) -> None:
        self.budget.lapses -= 1
        assert self.services.leases.lapse(self.id, force=True)

    def redis_loses_everything(self) -> None:
        self.budget.wipes -= 1
        self.services.redis.flushall()

    def lose_message(self, name: str) -> None:
        self.budget.losses -= 1
        self.services.redis.rpop(name)

    # site worker

    def record_commits(self, is_delivered_again: bool = False) -> None:
        if not self._take_message(SITE_BELLS):
            return
        if is_delivered_again:
            self.services.send_record(self.id)
        log = self.read()
        if log and log.finish:
            self.row.end(STATUS[log.finish.reason], tokens_of(log.events))
            self.is_record_pending = True

    def write_recorded(self, dies: bool = False) -> None:
        self.is_record_pending = False
        if not dies:
            self.services.client.record(self.id)

    def sweep(self) -> None:
        if self.row.status != "active":
            standing = self.services.client.standing(self.id)
            if standing.state == "finished":
                self.is_record_pending |= not standing.is_recorded
            elif standing.state != "unknown":
                self.services.client.end(self.id, Finish(reason=FinishReason.CANCELLED))
            return
        swept = self.services.client.sweep(self.id, stop_requested=self.row.stop)
        if swept in (Swept.FINISHED, Swept.ENDED):
            self.services.send_record(self.id)
        elif swept is Swept.UNKNOWN and self.row.stop:
            self.row.end("stopped")
        elif swept is Swept.UNKNOWN:
            self.services.client.submit(self.request)

    # viewer

    def view(self, num_events: int) -> None:
        viewer = self.viewer
        log = self.read()
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
