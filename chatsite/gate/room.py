"""What all bodies on their way may take together in one process, and how many of them may come from one address.

The first bytes of each, as many as a stranger may send, are not counted: small requests go on while large ones fill the
room, and the number of bodies bounds them.
"""

from __future__ import annotations

from collections import Counter

MAX_BODIES = 1_024  # that are not complete, from everywhere


class TooManyBodies(Exception):
    """As many bodies as may be are on their way from this address, or from everywhere."""


class RoomFull(Exception):
    """The bodies that are being read take all the room there is for them."""


class Room:
    def __init__(self, *, max_bytes: int, max_per_address: int) -> None:
        self._max_bytes = max_bytes
        self._max_per_address = max_per_address
        self._num_bytes = 0
        self._num_coming: Counter[str] = Counter()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def num_coming(self) -> int:
        return self._num_coming.total()

    def seat(self, address: str) -> Place:
        """A place for a body that begins to come.

        Raises:
            TooManyBodies: there is none.
        """
        if self._num_coming[address] >= self._max_per_address or self.num_coming >= MAX_BODIES:
            raise TooManyBodies
        self._num_coming[address] += 1
        return Place(self, address)

    def check(self, num_bytes: int) -> None:
        """Raises `RoomFull` where so many more would not fit now."""
        if self._num_bytes + num_bytes > self._max_bytes:
            raise RoomFull

    def take(self, num_bytes: int) -> None:
        self.check(num_bytes)
        self._num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self._num_bytes -= num_bytes

    def leave(self, address: str) -> None:
        self._num_coming[address] -= 1
        if not self._num_coming[address]:
            del self._num_coming[address]


class Place:
    """One body's: its seat while it comes, its bytes while it is of use."""

    def __init__(self, room: Room, address: str) -> None:
        self._room = room
        self._address = address
        self._is_coming = True
        self._num_bytes = 0

    def grow_to(self, num_bytes: int) -> None:
        """Raises `RoomFull` where there is no room for so many."""
        if num_bytes > self._num_bytes:
            self._room.take(num_bytes - self._num_bytes)
            self._num_bytes = num_bytes

    def has_come(self) -> None:
        if self._is_coming:
            self._is_coming = False
            self._room.leave(self._address)

    def free(self) -> None:
        self.has_come()
        self._room.give_back(self._num_bytes)
        self._num_bytes = 0
