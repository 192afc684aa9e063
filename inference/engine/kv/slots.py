"""The slots of the KV cache: who holds each, and exactly which token ids are evaluated in it.

Owns the record, not the memory: the engine does to the backend what it writes down here, and writes it down only after
the backend did it. Knows nothing of models or policy. Engine thread only.

The backend may hold less in all than slots x context; how many tokens fit is `admission.py`'s to count.
"""

from __future__ import annotations

from uuid import UUID

import numpy as np

from inference.engine.logits import TokenIds


class Slot:
    """One seat. Its token ids outlive the holder: they are the prefix cache. The first `num_shared` positions are
    anybody's, those that follow usable by the same `salt` alone.

    `num_filed` of its ids have stood as they are since the prefix cache last looked.
    """

    def __init__(self, index: int, context_tokens: int) -> None:
        self.index = index
        self.holder: UUID | None = None
        self.salt = ""
        self.num_shared = 0
        self.last_used = 0  # ticks of the pool's own clock
        self.num_tokens = 0
        self.num_filed = 0
        self._ids = np.zeros(context_tokens, np.int32)

    @property
    def is_free(self) -> bool:
        return self.holder is None

    @property
    def ids(self) -> TokenIds:
        """Token ids of positions 0, 1, 2, … as evaluated; a view."""
        return self._ids[: self.num_tokens]

    @property
    def num_room(self) -> int:
        return len(self._ids) - self.num_tokens

    def extend(self, tokens: TokenIds) -> None:
        """Write down that `tokens` were evaluated after those already there."""
        assert len(tokens) <= self.num_room, (self.index, len(tokens), self.num_room)
        self._ids[self.num_tokens : self.num_tokens + len(tokens)] = tokens
        self.num_tokens += len(tokens)

    def truncate(self, length: int) -> None:
        """Write down that only the first `length` positions are left."""
        assert 0 <= length <= self.num_tokens, (self.index, length, self.num_tokens)
        self.num_tokens = length
        self.num_filed = min(self.num_filed, length)


class SlotPool:
    """All slots of a backend. A slot has at most one holder, and a holder one slot."""

    def __init__(self, num_slots: int, context_tokens: int) -> None:
        self._slots = [Slot(index, context_tokens) for index in range(num_slots)]
        self._ticks = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> Slot:
        return self._slots[index]

    @property
    def all(self) -> list[Slot]:
        return self._slots

    @property
    def num_free(self) -> int:
        return sum(slot.is_free for slot in self._slots)

    @property
    def num_tokens(self) -> int:
        """What all slots hold; a position that several hold through a copy counts once for each."""
        return sum(slot.num_tokens for slot in self._slots)

    def take(self, slot: Slot, holder: UUID, salt: str, num_shared: int = 0) -> None:
        """Seat `holder`. What the slot still holds must be anybody's, or of the same salt."""
        assert slot.is_free, (slot.index, slot.holder, holder)
        is_same = slot.salt == salt and slot.num_shared == num_shared
        assert is_same or slot.num_tokens <= min(slot.num_shared, num_shared), "cached tokens of another salt"
        slot.holder = holder
        slot.salt = salt
        slot.num_shared = num_shared
        self.touch(slot)

    def release(self, slot: Slot) -> None:
        """Unseat the holder; the tokens stay as cache."""
        assert not slot.is_free, slot.index
        slot.holder = None
        self.touch(slot)

    def touch(self, slot: Slot) -> None:
        """Note that the slot was of use just now."""
        self._ticks += 1
        slot.last_used = self._ticks

    def check_integrity(self) -> None:
        """Raise AssertionError if the record contradicts itself."""
        holders = [slot.holder for slot in self._slots if slot.holder is not None]
        assert len(holders) == len(set(holders)), "one holder in two slots"
        for index, slot in enumerate(self._slots):
            assert slot.index == index, (slot.index, index)
            assert 0 <= slot.num_filed <= slot.num_tokens <= slot.num_tokens + slot.num_room, index
            assert slot.last_used <= self._ticks, index
