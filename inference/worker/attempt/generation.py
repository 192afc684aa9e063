"""One attempt at a generation, start to finish: prompt -> engine -> output -> log.

Owns the attempt's text state and how it ends. Runs in a Celery task thread, so all text work is off the engine's
thread; the engine and everybody else speak to it through the attempt's inbox. Knows nothing of Celery, and of Redis
only the log.

An attempt that finds tokens in the log goes on behind them: it replays them silently, and since the same tokens give
the same text, the next entry continues what viewers already have.
"""

from __future__ import annotations

import time
from queue import Empty
from typing import assert_never

import numpy as np
import structlog

from inference import metrics
from inference.engine.engine import Engine
from inference.engine.request import Ended, Reading, Submission
from inference.errors import EngineDied, EngineStopped, EventsExpired, InvalidRequest
from inference.messages.generation import (
    Cut,
    Delta,
    ErrorFacts,
    Event,
    EventKind,
    Finish,
    FinishReason,
    TokenLogprob,
    Usage,
)
from inference.worker.attempt import release
from inference.worker.attempt.assistant_prefix import Recital
from inference.worker.attempt.attempts import Arrived, Attempt, Notice
from inference.worker.attempt.context import Workbench, hint
from inference.worker.attempt.input_processor import Preparation
from inference.worker.attempt.output_processor import AnswerText
from inference.worker.attempt.publisher import PUBLISHER_MS
from inference.worker.attempt.timings import Stopwatch

log = structlog.get_logger(__name__)

MIN_PROGRESS_TOKENS = 256  # a prompt with less to read is read before anybody could see how far it is
PROGRESS_SECONDS = 0.25  # between two progress events

WORKER_FAULT = ErrorFacts(code="worker_fault", message="The worker failed while writing this answer.", retryable=True)
TEXT_DIFFERS = ErrorFacts(
    code="text_differs", message="Another worker's model reads the text written so far differently.", retryable=True
)


class Generation:
    """`run` it once. Afterwards the generation is finished in the log, handed on, or somebody else's."""

    def __init__(self, bench: Workbench, attempt: Attempt) -> None:
        self._bench = bench
        self._attempt = attempt
        self._request = attempt.request
        self._num_prompt_tokens = 0
        self._num_dropped = 0
        self._num_given = 0  # tokens of the answer's beginning that are not the model's
        self._num_cached: int | None = None
        self._engine: Engine | Recital = bench.engine
        self._cut: Cut = ""  # which limit the engine's own `length` would mean
        self._is_in_engine = False
        self._is_finishing = False
        self._has_text = False
        self._progress_at = 0.0
        self._gather_seconds = max(0, bench.config.flush_ms - PUBLISHER_MS) / 1000
        self._watch = Stopwatch(bench.model.name, attempt.generation_id)
        self._log = log.bind(generation=str(attempt.generation_id), model=bench.model.name)

    def run(self) -> None:
        """Raises RedisError: the log could not be read; the lease then lapses and the attempt counts as lost."""
        try:
            earlier = self._bench.event_log.read(self._attempt.generation_id)
        except EventsExpired:
            self._log.warning("generation_unknown")  # Redis was lost between the claim and here
            return
        self._text = AnswerText(earlier)
        self._has_text = any(event.deltas for event in earlier.events)
        self._outbox = self._bench.publisher.open(self._attempt, max((e.seq for e in earlier.events), default=0))
        try:
            self._bench.publisher.put(
                self._outbox, Event(kind=EventKind.STARTED, worker=self._bench.config.worker_name)
            )
            self._answer()
        except Exception:  # noqa: BLE001 - edge of an attempt: the answer must end visibly, not be tried three times
            self._log.exception("attempt_failed")
            if not self._is_finishing:
                self._finish(FinishReason.ERROR, error=WORKER_FAULT)
        finally:
            self._leave_engine()
            self._bench.publisher.close(self._outbox)
            self._attempt.let_go.set()
            self._await_engine()

    def _answer(self) -> None:
        model = self._bench.model
        try:
            ready = Preparation.of(model, self._request, self._text.tokens)
        except InvalidRequest as error:
            self._finish(FinishReason.ERROR, error=ErrorFacts(code=error.code, message=error.message))
            return
        self._num_prompt_tokens = len(ready.prompt.tokens)
        self._num_dropped = ready.prompt.num_dropped_messages
        self._num_given = len(ready.opening)
        self._cut = ready.cut
        if ready.sampling.logprobs is not None:
            self._text.tell_logprobs(model.token_bytes)
        loop_tokens = self._bench.config.loop_tokens if ready.watches_for_loops else 0
        if not self._text.begin(ready.pipeline(model, self._request), loop_tokens=loop_tokens):
            self._finish(FinishReason.ERROR, error=TEXT_DIFFERS)
            return
        if ready.recital is not None:
            self._engine = ready.recital
        elif len(self._text.tokens) < len(ready.opening):
            self._give(ready.opening[len(self._text.tokens) :])
        if self._text.stopped:
            self._finish(FinishReason.STOP)
        elif self._text.is_looping:
            self._finish(FinishReason.LENGTH, cut="loop")
        elif len(self._text.tokens) >= ready.max_tokens:
            self._finish(FinishReason.LENGTH, cut=self._cut)
        else:
            self._submit(ready)

    def _give(self, opening: list[int]) -> None:
        """Show the given beginning, in one piece: the log then has all of it or nothing."""
        news = [self._text.push(token) for token in opening]
        deltas = [delta for item in news for delta in item.deltas]
        self._has_text = bool(deltas)
        self._bench.publisher.put_deltas(self._outbox, [token for item in news for token in item.tokens], deltas)

    def _submit(self, ready: Preparation) -> None:
        submission = Submission(
            key=self._attempt.key,
            prompt=ready.prompt.tokens,
            generated=np.array(self._text.tokens, np.int32),
            plan=ready.plan,
            max_tokens=ready.max_tokens,
            salt=self._request.user_key,
            num_shared=ready.prompt.num_shared,
            priority=self._request.priority,
            sink=self._attempt.hear,
            constraint=ready.constraint,
        )
        try:
            self._engine.submit(submission)
        except EngineStopped:
            self._hand_on()
            return
        except InvalidRequest as error:
            self._finish(FinishReason.ERROR, error=ErrorFacts(code=error.code, message=error.message))
            return
        self._is_in_engine = True
        self._follow()

    def _follow(self) -> None:
        """Take what the engine and others say until the attempt has ended."""
        deadline = self._attempt.began_at + self._bench.config.generation_seconds
        following: Reading | Ended | Notice | None = None  # what was found behind the tokens taken last
        while True:
            item: Arrived | Reading | Ended | Notice
            if following is not None:
                item, following = following, None
            else:
                try:
                    item = self._attempt.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
                except Empty:
                    self._log.warning("generation_too_long", seconds=self._bench.config.generation_seconds)
                    self._finish(FinishReason.LENGTH, cut="time")
                    return
            if isinstance(item, Arrived):
                arrived, following = self._gather(item)
                self._is_in_engine = not isinstance(following, Ended)
                self._take_tokens(arrived)
                if self._text.stopped:
                    self._finish(FinishReason.STOP)
                    return
                if self._text.is_looping:
                    self._finish(FinishReason.LENGTH, cut="loop")
                    return
            elif isinstance(item, Reading):
                self._take_reading(item)
            elif isinstance(item, Ended):
                self._is_in_engine = False
                self._num_cached = item.num_cached
                self._end(item)
                return
            elif item is Notice.STOP:
                self._finish(FinishReason.CANCELLED)
                return
            elif item is Notice.HAND_ON:
                self._hand_on()
                return
            elif item is Notice.GIVE_UP:
                self._give_up()
                return
            elif item is Notice.LOST:
                self._lose()
                return
            else:
                assert item is not Notice.FINISHED, "finished before the finish was put"
                assert_never(item)

    def _gather(self, first: Arrived) -> tuple[list[Arrived], Reading | Ended | Notice | None]:
        """The tokens that lie in the inbox, once there was time for some to come, and what lies behind them.

        Waking for every token would cost the engine's thread, which needs the interpreter too, more than the work on
        it; and text leaves no sooner, since the publisher gathers as well. The first text does not wait.
        """
        arrived = [first]
        if self._has_text:
            self._attempt.wait_for_more(self._gather_seconds, self._bench.config.flush_tokens - 1)
        while True:
            try:
                item = self._attempt.inbox.get_nowait()
            except Empty:
                return arrived, None
            if not isinstance(item, Arrived):
                return arrived, item
            arrived.append(item)

    def _take_tokens(self, arrived: list[Arrived]) -> None:
        """Work on tokens until one of them ends the answer; what they give leaves together."""
        tokens: list[int] = []
        deltas: list[Delta] = []
        logprobs: list[TokenLogprob] = []
        for item in arrived:
            self._watch.token_came(item.at)
            news = self._text.push(item.token.id, item.token.logprobs)
            tokens += news.tokens
            deltas += news.deltas
            logprobs += news.logprobs
            if self._text.stopped or self._text.is_looping:
                break
        if deltas and not self._has_text:
            self._has_text = True
            self._watch.first_text_came()
        if tokens:
            self._bench.publisher.put_deltas(self._outbox, tokens, deltas, logprobs)

    def _take_reading(self, reading: Reading) -> None:
        if self._num_cached is None:
            self._watch.reading_began()
        self._num_cached = reading.num_cached
        now = time.monotonic()
        is_long = reading.num_total - reading.num_cached >= MIN_PROGRESS_TOKENS
        if is_long and now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            event = Event(
                kind=EventKind.PROGRESS,
                num_done=reading.num_done,
                num_total=reading.num_total,
                num_cached=reading.num_cached,
            )
            self._bench.publisher.put(self._outbox, event)

    def _end(self, ended: Ended) -> None:
        """The engine is done with the sequence, by its own decision."""
        if ended.reason is FinishReason.CANCELLED:  # nobody here asked for it: the engine stops, the answer need not
            self._hand_on()
        elif ended.error is not None and ended.error.code == EngineDied.code:
            self._give_up()
        else:
            # The engine was told no more than the context has room for, so it cannot tell these two apart.
            self._finish(ended.reason, error=ended.error, cut="context" if ended.cut == "context" else self._cut)

    def _finish(self, reason: FinishReason, *, error: ErrorFacts | None = None, cut: Cut = "") -> None:
        """Write the end of the answer, wait until the log has it, have it recorded."""
        self._is_finishing = True
        self._leave_engine()
        last = self._text.flush(is_cut=reason is not FinishReason.STOP)
        if reason is not FinishReason.LENGTH:
            cut = ""
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and self._text.num_calls:
            reason = FinishReason.TOOL_CALLS  # also when it was cut: the calls that are whole can be made
        finish = Finish(
            reason=reason,
            cut=cut,
            usage=self._usage_now(),
            content_sha256=self._text.content_sha256,
            num_chars=self._text.num_chars,
            error=error,
            worker=self._bench.config.worker_name,
            num_dropped_messages=self._num_dropped,
            decode_seconds=self._watch.decode_seconds,
        )
        self._bench.publisher.finish(self._outbox, finish, last.deltas, tokens=last.tokens, logprobs=last.logprobs)
        if self._await_notice() is Notice.FINISHED:
            metrics.GENERATIONS.labels(self._bench.model.name, reason.value).inc()
            if finish.cut:
                metrics.CUT.labels(self._bench.model.name, finish.cut).inc()
            self._log.info(
                "generation_finished",
                reason=reason.value,
                cut=finish.cut,
                error=error.code if error else None,
                num_prompt_tokens=finish.usage.prompt_tokens,
                num_tokens=finish.usage.completion_tokens,
            )
            hint(self._log, "record", self._bench.send_record, self._attempt.generation_id)
        else:
            self._lose()

    def _hand_on(self) -> None:
        self._leave_engine()
        release.hand_on(self._bench, self._attempt, self._outbox, self._log, num_tokens=len(self._text.tokens))

    def _give_up(self) -> None:
        self._leave_engine()
        self._is_in_engine = False  # a hung engine never says that it ended
        release.give_up(self._bench, self._attempt, self._outbox, self._log, num_tokens=len(self._text.tokens))

    def _lose(self) -> None:
        """Somebody else's now. Nothing more is written."""
        self._leave_engine()
        metrics.ATTEMPTS_LOST.labels(self._bench.model.name).inc()
        self._log.info("attempt_lost", num_tokens=len(self._text.tokens))

    def _leave_engine(self) -> None:
        if self._is_in_engine:
            self._engine.cancel(self._attempt.key)

    def _await_notice(self) -> Notice:
        """FINISHED or LOST, one of which the publisher always gives once a finish was put."""
        while True:
            item = self._attempt.inbox.get()
            if isinstance(item, Ended):
                self._is_in_engine = False
            elif item is Notice.FINISHED or item is Notice.LOST:
                return item

    def _await_engine(self) -> None:
        """Keep this thread, and so its claim on a slot, until the engine has freed the slot."""
        while self._is_in_engine:
            try:
                item = self._attempt.inbox.get(timeout=self._bench.config.hang_seconds)
            except Empty:
                self._log.error("engine_keeps_sequence")  # the watchdog decides about the process
                return
            self._is_in_engine = not isinstance(item, Ended)

    def _usage_now(self) -> Usage:
        num_own = max(0, len(self._text.tokens) - self._num_given)
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            cached_tokens=min(self._num_cached or 0, self._num_prompt_tokens),
            completion_tokens=num_own,
            reasoning_tokens=min(self._text.num_reasoning_tokens, num_own),
        )
