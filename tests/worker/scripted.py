"""A whole worker without a model: byte-level prompt kit, scripted backend, real engine, real Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import uuid_utils.compat as uuid_utils
from redis import Redis

from inference import config as configuration
from inference.config import InferenceConfig
from inference.coordination.event_log import EventLog
from inference.coordination.lease import Leases
from inference.coordination.log_view import Log
from inference.coordination.redis_client import connect
from inference.coordination.waiting_room import WaitingRoom
from inference.engine.engine import Engine
from inference.messages.generation import ChatMessage, Event, EventKind, Finish, GenerationRequest, Role, SamplingParams
from inference.output.thinking import ThinkTags as OutputTags
from inference.prompt.builder import PromptBuilder
from inference.prompt.kit import PromptKit, ThinkTags, TokenType
from inference.testing import ScriptedBackend
from inference.worker.attempt.context import Served
from inference.worker.process.runtime import Runtime
from inference.worker.tasks import answer_waiting

MODEL = "scripted"
END, OPEN, CLOSE = 256, 257, 258
SPECIAL = ["<|end|>", "<think>", "</think>"]
TAGS = OutputTags("<think>", "</think>", OPEN, CLOSE)
CONTEXT_TOKENS = 2048
DEADLINE_SECONDS = 20.0


def byte_tokens() -> list[str]:
    """The 256 bytes in GPT-2's printable alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_ins = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(stand_ins)) for b in range(256)]


def kit(context_tokens: int = CONTEXT_TOKENS) -> PromptKit:
    types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.USER_DEFINED]
    return PromptKit(
        model=MODEL,
        pre_tokenizer="gpt-2",
        tokens=(*byte_tokens(), *SPECIAL),
        token_types=bytes(types),
        merges=(),
        chat_template="{% for message in messages %}{{ message.content }}<|end|>{% endfor %}",
        context_tokens=context_tokens,
        eos_id=END,
        end_tokens=(END,),
        thinking=ThinkTags("<think>", "</think>"),
        sampling=SamplingParams(temperature=0.0),
    )


def ids(text: str) -> list[int]:
    """Token ids of an answer; tags are tokens."""
    result: list[int] = []
    for part in text.replace("<think>", "\0\1").replace("</think>", "\0\2").split("\0"):
        if part[:1] in ("\1", "\2"):
            result.append(OPEN if part[0] == "\1" else CLOSE)
            part = part[1:]
        result += part.encode()
    return result


def script_of(answers: dict[str, Sequence[int]]) -> Callable[[Sequence[int]], int | None]:
    """Answers by question: the history is prompt, end token, answer so far."""
    by_tokens = {tuple(question.encode()): answer for question, answer in answers.items()}

    def script(history: Sequence[int]) -> int | None:
        edges = [i for i, token in enumerate(history) if token == END]
        if not edges:
            return 0
        question = tuple(history[edges[-2] + 1 if len(edges) > 1 else 0 : edges[-1]])
        answer = by_tokens.get(question)
        if answer is None:
            return None
        num_done = len(history) - edges[-1] - 1
        return answer[num_done] if num_done < len(answer) else END

    return script


def settings(redis_url: str, name: str = "worker-a", **changes: Any) -> InferenceConfig:
    values = {
        "REDIS_URL": redis_url,
        "WORKER_NAME": name,
        "LEASE_SECONDS": "5",
        "DRAIN_SECONDS": "0",
        "PREFIX_WAIT_MS": "0",
    }
    return configuration.load(values | {key: str(value) for key, value in changes.items()})


def request(question: str, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        id=UUID(str(uuid_utils.uuid7())),
        model=MODEL,
        user_key="anna",
        messages=(ChatMessage(role=Role.USER, content=question),),
        sampling=SamplingParams(**sampling),
    )


class ScriptedWorker:
    """One worker as the tests drive it. `records` and `rings` are what it would have sent through Celery."""

    def __init__(
        self, redis_url: str, answers: dict[str, str] | None = None, *, name: str = "worker-a", **options: Any
    ) -> None:
        backend_options = options.pop("backend", {})
        backend_options.setdefault("num_slots", 4)
        self.config = settings(redis_url, name, **options)
        script = script_of({question: ids(text) for question, text in (answers or {}).items()})
        self.backend = ScriptedBackend(
            vocab_size=256 + len(SPECIAL),
            context_tokens=CONTEXT_TOKENS,
            max_batch_tokens=64,
            end_token=END,
            script=script,
            **backend_options,
        )
        self.engine = Engine(self.backend, end_tokens=frozenset({END}), target_itl_ms=1000)
        self.records: list[UUID] = []
        self.rings: list[str] = []
        self.exit_codes: list[int] = []
        self.runtime = Runtime(
            self.config,
            connect(self.config),
            self.engine,
            Served.of(PromptBuilder(kit())),
            ring=self.rings.append,
            send_record=self.records.append,
            end_process=self.exit_codes.append,
        )
        self._threads: list[threading.Thread] = []
        self._stopped = False
        self.runtime.start()

    def doorbell(self) -> threading.Thread:
        """Ring; the thread ends when nobody waits any more."""
        thread = threading.Thread(target=answer_waiting, args=(self.runtime, MODEL))
        thread.start()
        self._threads.append(thread)
        return thread

    def answer(self) -> None:
        """Answer everybody who waits."""
        answer_waiting(self.runtime, MODEL)

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        if self.backend.gate is not None:
            self.backend.gate.set()
        self.runtime.drain(0)
        self.runtime.stop()
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()


class Store:
    """Redis as the site sees it."""

    def __init__(self, redis: Redis, config: InferenceConfig) -> None:
        self.redis = redis
        self.room = WaitingRoom(redis, config)
        self.leases = Leases(redis, config)
        self.log = EventLog(redis, config)

    def enter(self, question: str, **sampling: Any) -> GenerationRequest:
        entering = request(question, **sampling)
        assert self.room.enter(entering)
        return entering

    def read(self, generation_id: UUID) -> Log:
        return self.log.read(generation_id)

    def finish_of(self, generation_id: UUID) -> Finish:
        found = self.read(generation_id)
        assert found.finish is not None
        # The site believes no more than this.
        assert found.finish.usage.completion_tokens <= sum(len(event.tokens) for event in found.events)
        return found.finish

    def lose_lease(self, generation_id: UUID) -> None:
        """As if its worker had been silent for too long."""
        assert self.leases.lapse(generation_id, force=True)
        assert self.room.reenter(generation_id)

    def write_part(self, generation_id: UUID, entries: Sequence[Event], worker: str = "worker-dead") -> None:
        """An attempt that claims, writes `entries` and dies."""
        claim = self.room.claim(MODEL, worker)
        assert claim is not None
        assert claim.request.id == generation_id
        self.log.append([(generation_id, claim.ticket, entry) for entry in entries])
        self.lose_lease(generation_id)


def text_of(log: Log) -> tuple[str, str]:
    return log.text("reasoning"), log.text("content")


def check_whole(log: Log) -> None:
    """Numbered without holes, finished once, as the last entry; nothing empty."""
    assert [event.seq for event in log.events] == list(range(1, len(log.events) + 1))
    assert [event.kind for event in log.events].count(EventKind.FINISH) == 1
    assert log.events[-1].kind is EventKind.FINISH
    assert all(event.deltas or event.tokens for event in log.events if event.kind is EventKind.DELTA)


def wait_until(condition: Callable[[], bool], what: str = "") -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS} s: {what or condition}"
        time.sleep(0.005)
