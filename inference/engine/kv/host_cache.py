"""Prefixes that left their slot and are kept in host memory, until they are wanted again or the room is.

Owns the copies and their number of bytes; the least recently used go first. Knows nothing of a backend or of who
shares what: `admission.py` copies to and from the device, `prefix_cache.py` finds entries. Engine thread only.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.engine.logits import SlotState, TokenIds


@dataclass(frozen=True, eq=False)
class HostEntry:
    """What a slot held: `ids`, exactly as evaluated, and the backend's `state` of them. As with a slot, the first
    `num_shared` ids are anybody's and the rest usable by the same `salt` alone."""

    ids: TokenIds
    salt: str
    num_shared: int
    state: SlotState

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_bytes(self) -> int:
        return self.ids.nbytes + self.state.nbytes


class HostCache:
    """At most `max_bytes` of entries; 0 keeps none."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: dict[HostEntry, None] = {}  # the least recently used first
        self._bytes_per_token = 0.0

    @property
    def entries(self) -> list[HostEntry]:
        """The least recently used first."""
        return list(self._entries)

    @property
    def num_entries(self) -> int:
        return len(self._entries)

    def has_room_for(self, num_tokens: int) -> bool:
        """Whether an entry of so many tokens could be kept at all, by what the last one took."""
        return self.max_bytes > 0 and num_tokens * self._bytes_per_token <= self.max_bytes

    def add(self, entry: HostEntry) -> list[HostEntry]:
        """Keep `entry`; returns what had to go for it (itself, when it is larger than all the room there is)."""
        self._bytes_per_token = entry.num_bytes / entry.num_tokens
        self._entries[entry] = None
        self.num_bytes += entry.num_bytes
        gone = []
        if entry.num_bytes > self.max_bytes:
            gone.append(entry)
            self.drop(entry)
        while self.num_bytes > self.max_bytes:
            eldest = next(iter(self._entries))
            gone.append(eldest)
            self.drop(eldest)
        return gone

    def drop(self, entry: HostEntry) -> None:
        """Forget `entry`; nothing happens when it is gone already."""
        if entry in self._entries:
            del self._entries[entry]
            self.num_bytes -= entry.num_bytes

    def touch(self, entry: HostEntry) -> None:
        """Note that `entry` was of use just now."""
        if entry in self._entries:
            del self._entries[entry]
            self._entries[entry] = None

    def check_integrity(self) -> None:
        """Raise AssertionError if the sum is wrong or the room exceeded."""
        assert self.num_bytes == sum(entry.num_bytes for entry in self._entries)
        assert self.num_bytes <= self.max_bytes, (self.num_bytes, self.max_bytes)
