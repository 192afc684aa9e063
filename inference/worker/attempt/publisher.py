"""Writes the news of all attempts of this process into their logs, in one pipeline per flush.

Owns when news leave (the first text at once, then gathered), their being written exactly once, and patience while
Redis is away. Knows nothing of tokens' meaning. Task threads put news in; one thread of its own talks to Redis. What
Redis answers goes back into the attempts' inboxes: stop flag, refused ticket, finish written.

An entry carries its own seq, so one that is sent again after a lost reply is not written twice. A finish voids the
ticket; whether one of which the reply was lost is in, its log says.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

import structlog
from redis.exceptions import RedisError

from inference.config import InferenceConfig
from inference.coordination.event_log import Appended, EventLog
from inference.errors import EventsExpired
from inference.messages.generation import Delta, Event, Finish, TokenLogprob
from inference.worker.attempt.attempts import Attempt, Notice
from inference.worker.attempt.outbox import MAX_UNSENT_TOKENS, Outbox

log = structlog.get_logger(__name__)

PUBLISHER_MS = 5  # of STREAM_FLUSH_MS, to gather what several attempts have; the rest of it each gathers its own tokens
FIRST_RETRY_SECONDS = 0.05
MAX_RETRY_SECONDS = 1.0


class Publisher:
    """An attempt whose news could not be written for a whole lease is given up silently: another may hold it then."""

    def __init__(self, event_log: EventLog, config: InferenceConfig) -> None:
        self._event_log = event_log
        self._flush_seconds = min(config.flush_ms, PUBLISHER_MS) / 1000
        self._flush_tokens = config.flush_tokens
        self._patience_seconds = config.lease_seconds
        lock = threading.Lock()
        self._changed = threading.Condition(lock)  # news came, sooner than the thread would wake
        self._sent = threading.Condition(lock)  # something was written or given up
        self._outboxes: list[Outbox] = []
        self._wakes_at = math.inf
        self._retry_at = 0.0
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._stopping = False
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write what is due and end the thread. Attempts that are still open are given up."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def open(self, attempt: Attempt, last_seq: int) -> Outbox:
        outbox = Outbox(attempt, last_seq)
        with self._changed:
            self._outboxes.append(outbox)
        return outbox

    def close(self, outbox: Outbox) -> None:
        """Drop what was not sent. Called once, when the attempt ends."""
        with self._changed:
            outbox.is_open = False
            self._outboxes.remove(outbox)

    def put(self, outbox: Outbox, event: Event) -> None:
        """An event of another kind than delta or finish."""
        with self._changed:
            outbox.add(event, time.monotonic())
            self._wake(outbox)

    def put_deltas(
        self,
        outbox: Outbox,
        tokens: Sequence[int],
        deltas: Sequence[Delta],
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        with self._changed:
            outbox.add_deltas(
                tokens,
                deltas,
                logprobs,
                time.monotonic(),
                flush_seconds=self._flush_seconds,
                flush_tokens=self._flush_tokens,
            )
            self._wake(outbox)

    def finish(
        self,
        outbox: Outbox,
        finish: Finish,
        deltas: Sequence[Delta] = (),
        *,
        tokens: Sequence[int] = (),
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        """The last news, with the text that was held back until now. The inbox gets FINISHED or LOST within a lease.

        Both are one write: text in the log that belongs to no token would keep another attempt from going on.
        """
        with self._changed:
            outbox.end(finish, tokens, deltas, logprobs, time.monotonic())
            self._wake(outbox)
            if self._has_ended:
                self._give_up(outbox)

    def settle(self, outbox: Outbox, timeout: float) -> bool:
        """Whether everything put so far was written (or refused) within `timeout` seconds."""
        with self._changed:
            if outbox.has_news:
                outbox.due_at = time.monotonic()
                self._wake(outbox)
            return self._sent.wait_for(lambda: not outbox.has_news or not outbox.is_open, timeout)

    def _wake(self, outbox: Outbox) -> None:
        if outbox.due_at < self._wakes_at:
            self._changed.notify()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            try:
                self._send(batch)
            except RedisError as error:
                self._hold(batch, error)
            except Exception:  # edge of the thread all attempts rely on: these end, others go on
                log.exception("news_not_written", num_attempts=len(batch))
                for outbox in batch:
                    self._give_up(outbox)
            else:
                self._recovered(batch)
            with self._changed:
                self._sent.notify_all()
        with self._changed:
            self._has_ended = True
            for outbox in self._outboxes:
                self._give_up(outbox)  # whoever still waits for an answer must not wait for ever
            self._sent.notify_all()

    def _next_batch(self) -> list[Outbox] | None:
        """Wait until something is due; then everything gathered leaves with it. None: stopping, nothing due."""
        with self._changed:
            while True:
                now = time.monotonic()
                due_at = min((outbox.due_at for outbox in self._outboxes if outbox.is_open), default=math.inf)
                if due_at == math.inf and self._stopping:
                    return None
                self._wakes_at = max(due_at, self._retry_at)
                if self._wakes_at <= now:
                    batch = [outbox for outbox in self._outboxes if outbox.is_open and outbox.due_at < math.inf]
                    for outbox in batch:
                        outbox.load()
                    self._wakes_at = -math.inf  # nobody need wake a thread that is at work
                    return batch
                self._changed.wait(None if self._wakes_at == math.inf else self._wakes_at - now)

    def _send(self, batch: list[Outbox]) -> None:
        for outbox in batch:
            if outbox.is_finish_uncertain:
                self._look_for_finish(outbox)
        sending = [(outbox, event) for outbox in batch if outbox.is_open for event in outbox.under_way]
        entries = [(outbox.attempt.generation_id, outbox.attempt.ticket, event) for outbox, event in sending]
        results = self._event_log.append(entries) if entries else []
        for (outbox, event), appended in zip(sending, results, strict=True):
            self._take_answer(outbox, event, appended)
        for outbox in batch:
            if outbox.is_open and outbox.is_ending:
                self._send_finish(outbox)

    def _send_finish(self, outbox: Outbox) -> None:
        assert outbox.finish is not None
        attempt = outbox.attempt
        outbox.is_finish_uncertain = True
        appended = self._event_log.finish(attempt.generation_id, attempt.ticket, outbox.finish, outbox.last_delta)
        if appended.seq is None:
            self._give_up(outbox)
        else:
            self._finished(outbox)

    def _look_for_finish(self, outbox: Outbox) -> None:
        """A finish was sent and its reply lost: it is in, or another's is, or it has to be sent again."""
        try:
            finish = self._event_log.read(outbox.attempt.generation_id, outbox.last_seq).finish
        except EventsExpired:  # this Redis knows nothing of it any more: the sweeper enters it afresh
            self._give_up(outbox)
            return
        if finish is None:
            outbox.is_finish_uncertain = False
        elif finish == outbox.finish:
            self._finished(outbox)
        else:
            self._give_up(outbox)

    def _take_answer(self, outbox: Outbox, event: Event, appended: Appended) -> None:
        if not outbox.is_open:
            return
        if appended.seq is None:
            self._give_up(outbox)
            return
        if appended.seq != event.seq:
            log.error("log_out_of_step", generation=str(outbox.attempt.generation_id), seq=appended.seq, own=event.seq)
        outbox.acknowledge(event, appended.seq)
        if appended.stop:
            outbox.attempt.tell(Notice.STOP)

    def _finished(self, outbox: Outbox) -> None:
        outbox.is_open = False
        outbox.attempt.tell(Notice.FINISHED)

    def _give_up(self, outbox: Outbox) -> None:
        outbox.is_open = False
        outbox.attempt.tell(Notice.LOST)

    def _hold(self, batch: list[Outbox], error: RedisError) -> None:
        """Redis did not answer: keep everything and try again soon, but no longer than the lease can live."""
        now = time.monotonic()
        if all(outbox.failing_since is None for outbox in batch):
            log.warning("news_held", num_attempts=len(batch), error=type(error).__name__)
        with self._changed:
            for outbox in batch:
                outbox.failing_since = outbox.failing_since or now
                waited = now - outbox.failing_since
                if waited > self._patience_seconds or outbox.num_unsent_tokens > MAX_UNSENT_TOKENS:
                    log.warning("attempt_given_up", generation=str(outbox.attempt.generation_id), waited_seconds=waited)
                    self._give_up(outbox)
                elif outbox.is_open:
                    outbox.due_at = now
            self._retry_at = now + self._retry_seconds
            self._retry_seconds = min(self._retry_seconds * 2, MAX_RETRY_SECONDS)

    def _recovered(self, batch: list[Outbox]) -> None:
        if self._retry_at:
            log.info("news_flow_again", num_attempts=len(batch))
            self._retry_at = 0.0
            self._retry_seconds = FIRST_RETRY_SECONDS
        for outbox in batch:
            outbox.failing_since = None
