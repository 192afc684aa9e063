"""The status line of an answer being written: what is new is told, and a trifle is not."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chatsite.chat.streams import progress
from chatsite.chat.streams.progress import Progress
from inference.messages.generation import Delta, Event, EventKind

NOBODY = cast(Any, None)  # neither Redis nor the fleet is asked here


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def told_while(line: Progress, clock: SimpleNamespace, rates: list[int], kind: Any = "content") -> list[dict[str, Any]]:
    """What is told while a tenth of each rate's tokens comes every tenth of a second, for a second each."""
    told = []
    for rate in rates:
        for _ in range(10):
            clock.now += 0.1
            line.note([Event(kind=EventKind.DELTA, deltas=(Delta(kind, "x"),), tokens=(1,) * (rate // 10))])
            if status := line.take():
                told.append(status)
    return told


def test_rate_is_told_again_only_when_it_has_changed_by_a_tenth(clock: SimpleNamespace) -> None:
    line = Progress(NOBODY, NOBODY, uuid.uuid4(), "m")
    first, second = told_while(line, clock, [50] * 10)
    assert (first["phase"], "tokens_per_second" in first) == ("writing", False)
    assert second["tokens_per_second"] == pytest.approx(50, rel=0.1)
    slower = told_while(line, clock, [20] * 10)
    rates = [status["tokens_per_second"] for status in slower]
    assert 2 <= len(rates) <= 6
    assert rates[-1] == pytest.approx(20, rel=0.15)


def test_another_phase_and_what_is_read_are_told_at_once_or_each_second(clock: SimpleNamespace) -> None:
    line = Progress(NOBODY, NOBODY, uuid.uuid4(), "m")
    shares = []
    for done in range(0, 100, 10):
        clock.now += 0.5
        line.note([Event(kind=EventKind.PROGRESS, num_done=done, num_total=100)])
        shares += [status["done"] for status in [line.take()] if status]
    assert shares == [0, 20, 40, 60, 80]
    assert told_while(line, clock, [30], "reasoning")[0]["phase"] == "thinking"
    assert told_while(line, clock, [30])[0]["phase"] == "writing"
