"""Seats and room: which waiting sequence gets which slot, with how much of its prompt already in it, and whether the
backend's memory is enough for it.

Owns the record of the slots, the prefix cache over them and over host memory, and does to the backend's memory what it
writes down. Chooses no work and evaluates nothing. The step loop calls it, on the engine's thread alone.

Where the slots share a pool smaller than all their contexts, a sequence is seated only when it and everybody who runs
have room for what they hold and the next stretch of their answers. When the pool is full all the same, cached tokens of
free slots go first; what then is still missing the loop has to preempt. One sequence alone always has room: its
`context_tokens` is never more than the pool.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import structlog

from inference.engine.backend import Backend
from inference.engine.kv.host_cache import HostCache, HostEntry
from inference.engine.kv.prefix_cache import PrefixCache, Seat
from inference.engine.kv.slots import Slot, SlotPool
from inference.engine.sequence import Sequence
from inference.engine.stats import Totals
from inference.errors import EngineError

ANSWER_STRETCH_TOKENS = 256  # of each answer that are reserved ahead: whoever is preempted got on by about so many

_PLAY = 8  # slots

log = structlog.get_logger(__name__)


class Admission:
    def __init__(
        self,
        backend: Backend,
        totals: Totals,
        *,
        min_copy_tokens: int,
        min_host_tokens: int,
        host_cache_bytes: int,
    ) -> None:
        self._backend = backend
        self._totals = totals
        self._pool = SlotPool(backend.num_slots, backend.context_tokens)
        self._host = HostCache(host_cache_bytes)
        self._cache = PrefixCache(
            self._pool, self._host, min_copy_tokens=min_copy_tokens, min_host_tokens=min_host_tokens
        )
        self._is_bounded = backend.pool_tokens < backend.num_slots * backend.context_tokens

    @property
    def num_held_tokens(self) -> int:
        """What all slots hold, cached or in use."""
        return self._pool.num_tokens

    @property
    def host_cache_bytes(self) -> int:
        """What the prefixes in host memory take."""
        return self._host.num_bytes

    def has_room(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Whether `sequence` could be seated if just those ran."""
        if len(running) >= len(self._pool):
            return False
        if not self._is_bounded:
            return True
        return _reserved(sequence) + sum(_reserved(s) for s in running) <= self._backend.pool_tokens

    def seat(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Give a waiting sequence a slot; what the prefix cache has of it counts as evaluated. False: no room."""
        if not self.has_room(sequence, running):
            return False
        reach = None
        if self._backend.wants_low_slots:
            # Some play, so that the cache of a slot is not given up whenever one more or less runs.
            reach = ((len(self._pool) - self._pool.num_free) // _PLAY + 1) * _PLAY
        while True:
            seat = self._cache.find_seat(sequence.history.ids, sequence.salt, sequence.num_shared, reach=reach)
            assert seat is not None, "fewer run than there are slots, and none is free"
            if self._take(sequence, seat):
                return True

    def make_room(self, num_tokens: int, *, spared: Slot | HostEntry | None = None) -> bool:
        """Have the pool hold `num_tokens` more, at the cost of free slots' cached tokens; False: it is too little."""
        if not self._is_bounded:
            return True
        while self._pool.num_tokens + num_tokens > self._backend.pool_tokens:
            slot = self._cache.eldest(spared)
            if slot is None:
                return False
            self._give_up(slot, 0)
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Write down that a forward evaluated the next `num_tokens` of a seated sequence."""
        assert sequence.slot is not None
        start = sequence.num_evaluated
        self._pool[sequence.slot].extend(sequence.history.part(start, start + num_tokens))
        sequence.num_evaluated += num_tokens

    def clear(self, sequence: Sequence) -> None:
        """Forget all that is evaluated of a seated sequence, in the backend too."""
        assert sequence.slot is not None
        self._backend.remove_range(sequence.slot, 0)
        self._pool[sequence.slot].truncate(0)
        sequence.num_evaluated = 0

    def take_back(self, sequence: Sequence) -> None:
        """Have the newest token of a seated sequence evaluated once more."""
        assert sequence.slot is not None
        sequence.num_evaluated -= 1
        self._backend.remove_range(sequence.slot, sequence.num_evaluated)
        self._pool[sequence.slot].truncate(sequence.num_evaluated)

    def release(self, sequence: Sequence) -> None:
        """Free the slot of a sequence, if it has one; what is evaluated stays there as prefix cache."""
        if sequence.slot is not None:
            self._pool.release(self._pool[sequence.slot])
            sequence.slot = None
            sequence.num_evaluated = 0

    def _take(self, sequence: Sequence, seat: Seat) -> bool:
        """Seat a sequence; False: the backend refused what host memory had, which is dropped, and another is to be
        found."""
        slot, source, num_reused = seat.slot, seat.source, seat.num_reused
        self._give_up(slot, num_reused if source is None else 0)
        if source is not None:
            num_needed = source.num_tokens if isinstance(source, HostEntry) else num_reused
            if not self.make_room(num_needed, spared=source):
                # Not room enough to have it twice. A held slot is never the source here: what runs and the new one fit.
                slot, source, num_reused = (source, None, num_reused) if isinstance(source, Slot) else (slot, None, 0)
                self._give_up(slot, num_reused)
        if isinstance(source, HostEntry) and not self._restore(slot, source, num_reused):
            return False
        self._pool.take(slot, sequence.key, sequence.salt, sequence.num_shared)
        if isinstance(source, Slot):
            self._backend.copy_prefix(source.index, slot.index, num_reused)
            self._pool.touch(source)
        if source is not None:
            slot.extend(source.ids[:num_reused])
        sequence.slot = slot.index
        self._backend.set_whole(slot.index, sequence.wants_whole_rows)
        sequence.num_evaluated = num_reused
        self._totals.num_cached_tokens += num_reused
        if not sequence.num_preemptions:  # what it finds again of its own is no news to whoever asked
            sequence.num_cached = min(num_reused, sequence.history.num_prompt)
        return True

    def _give_up(self, slot: Slot, num_kept: int) -> None:
        """Drop what a free slot holds beyond its first `num_kept` tokens, into host memory where that is worth it."""
        num_lost = slot.num_tokens - num_kept
        if num_lost == 0:
            return
        if self._cache.is_worth_keeping(slot, num_lost):
            try:
                state = self._backend.save(slot.index)
            except EngineError as error:
                log.warning("slot_not_saved", slot=slot.index, num_tokens=slot.num_tokens, code=error.code)
            else:
                self._cache.keep(HostEntry(slot.ids.copy(), slot.salt, slot.num_shared, state))
        self._backend.remove_range(slot.index, num_kept)
        slot.truncate(num_kept)
        if num_kept == 0:
            self._totals.num_evictions += 1

    def _restore(self, slot: Slot, entry: HostEntry, num_reused: int) -> bool:
        """Put the first `num_reused` tokens of an entry into an empty slot of the backend. False: it refused, the slot
        is still empty and the entry gone."""
        if not self._backend.restore(slot.index, entry.state):
            self._backend.remove_range(slot.index, 0)
            self._cache.drop(entry)
            return False
        if entry.num_tokens > num_reused:
            self._backend.remove_range(slot.index, num_reused)
        if entry.num_tokens > num_reused + 1:
            self._host.touch(entry)
        else:
            self._cache.drop(entry)  # the slot has it all now; it comes back, with what follows, when that is given up
        self._totals.num_host_restored_tokens += num_reused
        return True

    def check_integrity(self, running: list[Sequence]) -> None:
        """Raise AssertionError if the record contradicts itself or the sequences that run."""
        self._pool.check_integrity()
        self._cache.check_integrity()
        assert self._pool.num_tokens <= self._backend.pool_tokens, "more tokens than the pool holds"
        held = {slot.holder: slot for slot in self._pool.all if slot.holder is not None}
        assert set(held) == {s.key for s in running}, "slots and running sequences differ"
        for sequence in running:
            slot = held[sequence.key]
            assert sequence.slot == slot.index
            assert (sequence.salt, sequence.num_shared) == (slot.salt, slot.num_shared)
            assert sequence.num_evaluated == slot.num_tokens
            assert np.array_equal(slot.ids, sequence.history.part(0, slot.num_tokens)), "the slot holds other tokens"


def _reserved(sequence: Sequence) -> int:
    """The tokens a sequence will have after the next stretch of its answer."""
    stretch = min(sequence.max_tokens - sequence.history.num_generated, ANSWER_STRETCH_TOKENS)
    return min(sequence.num_tokens + stretch, sequence.context_tokens)
