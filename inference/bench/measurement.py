"""What one request and one run took. Names of the results are those of vLLM's `bench serve`.

TTFT is from sending to the first piece of any kind, ITL the gap between two pieces that follow each other, TPOT the
time after the first token divided by the tokens after it, E2EL from sending to the end, queue from sending until the
engine begins to read. All in milliseconds. A request that failed counts as failed and in nothing else.
"""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from inference.errors import ConfigError

PERCENTILES = (90, 99)
MEASURES = ("ttft", "tpot", "itl", "e2el")


@dataclass(kw_only=True, slots=True)
class RequestTimes:
    """One request as its sender saw it; times in seconds of one monotonic clock, 0 = did not happen.

    `history_tokens` is what came before this turn's new text: the prompt and the answer of the turn before.
    """

    sent_at: float
    turn: int = 1
    began_at: float = 0.0  # the engine took it up
    # An array (and slots), since a soak keeps millions of them and its memory is what is measured.
    piece_times: array[float] = field(default_factory=lambda: array("d"))
    ended_at: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    history_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def is_done(self) -> bool:
        return not self.error and bool(self.piece_times)

    @property
    def queue_ms(self) -> float:
        return (self.began_at - self.sent_at) * 1e3

    @property
    def ttft_ms(self) -> float:
        return (self.piece_times[0] - self.sent_at) * 1e3

    @property
    def itl_ms(self) -> list[float]:
        return [(b - a) * 1e3 for a, b in zip(self.piece_times, self.piece_times[1:])]

    @property
    def tpot_ms(self) -> float:
        return (self.piece_times[-1] - self.piece_times[0]) * 1e3 / max(1, self.output_tokens - 1)

    @property
    def e2el_ms(self) -> float:
        return (self.ended_at - self.sent_at) * 1e3


@dataclass(frozen=True)
class Goodput:
    """Limits in milliseconds by measure. A request is good when it keeps them all, with 99 % of its gaps for `itl`."""

    limits: dict[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, words: Iterable[str]) -> Goodput:
        """`ttft:500 itl:50`. Raises ConfigError: a measure is unknown or a limit is no number."""
        limits = {}
        for word in words:
            name, _, limit = word.partition(":")
            if name not in MEASURES:
                raise ConfigError(f"A limit is written ttft:500, for one of {', '.join(MEASURES)}, not {word!r}.")
            try:
                limits[name] = float(limit)
            except ValueError:
                raise ConfigError(f"The limit in {word!r} is not a number of milliseconds.") from None
        return cls(limits)

    def is_kept(self, times: RequestTimes) -> bool:
        values = {
            "ttft": times.ttft_ms,
            "tpot": times.tpot_ms,
            "itl": percentile(times.itl_ms, 99),
            "e2el": times.e2el_ms,
        }
        return all(values[name] <= limit for name, limit in self.limits.items())


def percentile(values: Iterable[float], percent: float) -> float:
    """The value below which `percent` of them lie, interpolated; 0 of none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def peak_in_flight(times: Iterable[RequestTimes]) -> int:
    """How many requests were under way at once, at most."""
    changes = sorted(change for t in times for change in ((t.sent_at, 1), (t.ended_at or t.sent_at, -1)))
    peak = running = 0
    for _, change in changes:
        running += change
        peak = max(peak, running)
    return peak


def summarize(
    times: list[RequestTimes], duration_seconds: float, goodput: Goodput | None = None, **labels: object
) -> dict[str, Any]:
    """One row of results over the requests of one run; `labels` come first."""
    done = [t for t in times if t.is_done]
    row: dict[str, Any] = dict(labels)
    row["completed"] = len(done)
    row["failed"] = len(times) - len(done)
    row["duration"] = duration_seconds
    row["total_input_tokens"] = sum(t.prompt_tokens for t in done)
    row["total_output_tokens"] = sum(t.output_tokens for t in done)
    row["request_throughput"] = len(done) / duration_seconds
    row["output_throughput"] = row["total_output_tokens"] / duration_seconds
    row["total_token_throughput"] = (row["total_input_tokens"] + row["total_output_tokens"]) / duration_seconds
    row["cached_tokens_share"] = sum(t.cached_tokens for t in done) / max(1, row["total_input_tokens"])
    for name, values in (
        ("ttft", [t.ttft_ms for t in done]),
        ("tpot", [t.tpot_ms for t in done if t.output_tokens > 1]),
        ("itl", [gap for t in done for gap in t.itl_ms]),
        ("e2el", [t.e2el_ms for t in done]),
        ("queue", [t.queue_ms for t in done if t.began_at]),
    ):
        if name == "queue" and not values:  # a server does not tell when it began
            continue
        values.sort()
        row[f"mean_{name}_ms"] = statistics.fmean(values) if values else 0.0
        row[f"median_{name}_ms"] = percentile(values, 50)
        for percent in PERCENTILES:
            row[f"p{percent}_{name}_ms"] = percentile(values, percent)
    if goodput is not None and goodput.limits:
        row["request_goodput"] = sum(goodput.is_kept(t) for t in done) / duration_seconds
    later = [t for t in done if t.turn > 1]
    if later:
        history = sum(t.history_tokens for t in later)
        row["history_cached_share"] = sum(min(t.cached_tokens, t.history_tokens) for t in later) / max(1, history)
        for turn in range(1, max(t.turn for t in done) + 1):
            row[f"median_ttft_ms_turn_{turn}"] = percentile([t.ttft_ms for t in done if t.turn == turn], 50)
    errors = sorted({t.error or "no piece came" for t in times if not t.is_done})
    if errors:
        row["errors"] = errors[:10]
    return row
