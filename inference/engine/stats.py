"""What the engine says of itself: totals and timings, for heartbeats, metrics and the ops page."""

from __future__ import annotations

from dataclasses import dataclass

from inference.messages.generation import ErrorFacts


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """A snapshot. Counts that begin with num_ and end in tokens, steps or forwards only ever grow, but for
    `num_held_tokens`.

    A step's time is forward (from the call to the last logit) + sampling + host (everything else, the engine's own
    overhead); the `_seconds_total` are sums over all steps, `last_step_seconds` is the whole of the newest one.
    """

    is_alive: bool
    error: ErrorFacts | None  # why the engine's thread died, when it did
    num_slots: int
    num_running: int
    num_waiting: int
    num_free_slots: int  # what could be submitted now without waiting
    num_decoded_tokens: int  # tokens sampled, end-of-generation tokens included
    num_prefilled_tokens: int
    num_cached_tokens: int  # not prefilled, thanks to the prefix cache
    num_host_restored_tokens: int  # of these, those that came out of host memory
    num_evictions: int  # slots whose cached tokens all had to go for others
    num_preemptions: int  # times a running sequence had to wait again
    num_held_tokens: int  # what the slots hold now, cached or in use
    pool_tokens: int  # what they can hold in all
    host_cache_bytes: int  # what the prefixes in host memory take now
    num_steps: int
    num_failed_forwards: int
    num_bad_rows: int
    num_undecided_rows: int  # sampled again from the whole row, the device's excerpt being too little
    seconds_since_step: float  # since the last step ended, while there is work; else 0
    last_step_seconds: float
    forward_seconds_total: float
    sampling_seconds_total: float
    host_seconds_total: float
    decode_step_ms: float  # mean step without prefill; 0 = not measured
    ms_per_prefill_token: float  # 0 = not measured

    @property
    def host_seconds_per_step(self) -> float:
        return self.host_seconds_total / self.num_steps if self.num_steps else 0.0


@dataclass
class Totals:
    """The counters behind EngineStats. Written on the engine's thread alone; any thread may read single values."""

    num_decoded_tokens: int = 0
    num_prefilled_tokens: int = 0
    num_cached_tokens: int = 0
    num_host_restored_tokens: int = 0
    num_evictions: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    num_failed_forwards: int = 0
    num_bad_rows: int = 0
    num_undecided_rows: int = 0
    last_step_seconds: float = 0.0
    forward_seconds: float = 0.0
    sampling_seconds: float = 0.0
    host_seconds: float = 0.0
