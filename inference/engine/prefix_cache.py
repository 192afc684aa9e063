"""Which slot already holds the beginning of a prompt, and which slot to give up for it.

Policy over the records of `slots.py`; touches no KV itself. The engine asks once per admission, on its thread.

Only exact token ids of the same salt count, and never the whole prompt: its last token is always evaluated again, since
the logits after it are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.engine.backend import TokenIds
from inference.engine.slots import Slot, SlotPool

MIN_COPY_TOKENS = 64  # a shorter prefix is evaluated sooner than copied between slots and later evicted for it


@dataclass(frozen=True)
class Seat:
    """Where a sequence goes: into `slot`, with `num_reused` tokens that lie there already or, with a `source`, are to
    be copied from that other slot."""

    slot: Slot
    num_reused: int
    source: Slot | None = None


class PrefixCache:
    def __init__(self, pool: SlotPool, *, min_copy_tokens: int = MIN_COPY_TOKENS) -> None:
        self._pool = pool
        self._min_copy_tokens = min_copy_tokens

    def find_seat(self, tokens: TokenIds, salt: str) -> Seat | None:
        """The best free slot for a sequence of `tokens`; None when no slot is free.

        A free slot that holds a prefix is taken over where little is lost by it (the next turn of a conversation, an
        edited message). Where much would be lost (a new conversation that shares only the system prompt), or the
        prefix lies in a slot that is held, the prefix is copied into the least recently used free slot instead.
        """
        free = [slot for slot in self._pool.all if slot.is_free]
        if not free:
            return None
        shared = {
            slot.index: common_prefix(slot.ids, tokens[: len(tokens) - 1])
            for slot in self._pool.all
            if slot.num_tokens and slot.salt == salt
        }
        best_free = max(free, key=lambda slot: (shared.get(slot.index, 0), slot.last_used))
        num_in_place = shared.get(best_free.index, 0)
        source = max(self._pool.all, key=lambda slot: shared.get(slot.index, 0))
        if shared.get(source.index, 0) - num_in_place < self._min_copy_tokens:
            source = best_free
            num_lost = best_free.num_tokens - num_in_place
            if num_in_place and num_lost <= max(self._min_copy_tokens, num_in_place):
                return Seat(best_free, num_in_place)

        num_copied = shared.get(source.index, 0)
        least_recent = sorted(free, key=lambda slot: (slot.num_tokens > 0, slot.last_used))
        if num_copied < self._min_copy_tokens:
            victim = least_recent[0]
            return Seat(victim, shared.get(victim.index, 0))
        victim = next((slot for slot in least_recent if slot is not source), source)
        if victim is source:  # the only free one
            return Seat(source, num_copied)
        return Seat(victim, num_copied, source=source)


def common_prefix(left: TokenIds, right: TokenIds) -> int:
    """How many ids both begin with."""
    length = min(len(left), len(right))
    if length == 0 or left[0] != right[0]:
        return 0
    differs = left[:length] != right[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
