"""Who already holds the beginning of a prompt, and which slot to give up for it.

Owns the tree over what slots and host entries hold, and the policy of seats; touches no KV itself. `admission.py` asks
once per seat, on the engine's thread.

Only exact token ids count, and never the whole prompt: its last token is always evaluated again, since the logits
after it are not kept. In the tree a path is the ids that are anybody's (`num_shared`, a system prompt), then a mark
that stands for the salt, then the rest: so one lookup finds what all may use, and beyond it only what is the asker's.

The slots' own record is the truth, written after each forward. The tree catches up with it when it is asked, so a step
that only decodes costs it nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inference.engine.kv.host_cache import HostCache, HostEntry
from inference.engine.kv.radix_tree import Shared, TokenTree
from inference.engine.kv.slots import Slot, SlotPool
from inference.engine.logits import TokenIds

MIN_COPY_TOKENS = 64  # a shorter prefix is evaluated sooner than copied between slots and later evicted for it
MIN_HOST_TOKENS = 256  # the same for copying to host memory and back, on a GPU
MAX_RESTORED_SHARE = 4  # times what is gained by it: all of an entry has to be copied, however little of it is used

Holder = Slot | HostEntry

_UNKNOWN_MARK = int(np.iinfo(np.int32).min)  # of a salt that nobody holds anything of; marks count down from -1


@dataclass(frozen=True)
class Seat:
    """Where a sequence goes: into `slot`, with `num_reused` tokens that lie there already or, with a `source`, are to
    be copied from that other slot or out of host memory."""

    slot: Slot
    num_reused: int
    source: Holder | None = None


class PrefixCache:
    def __init__(
        self,
        pool: SlotPool,
        host: HostCache | None = None,
        *,
        min_copy_tokens: int = MIN_COPY_TOKENS,
        min_host_tokens: int = MIN_HOST_TOKENS,
    ) -> None:
        self._pool = pool
        self._host = host or HostCache(0)
        self._min_copy_tokens = min_copy_tokens
        self._min_host_tokens = min_host_tokens
        self._tree: TokenTree[Holder] = TokenTree()
        self._marks: dict[str, int] = {}
        self._num_marks = 0

    def find_seat(self, tokens: TokenIds, salt: str, num_shared: int = 0, *, reach: int | None = None) -> Seat | None:
        """The best free slot for a sequence of `tokens`, `num_shared` of them anybody's; None when no slot is free.

        Among equals slots below `reach` are preferred; a prefix above it is copied below where an empty slot is.

        A free slot that holds a prefix is taken over where little is lost by it (the next turn of a conversation, an
        edited message). Where much would be lost, or anything by a conversation that shares only what is anybody's, or
        where the prefix lies in a slot that is held, it is copied into the least recently used free slot instead; and
        so it is from host memory, where that holds enough more than any slot.
        """
        reach = len(self._pool) if reach is None else reach
        least_recent = self._least_recent(reach)
        if not least_recent:
            return None
        found = self._find(tokens[: len(tokens) - 1], salt, num_shared)
        seat = self._seat_by_slots(found, least_recent, num_shared, reach)
        for shared in found:
            entries = [h for h in shared.holders if isinstance(h, HostEntry)]
            if entries:
                entry = min(entries, key=lambda e: e.num_tokens)  # all that a slot is given back has to be copied
                gain = shared.length - seat.num_reused
                if gain >= self._min_host_tokens and entry.num_tokens <= MAX_RESTORED_SHARE * gain:
                    return Seat(least_recent[0], shared.length, source=entry)
                break
        return seat

    def eldest(self, spared: Holder | None = None) -> Slot | None:
        """The free slot whose cached tokens are to go next when others need the room; None when none holds any."""
        holding = [slot for slot in self._pool.all if slot.is_free and slot.num_tokens and slot is not spared]
        return min(holding, key=lambda slot: slot.last_used, default=None)

    def is_worth_keeping(self, slot: Slot, num_lost: int) -> bool:
        """Whether the slot should be copied to host memory before its last `num_lost` tokens go."""
        if num_lost < self._min_host_tokens or not self._host.has_room_for(slot.num_tokens):
            return False
        self._catch_up()
        return not self._tree.is_doubled(slot)

    def keep(self, entry: HostEntry) -> None:
        """Take an entry in; those it makes superfluous, being its beginning, and those it leaves no room for go."""
        path = self._path(entry.ids, 0, self._mark_for(entry.salt), entry.num_shared)
        for holder in self._tree.ending_within(path):
            if isinstance(holder, HostEntry):
                self.drop(holder)
        self._tree.extend(entry, path)
        for gone in self._host.add(entry):
            self._tree.remove(gone)

    def drop(self, entry: HostEntry) -> None:
        """Forget an entry."""
        self._host.drop(entry)
        self._tree.remove(entry)

    def _seat_by_slots(
        self, found: list[Shared[Holder]], least_recent: list[Slot], num_shared: int, reach: int
    ) -> Seat:
        best_free, num_in_place = max(least_recent, key=lambda slot: slot.last_used), 0
        source, num_copied = best_free, 0
        for shared in found:
            slots = [h for h in shared.holders if isinstance(h, Slot)]
            if slots and not num_copied:
                source, num_copied = min(slots, key=lambda slot: slot.index), shared.length
            free = [slot for slot in slots if slot.is_free]
            if free:
                best_free, num_in_place = max(free, key=lambda slot: slot.last_used), shared.length
                break
        if num_copied - num_in_place < self._min_copy_tokens:
            source, num_copied = best_free, num_in_place
            num_lost = best_free.num_tokens - num_in_place
            tolerable = max(self._min_copy_tokens, num_in_place) if num_in_place > num_shared else 0
            if num_in_place and num_lost <= tolerable:
                is_far = best_free.index >= reach and num_in_place >= self._min_copy_tokens
                if is_far and least_recent[0].index < reach and not least_recent[0].num_tokens:
                    return Seat(least_recent[0], num_in_place, source=best_free)
                return Seat(best_free, num_in_place)

        if num_copied < self._min_copy_tokens:
            victim = least_recent[0]
            return Seat(victim, next((s.length for s in found if victim in s.holders), 0))
        victim = next((slot for slot in least_recent if slot is not source), source)
        if victim is source:  # the only free one
            return Seat(source, num_copied)
        return Seat(victim, num_copied, source=source)

    def _least_recent(self, reach: int) -> list[Slot]:
        """The free slots as they are to be given up: empty ones first, by rising index, so that the slots in use lie
        together; then those below `reach`, then the others, both by how long they were of no use."""
        free = [slot for slot in self._pool.all if slot.is_free]
        return sorted(
            free, key=lambda s: (True, s.index >= reach, s.last_used) if s.num_tokens else (False, False, s.index)
        )

    def _find(self, tokens: TokenIds, salt: str, num_shared: int) -> list[Shared[Holder]]:
        self._catch_up()
        path = self._path(tokens, 0, self._marks.get(salt, _UNKNOWN_MARK), num_shared)
        found = self._tree.find(path)
        return [Shared(s.length - (s.length > num_shared), s.holders) for s in found]

    def _catch_up(self) -> None:
        """File what the slots hold since the last time, and drop what they do not hold any more."""
        for slot in self._pool.all:
            num_valid = _path_length(slot.num_filed, slot.num_shared)
            if self._tree.length(slot) > num_valid:
                self._tree.truncate(slot, num_valid)
            if slot.num_tokens > slot.num_filed:
                mark = self._mark_for(slot.salt)
                self._tree.extend(slot, self._path(slot.ids, slot.num_filed, mark, slot.num_shared))
                slot.num_filed = slot.num_tokens

    def _path(self, ids: TokenIds, start: int, mark: int, num_shared: int) -> TokenIds:
        """What the tree has of a holder of `ids` from position `start` on."""
        if start > num_shared or len(ids) <= num_shared:
            return ids[start:]
        return np.concatenate((ids[start:num_shared], np.array([mark], np.int32), ids[num_shared:]))

    def _mark_for(self, salt: str) -> int:
        mark = self._marks.get(salt)
        if mark is None:
            if len(self._marks) > 2 * (len(self._pool) + self._host.num_entries):
                used = {slot.salt for slot in self._pool.all} | {entry.salt for entry in self._host.entries}
                self._marks = {s: m for s, m in self._marks.items() if s in used}
            self._num_marks += 1
            mark = self._marks[salt] = -self._num_marks
        return mark

    def check_integrity(self) -> None:
        """Raise AssertionError if the tree says anything else than slots and host entries hold."""
        self._catch_up()
        self._host.check_integrity()
        holders: list[Holder] = [*(slot for slot in self._pool.all if slot.num_tokens), *self._host.entries]
        self._tree.check_integrity({h: self._path(h.ids, 0, self._mark_for(h.salt), h.num_shared) for h in holders})


def _path_length(num_tokens: int, num_shared: int) -> int:
    return num_tokens + (num_tokens > num_shared)
