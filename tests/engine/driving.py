"""Drives an Engine by hand, step by step on the test's own thread, and gathers what each sequence gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import numpy as np

from inference.engine.constraint import Constraint
from inference.engine.engine import Ended, Engine, Output, Reading, Sink, Submission, Token
from inference.engine.sampling.plan import SamplerPlan
from inference.testing import ScriptedBackend

GREEDY = SamplerPlan(temperature=0.0)
END_TOKEN = 0
MAX_STEPS = 20_000


@dataclass
class Answer:
    """Everything one submission's sink received."""

    key: UUID
    outputs: list[Output] = field(default_factory=list)

    def __call__(self, output: Output) -> None:
        assert self.ended is None, "an output after Ended"
        self.outputs.append(output)

    @property
    def tokens(self) -> list[int]:
        return [o.id for o in self.outputs if isinstance(o, Token)]

    @property
    def readings(self) -> list[Reading]:
        return [o for o in self.outputs if isinstance(o, Reading)]

    @property
    def ended(self) -> Ended | None:
        last = self.outputs[-1] if self.outputs else None
        return last if isinstance(last, Ended) else None


def ids(tokens: Iterable[int]) -> np.ndarray:
    return np.array(list(tokens), np.int32)


def make_engine(backend: ScriptedBackend, **options: object) -> Engine:
    options.setdefault("target_itl_ms", 100.0)
    return Engine(backend, end_tokens=frozenset({END_TOKEN}), **options)  # type: ignore[arg-type]


def submit(
    engine: Engine,
    prompt: Iterable[int],
    *,
    plan: SamplerPlan = GREEDY,
    generated: Sequence[int] = (),
    max_tokens: int = 8,
    salt: str = "",
    priority: int = 0,
    num_shared: int = 0,
    key: UUID | None = None,
    sink: Sink | None = None,
    constraint: Constraint | None = None,
) -> Answer:
    answer = Answer(key or uuid4())
    engine.submit(
        Submission(
            key=answer.key,
            prompt=ids(prompt),
            generated=ids(generated),
            plan=plan,
            max_tokens=max_tokens,
            salt=salt,
            priority=priority,
            sink=sink or answer,
            num_shared=num_shared,
            constraint=constraint,
        )
    )
    return answer


def run(engine: Engine) -> None:
    """Step until nothing is left to do."""
    for _ in range(MAX_STEPS):
        if not engine.step():
            return
        engine.check_integrity()
    raise AssertionError("the engine does not come to an end")


def alone(prompt: Iterable[int], *, backend: dict[str, object] | None = None, **options: object) -> list[int]:
    """The answer that a fresh engine gives to this one prompt."""
    engine = make_engine(ScriptedBackend(**(backend or {})))  # type: ignore[arg-type]
    answer = submit(engine, prompt, **options)  # type: ignore[arg-type]
    run(engine)
    return answer.tokens


def slot_contents(engine: Engine, backend: ScriptedBackend) -> None:
    """The engine's record of every slot equals what the backend really holds."""
    for slot in engine._loop._admission._pool.all:
        assert slot.ids.tolist() == backend.tokens_in(slot.index), slot.index
