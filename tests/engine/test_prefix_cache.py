"""The seat with the longest usable prefix is found, little is thrown away for it, and the least recent goes first."""

from __future__ import annotations

from uuid import uuid4

import pytest

from inference.engine.prefix_cache import PrefixCache, common_prefix
from inference.engine.slots import SlotPool
from tests.engine.driving import ids


def filled(*contents: tuple[str, list[int]], num_slots: int = 4, held: tuple[int, ...] = ()) -> SlotPool:
    """A pool whose slots hold (salt, tokens), used in that order."""
    pool = SlotPool(num_slots, 1000)
    for index, (salt, tokens) in enumerate(contents):
        pool.take(pool[index], uuid4(), salt)
        pool[index].extend(ids(tokens))
        if index not in held:
            pool.release(pool[index])
    pool.check_integrity()
    return pool


SYSTEM = list(range(100))


def test_next_turn_takes_over_its_own_slot():
    pool = filled(("a", [*SYSTEM, 1, 2, 3]), ("a", [*SYSTEM, 7, 8, 9]))
    seat = PrefixCache(pool).find_seat(ids([*SYSTEM, 7, 8, 9, 10]), "a")
    assert (seat.slot.index, seat.num_reused, seat.source) == (1, 103, None)


def test_new_conversation_copies_the_system_prompt_and_spares_the_old_one():
    pool = filled(("a", [*SYSTEM, *range(500, 900)]))
    seat = PrefixCache(pool).find_seat(ids([*SYSTEM, 3, 4]), "a")
    assert (seat.slot.index, seat.num_reused, seat.source) == (1, 100, pool[0])


def test_prefix_in_a_held_slot_is_copied():
    pool = filled(("a", [*SYSTEM, 1]), held=(0,))
    seat = PrefixCache(pool).find_seat(ids([*SYSTEM, 1, 2]), "a")
    assert (seat.num_reused, seat.source) == (101, pool[0])
    assert seat.slot is not pool[0]


def test_short_prefix_is_not_worth_a_copy():
    pool = filled(("a", [1, 2, 3, 4]), held=(0,))
    seat = PrefixCache(pool).find_seat(ids([1, 2, 3, 4, 5]), "a")
    assert (seat.num_reused, seat.source) == (0, None)


def test_only_free_slot_is_taken_over_even_at_a_loss():
    pool = filled(("a", [*SYSTEM, *range(500, 900)]), num_slots=1)
    seat = PrefixCache(pool).find_seat(ids([*SYSTEM, 3]), "a")
    assert (seat.slot.index, seat.num_reused, seat.source) == (0, 100, None)


def test_other_salt_is_worth_nothing():
    pool = filled(("a", [*SYSTEM, 1]), num_slots=1)
    seat = PrefixCache(pool).find_seat(ids([*SYSTEM, 1, 2]), "b")
    assert seat.num_reused == 0


def test_last_token_is_never_reused():
    pool = filled(("a", SYSTEM), num_slots=1)
    assert PrefixCache(pool).find_seat(ids(SYSTEM), "a").num_reused == 99
    assert PrefixCache(pool).find_seat(ids([0]), "a").num_reused == 0


def test_empty_slot_goes_before_the_least_recently_used():
    pool = filled(("a", [1] * 9), ("a", [2] * 9), ("a", [3] * 9))
    cache = PrefixCache(pool)
    assert cache.find_seat(ids([5, 5]), "a").slot.index == 3
    pool.take(pool[3], uuid4(), "a")
    assert cache.find_seat(ids([5, 5]), "a").slot.index == 0
    pool.touch(pool[0])
    assert cache.find_seat(ids([5, 5]), "a").slot.index == 1


def test_no_free_slot_is_no_seat():
    pool = filled(("a", [1]), ("a", [2]), num_slots=2, held=(0, 1))
    assert PrefixCache(pool).find_seat(ids([1, 2]), "a") is None


def test_held_slot_cannot_be_taken_and_foreign_tokens_not_be_taken_over():
    pool = filled(("a", [1]), ("a", [2]), num_slots=2, held=(0,))
    with pytest.raises(AssertionError):
        pool.take(pool[0], uuid4(), "a")
    with pytest.raises(AssertionError, match="salt"):
        pool.take(pool[1], uuid4(), "b")


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2], 2), ([1, 2, 3], [1, 9, 3], 1), ([2], [1], 0)],
)
def test_common_prefix(left, right, length):
    assert common_prefix(ids(left), ids(right)) == length
