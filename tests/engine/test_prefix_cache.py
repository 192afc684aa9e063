"""The seat with the longest usable prefix is found, little is thrown away for it, and the least recent goes first."""

from __future__ import annotations

import random
from uuid import uuid4

import numpy as np
import pytest

from inference.engine.kv.host_cache import HostCache, HostEntry
from inference.engine.kv.prefix_cache import PrefixCache
from inference.engine.kv.radix_tree import common_prefix
from inference.engine.kv.slots import Slot, SlotPool
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


def entry(salt: str, tokens: list[int], *, num_shared: int = 0, num_bytes: int = 1000) -> HostEntry:
    return HostEntry(ids(tokens), salt, num_shared, np.zeros(num_bytes - 4 * len(tokens), np.uint8))


def with_entries(pool: SlotPool, *entries: HostEntry, max_bytes: int = 10**6, **options: int) -> PrefixCache:
    cache = PrefixCache(pool, HostCache(max_bytes), **{"min_host_tokens": 50} | options)
    for e in entries:
        cache.keep(e)
    cache.check_integrity()
    return cache


def test_shared_beginning_is_found_by_any_salt_and_the_rest_by_its_own():
    pool = SlotPool(4, 1000)
    pool.take(pool[0], uuid4(), "a", 100)
    pool[0].extend(ids([*SYSTEM, 1, 2, 3]))
    cache = PrefixCache(pool)
    assert cache.find_seat(ids([*SYSTEM, 1, 2, 3, 4]), "b", 100).num_reused == 100
    assert cache.find_seat(ids([*SYSTEM, 1, 2, 3, 4]), "a", 100).num_reused == 103
    assert cache.find_seat(ids([*SYSTEM[:80], 9]), "b", 80).num_reused == 80
    assert cache.find_seat(ids([*SYSTEM, 1, 2, 3, 4]), "b", 0).num_reused == 0, "anna's alone, if not shared by both"
    cache.check_integrity()


def test_conversation_that_shares_only_what_is_anybodys_takes_no_slot_over():
    pool = SlotPool(3, 1000)
    for n in range(2):
        pool.take(pool[n], uuid4(), "a", 100)
        pool[n].extend(ids([*SYSTEM, 1, 2, 3][: 103 - 3 * n]))
        pool.release(pool[n])
    cache = PrefixCache(pool)
    pool.take(pool[1], uuid4(), "c", 100)
    seat = cache.find_seat(ids([*SYSTEM, 4]), "b", 100)
    assert (seat.slot.index, seat.num_reused) == (2, 100), "three tokens are anna's alone, and there is another slot"
    pool.release(pool[1])
    seat = cache.find_seat(ids([*SYSTEM, 4]), "b", 100)
    assert (seat.slot.index, seat.num_reused, seat.source) == (1, 100, None), "nothing is lost there"


def test_what_a_slot_held_before_it_was_cut_is_not_found():
    pool = filled(("a", [*SYSTEM, 1, 2, 3]), num_slots=1)
    cache = PrefixCache(pool)
    assert cache.find_seat(ids([*SYSTEM, 1, 2, 3]), "a").num_reused == 102
    pool[0].truncate(50)
    pool[0].extend(ids([*range(200, 253)]))  # as long as before
    assert cache.find_seat(ids([*SYSTEM, 1, 2, 3]), "a").num_reused == 50
    pool[0].truncate(0)
    pool.take(pool[0], uuid4(), "b")
    pool[0].extend(ids(SYSTEM))
    pool.release(pool[0])
    assert cache.find_seat(ids(SYSTEM), "a").num_reused == 0
    assert cache.find_seat(ids(SYSTEM), "b").num_reused == 99
    cache.check_integrity()


def test_host_entry_is_restored_where_it_holds_enough_more_than_any_slot():
    mine = entry("a", [*SYSTEM, *range(500, 600)])
    cache = with_entries(filled(("a", SYSTEM)), mine)
    seat = cache.find_seat(ids([*SYSTEM, *range(500, 601)]), "a")
    assert (seat.slot.index, seat.num_reused, seat.source) == (1, 200, mine)
    seat = cache.find_seat(ids([*SYSTEM, *range(500, 549), 1]), "a")
    assert (seat.num_reused, seat.source) == (100, None), "49 tokens are not worth it"
    assert cache.find_seat(ids([*SYSTEM, *range(500, 601)]), "b").num_reused == 0


def test_long_entry_is_not_copied_for_a_short_prefix():
    cache = with_entries(SlotPool(1, 5000), entry("a", [*SYSTEM, *range(1000, 4000)], num_bytes=20_000))
    assert cache.find_seat(ids([*SYSTEM, 7]), "a").source is None
    assert cache.find_seat(ids([*SYSTEM, *range(1000, 1800), 7]), "a").num_reused == 900


def test_entry_makes_its_own_beginnings_superfluous_and_no_others():
    pool = SlotPool(2, 1000)
    first, longer = entry("a", SYSTEM), entry("a", [*SYSTEM, *range(500, 600)])
    others = entry("b", SYSTEM), entry("a", [*SYSTEM, *range(600, 700)])
    cache = with_entries(pool, first, *others, longer)
    assert cache._host.entries == [*others, longer]


def test_entries_stay_within_their_bytes_and_the_least_recently_used_goes():
    cache = with_entries(SlotPool(1, 1000), *(entry(str(n), SYSTEM) for n in range(3)), max_bytes=3500)
    cache._host.touch(cache._host.entries[0])
    cache.keep(entry("3", SYSTEM))
    assert [e.salt for e in cache._host.entries] == ["2", "0", "3"]
    cache.keep(entry("4", SYSTEM, num_bytes=4000))  # too large for all the room: kept by nobody
    assert [e.salt for e in cache._host.entries] == ["2", "0", "3"]
    cache.check_integrity()


def test_slot_is_worth_keeping_when_long_enough_and_held_by_nobody_else():
    pool = filled(("a", SYSTEM), ("a", [*SYSTEM, 1]), ("b", SYSTEM[:49]))
    cache = with_entries(pool)
    assert not cache.is_worth_keeping(pool[0], 100), "another slot holds it all"
    assert cache.is_worth_keeping(pool[1], 101)
    assert not cache.is_worth_keeping(pool[1], 49), "little of it goes"
    assert not cache.is_worth_keeping(pool[2], 49)
    cache.keep(entry("a", [*SYSTEM, 1]))
    assert not cache.is_worth_keeping(pool[1], 101)
    assert not with_entries(filled(("a", SYSTEM)), max_bytes=0).is_worth_keeping(pool[0], 100)


def test_marks_of_salts_that_nobody_holds_anything_of_are_forgotten():
    pool = filled(("a", SYSTEM), num_slots=2)
    cache = with_entries(pool, max_bytes=2500)
    for n in range(500):
        cache.keep(entry(str(n), SYSTEM))
        cache.check_integrity()
    assert len(cache._marks) < 20
    assert cache.find_seat(ids(SYSTEM), "a").num_reused == 99


@pytest.mark.parametrize("seed", range(10))
def test_seat_reuses_what_a_plain_scan_of_all_holders_would(seed):
    rng = random.Random(seed)
    pool = SlotPool(5, 60)
    cache = with_entries(pool, max_bytes=4000, min_copy_tokens=1, min_host_tokens=1)

    def tokens() -> list[int]:
        return [*[7] * rng.randint(0, 8), *(rng.randrange(3) for _ in range(rng.randint(0, 8))), 9]

    def reusable(holder: Slot | HostEntry, asked: list[int], salt: str, num_shared: int) -> int:
        num = common_prefix(holder.ids, ids(asked[:-1]))
        if holder.salt == salt and holder.num_shared == num_shared:
            return num
        return min(num, holder.num_shared, num_shared)

    for _ in range(400):
        salt, asked = rng.choice("ab"), tokens()
        num_shared = rng.choice([0, min(4, len(asked)), min(9, len(asked))])
        if rng.random() < 0.2:
            cache.keep(entry(salt, asked, num_shared=num_shared, num_bytes=rng.choice([500, 1000])))
        seat = cache.find_seat(ids(asked), salt, num_shared)
        by_slots = max(reusable(slot, asked, salt, num_shared) for slot in pool.all)
        by_entries = max((reusable(e, asked, salt, num_shared) for e in cache._host.entries), default=0)
        is_gain = by_entries - by_slots >= 5  # no entry has more than four times as many tokens
        assert seat.num_reused == (by_entries if is_gain or isinstance(seat.source, HostEntry) else by_slots)
        slot = seat.slot
        slot.truncate(seat.num_reused if seat.source is None else 0)
        pool.take(slot, uuid4(), salt, num_shared)
        if seat.source is not None:
            slot.extend(seat.source.ids[: seat.num_reused])
        slot.extend(ids(asked[slot.num_tokens :]))
        pool.release(slot)
        if rng.random() < 0.2:
            slot.truncate(rng.randint(0, slot.num_tokens))
        pool.check_integrity()
        if rng.random() < 0.5:
            cache.check_integrity()


def holding(num_slots: int, contents: dict[int, list[int]]) -> tuple[SlotPool, PrefixCache]:
    pool = SlotPool(num_slots, 256)
    for index, tokens in contents.items():
        pool.take(pool[index], uuid4(), "")
        pool[index].extend(ids(tokens))
        pool.release(pool[index])
    return pool, PrefixCache(pool, min_copy_tokens=4)


def test_new_conversations_take_empty_slots_first_then_cached_ones_within_reach():
    pool, cache = holding(6, {0: [1] * 9, 1: [2] * 9, 4: [3] * 9, 5: [4] * 9})
    seats = []
    for number in range(6):
        seat = cache.find_seat(ids([50 + number] * 8), "", reach=3)
        seats.append(seat.slot.index)
        seat.slot.truncate(0)
        pool.take(seat.slot, uuid4(), "")
    assert seats == [2, 3, 0, 1, 4, 5]


def test_a_prefix_beyond_reach_is_copied_into_an_empty_slot_and_else_taken_over():
    told = list(range(1, 40))
    pool, cache = holding(6, {0: [9] * 9, 5: told})
    seat = cache.find_seat(ids([*told, 77]), "", reach=3)
    assert (seat.slot.index, seat.source, seat.num_reused) == (1, pool[5], len(told))
    pool, cache = holding(3, {0: [9] * 9, 1: [8] * 9, 2: told})
    seat = cache.find_seat(ids([*told, 77]), "", reach=1)
    assert (seat.slot.index, seat.source, seat.num_reused) == (2, None, len(told))
