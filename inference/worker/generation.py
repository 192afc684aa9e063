"""One attempt at a generation, start to finish: prompt -> engine -> output -> log.

Owns the attempt's text state and how it ends. Runs in a Celery task thread, so all text work is off the engine's
thread; the engine and everybody else speak to it through the attempt's inbox. Knows nothing of Celery, and of Redis
only the log.

An attempt that finds tokens in the log goes on behind them: it replays them silently, and since the same tokens give
the same text, the next entry continues what viewers already have.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty
from typing import TypeVar, assert_never

import numpy as np
import structlog
from prometheus_client import Histogram
from redis.exceptions import RedisError

from inference import metrics
from inference.engine.engine import Engine
from inference.engine.sampling import SamplerPlan, seed_of
from inference.engine.submission import Ended, Reading, Submission
from inference.errors import EngineDied, EngineStopped, EventsExpired, InvalidRequest, StoreUnavailable
from inference.output.deltas import OutputPipeline
from inference.prompt.builder import Prompt
from inference.protocol import Cut, Delta, ErrorFacts, Event, EventKind, Finish, FinishReason, TokenLogprob, Usage
from inference.worker.answer_text import AnswerText
from inference.worker.attempts import Arrived, Attempt, Notice
from inference.worker.opening import Recital
from inference.worker.publisher import PUBLISHER_MS
from inference.worker.workbench import Workbench

log = structlog.get_logger(__name__)
T = TypeVar("T")

MIN_PROGRESS_TOKENS = 256  # a prompt with less to read is read before anybody could see how far it is
PROGRESS_SECONDS = 0.25  # between two progress events
SETTLE_SECONDS = 1.0  # news may take so long to leave before the generation is handed on without them

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
        self._first_token_at = 0.0
        self._last_token_at = 0.0
        self._progress_at = 0.0
        self._gather_seconds = max(0, bench.config.flush_ms - PUBLISHER_MS) / 1000
        self._itl = metrics.ITL_SECONDS.labels(bench.model.name)
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
        try:
            prompt = self._bench.model.prompts.build(self._request)
            sampling = self._bench.model.sampling_of(self._request)
            plan = SamplerPlan.of(sampling, seed=seed_of(self._attempt.generation_id))
            opening = self._bench.model.opening_tokens(self._request, prompt)
            # What the log holds of an opening is its beginning, or all of it and more.
            generated = self._text.tokens if len(self._text.tokens) > len(opening) else opening
            self._constraint = self._bench.model.constraint_for(self._request, sampling, prompt, generated)
        except InvalidRequest as error:
            self._finish(FinishReason.ERROR, error=ErrorFacts(code=error.code, message=error.message))
            return
        self._num_prompt_tokens = len(prompt.tokens)
        self._num_dropped = prompt.num_dropped_messages
        self._num_given = len(opening)
        pipeline = OutputPipeline(
            self._bench.model.token_bytes,
            think_tags=self._bench.model.think_tags_for(sampling),
            starts_thinking=prompt.starts_thinking,
            calls=self._bench.model.calls_in(self._request),
            stop=sampling.stop,
            drops_space=prompt.adds_space,
        )
        given = self._request.opening
        is_recited = given is not None and given.is_whole
        room = self._bench.model.context_tokens - len(prompt.tokens)
        max_tokens = min(sampling.max_tokens + len(opening) if sampling.max_tokens else room, room)
        is_asked = sampling.max_tokens is not None and max_tokens == sampling.max_tokens + len(opening)
        self._cut = "max_tokens" if is_asked else "context"
        # Whoever forbids the end wants every token, whatever they say; and what is given is nobody's loop.
        loop_tokens = 0 if sampling.ignore_eos or is_recited else self._bench.config.loop_tokens
        if sampling.logprobs is not None:
            self._text.tell_logprobs(self._bench.model.token_bytes)
        if not self._text.begin(pipeline, loop_tokens=loop_tokens):
            self._finish(FinishReason.ERROR, error=TEXT_DIFFERS)
            return
        if given is not None and is_recited:
            self._engine, max_tokens = Recital(opening, given.tokens_per_second), len(opening) + 1
        elif len(self._text.tokens) < len(opening):
            self._give(opening[len(self._text.tokens) :])
        if self._text.stopped:
            self._finish(FinishReason.STOP)
        elif self._text.is_looping:
            self._finish(FinishReason.LENGTH, cut="loop")
        elif len(self._text.tokens) >= max_tokens:
            self._finish(FinishReason.LENGTH, cut=self._cut)
        else:
            self._submit(prompt, plan, max_tokens)

    def _give(self, opening: list[int]) -> None:
        """Show the given beginning, in one piece: the log then has all of it or nothing."""
        news = [self._text.push(token) for token in opening]
        deltas = [delta for item in news for delta in item.deltas]
        self._has_text = bool(deltas)
        self._bench.publisher.put_deltas(self._outbox, [token for item in news for token in item.tokens], deltas)

    def _submit(self, prompt: Prompt, plan: SamplerPlan, max_tokens: int) -> None:
        submission = Submission(
            key=self._attempt.key,
            prompt=prompt.tokens,
            generated=np.array(self._text.tokens, np.int32),
            plan=plan,
            max_tokens=max_tokens,
            salt=self._request.user_key,
            num_shared=prompt.num_shared,
            priority=self._request.priority,
            sink=self._attempt.hear,
            constraint=self._constraint,
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
            if self._last_token_at:
                self._itl.observe(item.at - self._last_token_at)
            else:
                self._first_token_at = item.at
            self._last_token_at = item.at
            news = self._text.push(item.token.id, item.token.logprobs)
            tokens += news.tokens
            deltas += news.deltas
            logprobs += news.logprobs
            if self._text.stopped or self._text.is_looping:
                break
        if deltas and not self._has_text:
            self._has_text = True
            self._observe_since_submit(metrics.TTFT_SECONDS)
        if tokens:
            self._bench.publisher.put_deltas(self._outbox, tokens, deltas, logprobs)

    def _take_reading(self, reading: Reading) -> None:
        if self._num_cached is None:
            self._observe_since_submit(metrics.QUEUE_WAIT_SECONDS)
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
        last = self._text.flush()
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
            decode_seconds=self._last_token_at - self._first_token_at,
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
            self._hint("record", self._bench.send_record, self._attempt.generation_id)
        else:
            self._lose()

    def _hand_on(self) -> None:
        """Let another worker go on: back to the front of the waiting room, with what is written so far."""
        self._leave_engine()
        self._bench.publisher.settle(self._outbox, SETTLE_SECONDS)
        try:
            released = self._bench.room.release(self._attempt.generation_id, self._attempt.ticket)
        except RedisError as error:  # the lease lapses instead
            self._log.warning("generation_not_released", error=type(error).__name__)
            return
        self._log.info("generation_handed_on", released=released, num_tokens=len(self._text.tokens))
        if released:
            self._hint("ring", self._bench.ring, self._bench.model.name)

    def _give_up(self) -> None:
        """This worker fails under the answer: let another go on at once, instead of when the lease has run out.

        It counts as a lost attempt, so an answer that itself is what breaks workers ends: the sweeper fails it when
        it was the last one.
        """
        attempt, config = self._attempt, self._bench.config
        self._leave_engine()
        self._is_in_engine = False  # a hung engine never says that it ended
        self._bench.publisher.settle(self._outbox, SETTLE_SECONDS)
        try:
            given_up = self._bench.leases.give_up(attempt.generation_id, attempt.ticket)
            is_last = attempt.num_lost + 1 >= config.max_attempts
            goes_on = given_up and not is_last and self._bench.room.reenter(attempt.generation_id)
        except RedisError as error:  # the lease lapses in its own time
            self._log.warning("generation_not_given_up", error=type(error).__name__)
            return
        metrics.ATTEMPTS_LOST.labels(self._bench.model.name).inc()
        self._log.warning("generation_given_up", given_up=given_up, goes_on=goes_on, num_tokens=len(self._text.tokens))
        if goes_on:
            self._hint("ring", self._bench.ring, self._bench.model.name)

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

    def _hint(self, what: str, send: Callable[[T], None], about: T) -> None:
        try:
            send(about)
        except StoreUnavailable as error:
            self._log.warning("hint_not_sent", what=what, error=error.message)  # the sweeper repeats it

    def _observe_since_submit(self, histogram: Histogram) -> None:
        """A generation's id is a UUIDv7 made at submit, so it tells when that was (by the web node's clock)."""
        generation_id = self._attempt.generation_id
        if generation_id.version == 7:
            seconds = time.time() - (generation_id.int >> 80) / 1000
            histogram.labels(self._bench.model.name).observe(max(0.0, seconds))
