"""A worker without a model: it claims through the real waiting room and writes the real log, by a script.

The text of the last message says what to do; see `SCRIPTS`. It runs in a thread of the test, rings no doorbell (it
looks every few milliseconds) and records its answers itself, as the site worker would.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from uuid import UUID

import redis as redis_py
from django.db import connections

from chatsite.chat import tasks
from inference.config import InferenceConfig
from inference.coordination.event_log import EventLog
from inference.coordination.lease import Leases
from inference.coordination.registry import Registry
from inference.coordination.waiting_room import Claim, WaitingRoom
from inference.messages.cards import ModelCard, WorkerCard
from inference.messages.generation import (
    CALL_TRUNCATED,
    Cut,
    Delta,
    ErrorFacts,
    Event,
    EventKind,
    Finish,
    FinishReason,
    GenerationRequest,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from inference.prompt.kit import PromptKit

MODEL = "scripted"
CONTEXT_TOKENS = 400
LOOK_SECONDS = 0.005

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = [chr(byte) for byte in _PRINTABLE] + [chr(256 + i) for i in range(len(_OTHERS))]
_SPECIAL = ["<|im_start|>", "<|im_end|>"]
_TEMPLATE = (
    "{% for tool in tools or python_tools or [] %}{{ (tool.function or tool).name }} {% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def kit() -> PromptKit:
    """A byte is a token: the prompt's length is easy to reckon with."""
    return PromptKit(
        model=MODEL,
        pre_tokenizer="gpt-2",
        tokens=(*_BYTES, *_SPECIAL),
        token_types=bytes([1] * len(_BYTES) + [3] * len(_SPECIAL)),
        merges=(),
        chat_template=_TEMPLATE,
        context_tokens=CONTEXT_TOKENS,
        eos_id=len(_BYTES) + 1,
        end_tokens=(len(_BYTES) + 1,),
    )


@dataclass
class Answer:
    """What to write: pieces of (kind, text), then the end; or nothing more until it is stopped."""

    pieces: list[tuple[str, str | ToolCallDelta]]
    reason: FinishReason = FinishReason.STOP
    cut: Cut = ""
    error: ErrorFacts | None = None
    waits_for_stop: bool = False
    logprobs: list[tuple[TokenLogprob, ...]] = field(default_factory=list)  # of each piece, if asked for


USAGE = Usage(prompt_tokens=11, cached_tokens=4, completion_tokens=7, reasoning_tokens=3)
HELLO = Answer([("content", "Hello"), ("content", ", wörld 🦊")])
SCRIPTS: dict[str, Answer] = {
    "hello": HELLO,
    "think": Answer([("reasoning", "Let me "), ("reasoning", "see."), ("content", "42")]),
    "weigh": Answer(
        [("reasoning", "Hm."), ("content", "Fox "), ("content", "🦊")],
        logprobs=[
            (),
            (TokenLogprob(b"Fox ", -0.25, ((b"Fox ", -0.25), (b"Dog", -1.5))),),
            (TokenLogprob(b"\xf0\x9f", -0.5), TokenLogprob(b"\xa6\x8a", -17.25)),
        ],
    ),
    "call": Answer(
        [
            ("reasoning", "Which?"),
            ("tool_call", ToolCallDelta(0, "call_a", "weather", '{"city": ')),
            ("tool_call", ToolCallDelta(0, arguments='"Os')),
            ("tool_call", ToolCallDelta(0, arguments='lo"}')),
            ("tool_call", ToolCallDelta(1, "call_b", "weather", '{"city": "Rome"}')),
        ],
        reason=FinishReason.TOOL_CALLS,
    ),
    "call and say": Answer(
        [("content", "Let me see."), ("tool_call", ToolCallDelta(0, "call_a", "weather", '{"city": "Oslo"}'))],
        reason=FinishReason.TOOL_CALLS,
    ),
    "call badly": Answer(
        [
            ("tool_call", ToolCallDelta(0, "call_a", error=ErrorFacts(code="tool_unknown", message="No such tool."))),
            ("content", "<tool_call>x</tool_call>"),
            ("tool_call", ToolCallDelta(1, "call_b", "weather", '{"city": "Oslo"}')),
            ("tool_call", ToolCallDelta(2, "call_c", "weather", '{"ci')),
            ("tool_call", ToolCallDelta(2, error=ErrorFacts(code="tool_call_invalid", message="No JSON."))),
            ("content", '{"ci)'),
        ],
        reason=FinishReason.TOOL_CALLS,
    ),
    "call cut": Answer(
        [
            ("tool_call", ToolCallDelta(0, "call_a", "weather", '{"city": ')),
            ("tool_call", ToolCallDelta(0, arguments='"Os')),
            ("tool_call", ToolCallDelta(0, error=ErrorFacts(code=CALL_TRUNCATED, message="Cut."))),
        ],
        reason=FinishReason.LENGTH,
        cut="max_tokens",
    ),
    "call cut before its name": Answer(
        [("tool_call", ToolCallDelta(0, "call_a", error=ErrorFacts(code=CALL_TRUNCATED, message="Cut.")))],
        reason=FinishReason.LENGTH,
        cut="max_tokens",
    ),
    "two calls, one cut": Answer(
        [
            ("tool_call", ToolCallDelta(0, "call_a", "weather", '{"city": "Oslo"}')),
            ("tool_call", ToolCallDelta(1, "call_b", "weather", '{"ci')),
            ("tool_call", ToolCallDelta(1, error=ErrorFacts(code=CALL_TRUNCATED, message="Cut."))),
        ],
        reason=FinishReason.TOOL_CALLS,
        cut="max_tokens",
    ),
    "long": Answer([("content", "and so on")], reason=FinishReason.LENGTH),
    "nothing": Answer([]),
    "hold": Answer([("content", "One moment")], waits_for_stop=True),
    "wait": Answer([], waits_for_stop=True),
    "break": Answer(
        [("content", "Half an ans")],
        reason=FinishReason.ERROR,
        error=ErrorFacts(code="bad_logits", message="The model broke."),
    ),
    "lose": Answer(
        [],
        reason=FinishReason.ERROR,
        error=ErrorFacts(code="worker_lost", message="The worker stopped three times.", retryable=True),
    ),
}


@dataclass
class ScriptedWorker:
    redis_url: str
    config: InferenceConfig
    requests: list[GenerationRequest] = field(default_factory=list)
    stopped: list[UUID] = field(default_factory=list)  # whose stop flag was seen
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._redis = redis_py.Redis.from_url(self.redis_url)
        self._room = WaitingRoom(self._redis, self.config)
        self._log = EventLog(self._redis, self.config)
        self._leases = Leases(self._redis, self.config)
        self._registry = Registry(self._redis)
        self._ends = threading.Event()
        self._lets_go = threading.Event()
        self._held: list[tuple[Claim, Answer]] = []
        self._thread = threading.Thread(target=self._run, name="scripted worker")

    def __enter__(self) -> ScriptedWorker:
        self.announce()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.set()
        self._thread.join(timeout=10)
        self._registry.withdraw("scripted-1")
        self._redis.close()
        if self.error is not None:
            raise self.error

    def announce(self, *, ttl_seconds: float = 60) -> None:
        key = self._registry.store_kit(kit().to_bytes())
        model = ModelCard(
            name=MODEL, title="Scripted", architecture="none", context_tokens=CONTEXT_TOKENS, prompt_kit=key
        )
        now = time.time()
        card = WorkerCard(
            name="scripted-1", model=model, num_slots=4, num_free_slots=4, device="none", started_at=now, seen_at=now
        )
        self._registry.announce(card, ttl_seconds=ttl_seconds)

    def let_go(self) -> None:
        """From now on end held answers well."""
        self._lets_go.set()

    def _run(self) -> None:
        try:
            while not self._ends.wait(LOOK_SECONDS):
                self._turn()
        except BaseException as error:  # noqa: BLE001  __exit__ raises it
            self.error = error
        finally:
            connections.close_all()

    def _turn(self) -> None:
        claim = self._room.claim(MODEL, "scripted-1")
        if isinstance(claim, Claim):
            self.requests.append(claim.request)
            self._begin(claim, SCRIPTS.get(claim.request.messages[-1].content, HELLO))
        renewals = self._leases.renew([(claim.request.id, claim.ticket) for claim, _ in self._held])
        if self._lets_go.is_set():
            while self._held:
                self._finish(*self._held.pop())
            return
        for (claim, answer), renewal in zip(list(self._held), renewals, strict=True):
            if renewal.stop or not renewal.held:
                self._held.remove((claim, answer))
                self.stopped.append(claim.request.id)
                self._finish(claim, Answer(answer.pieces, reason=FinishReason.CANCELLED))

    def _begin(self, claim: Claim, answer: Answer) -> None:
        tokens = (1,) * USAGE.completion_tokens  # all at once: nobody asks which of them made which text
        events = [Event(kind=EventKind.STARTED, worker="scripted-1", tokens=tokens)]
        logprobs = answer.logprobs if claim.request.sampling.logprobs is not None else []
        events += [
            Event(kind=EventKind.DELTA, deltas=(_delta(kind, piece),), logprobs=told or ())
            for (kind, piece), told in zip_longest(answer.pieces, logprobs)
        ]
        self._log.append([(claim.request.id, claim.ticket, event) for event in events])
        if answer.waits_for_stop:
            self._held.append((claim, answer))
        else:
            self._finish(claim, answer)

    def _finish(self, claim: Claim, answer: Answer) -> None:
        content = "".join(str(piece) for kind, piece in answer.pieces if kind == "content")
        finish = Finish(
            reason=answer.reason,
            cut=answer.cut,
            usage=USAGE,
            content_sha256=hashlib.sha256(content.encode()).hexdigest(),
            num_chars=len(content),
            error=answer.error,
            worker="scripted-1",
        )
        self._log.finish(claim.request.id, claim.ticket, finish)
        tasks.record(str(claim.request.id))


def _delta(kind: str, piece: str | ToolCallDelta) -> Delta:
    if isinstance(piece, ToolCallDelta):
        return Delta("tool_call", "", piece)
    return Delta(kind, piece)  # type: ignore[arg-type]


def wait_until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Return as soon as `condition` holds; fail when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
