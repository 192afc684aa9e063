"""How news are gathered under the streaming settings: in order, complete, in as few entries as the settings allow."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.messages.generation import Delta, Event, EventKind, Finish, FinishReason, ToolCallDelta
from inference.output.deltas import merged
from inference.worker.attempt.outbox import Outbox


@dataclass
class Gathering:
    """An outbox, a clock, and a log that takes what is due at once."""

    flush_seconds: float
    flush_tokens: int
    now: float = 100.0
    written: list[tuple[float, Event]] = field(default_factory=list)

    def __post_init__(self) -> None:
        attempt: Any = SimpleNamespace()
        self.outbox = Outbox(attempt, 0)

    def token(self, number: int, *deltas: Delta) -> None:
        self.outbox.add_deltas(
            [number], deltas, [], self.now, flush_seconds=self.flush_seconds, flush_tokens=self.flush_tokens
        )
        self.write()

    def wait(self, seconds: float) -> None:
        """Let the time pass, and write what becomes due meanwhile when it does."""
        until = self.now + seconds
        if self.outbox.due_at <= until:
            self.now = max(self.now, self.outbox.due_at)
            self.write()
        self.now = until

    def write(self) -> None:
        if self.outbox.due_at > self.now:
            return
        self.outbox.load()
        for event in list(self.outbox.under_way):
            self.written.append((self.now, event))
            self.outbox.acknowledge(event, event.seq)

    def end(self) -> None:
        self.outbox.end(Finish(reason=FinishReason.STOP), [], [], [], self.now)
        self.write()
        if self.outbox.last_delta is not None:
            self.written.append((self.now, self.outbox.last_delta))

    @property
    def deltas(self) -> list[tuple[float, Event]]:
        return [(at, event) for at, event in self.written if event.kind is EventKind.DELTA]


def texts(number: int) -> tuple[Delta, ...]:
    return (Delta("content", chr(97 + number % 26)),)


def test_ten_tokens_or_half_a_second_as_it_once_was() -> None:
    gathering = Gathering(flush_seconds=0.5, flush_tokens=10)
    for number in range(25):
        gathering.token(number, *texts(number))
        gathering.wait(0.01)
    gathering.wait(1.0)
    gathering.end()
    assert [len(event.tokens) for _, event in gathering.deltas] == [1, 10, 10, 4]
    last, before = gathering.deltas[-1][0], gathering.deltas[-2][0]
    assert last - before == pytest.approx(0.51)


def test_the_time_counts_from_the_oldest_text_that_waits() -> None:
    gathering = Gathering(flush_seconds=0.03, flush_tokens=1_000)
    for number in range(100):
        gathering.token(number, *texts(number))
        gathering.wait(0.01)
    gathering.end()
    sizes = [len(event.tokens) for _, event in gathering.deltas]
    assert sizes[0] == 1
    assert sum(sizes) == 100
    assert all(3 <= size <= 4 for size in sizes[1:-1])


KINDS = st.sampled_from(["none", "content", "reasoning", "begin", "arguments", "fail"])
STEPS = st.lists(st.tuples(KINDS, st.sampled_from([0.0, 0.001, 0.02, 0.2]), st.booleans()), max_size=60)


@given(STEPS, st.sampled_from([0.001, 0.03, 0.5]), st.integers(1, 20))
def test_nothing_is_lost_repeated_or_out_of_order(
    steps: list[tuple[str, float, bool]], flush_seconds: float, flush_tokens: int
) -> None:
    gathering = Gathering(flush_seconds, flush_tokens)
    told: list[Delta] = []
    for number, (kind, pause, is_progress) in enumerate(steps):
        delta = _delta(kind, number)
        told += delta
        gathering.token(number, *delta)
        if is_progress:
            gathering.outbox.add(Event(kind=EventKind.PROGRESS, num_done=number), gathering.now)
            gathering.write()
        gathering.wait(pause)
    gathering.end()
    events = [event for _, event in gathering.written]
    assert [token for event in events for token in event.tokens] == list(range(len(steps)))
    assert merged(delta for event in events for delta in event.deltas) == merged(told)
    seqs = [event.seq for event in events if event.seq]
    assert seqs == list(range(1, len(seqs) + 1))
    if not any(is_progress for _, _, is_progress in steps):
        _check_coalescing(gathering, flush_seconds, flush_tokens)


def _check_coalescing(gathering: Gathering, flush_seconds: float, flush_tokens: int) -> None:
    """Only the first text and the end may leave before enough has come or the time is up."""
    has_text = False
    began = 0.0
    for at, event in gathering.deltas[:-1]:
        is_first_text = bool(event.deltas) and not has_text
        has_text = has_text or bool(event.deltas)
        assert is_first_text or len(event.tokens) >= flush_tokens or at - began >= flush_seconds - 1e-9
        began = at


def _delta(kind: str, number: int) -> list[Delta]:
    match kind:
        case "content" | "reasoning":
            return [Delta(kind, f"{number} ")]  # type: ignore[arg-type]
        case "begin":
            return [Delta("tool_call", "", ToolCallDelta(number, f"call_{number}", "f", "{"))]
        case "arguments":
            return [Delta("tool_call", "", ToolCallDelta(0, arguments=f"{number},"))]
    return []


@given(st.lists(st.builds(_delta, KINDS, st.integers(0, 3)), max_size=30), st.integers(0, 30))
def test_merging_keeps_every_piece_of_every_call(pieces: list[list[Delta]], cut: int) -> None:
    deltas = [delta for piece in pieces for delta in piece]
    together = merged(deltas)
    assert merged([*merged(deltas[:cut]), *merged(deltas[cut:])]) == together
    for index in range(4):
        for part in (deltas, together):
            arguments = "".join(d.call.arguments for d in part if d.call is not None and d.call.index == index)
            assert arguments == "".join(
                d.call.arguments for d in deltas if d.call is not None and d.call.index == index
            )
