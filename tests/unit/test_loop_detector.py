"""Only what repeats word for word, long and often, is a loop; it is found soon after, wherever it began."""

from __future__ import annotations

import random
import time

import pytest

from inference.output.loop_detector import CHECK_EVERY, MIN_PERIODS, LoopDetector


def found_after(tokens: list[int], num_tokens: int = 512) -> int | None:
    """How many tokens it took until a loop was seen."""
    detector = LoopDetector(num_tokens)
    for count, token in enumerate(tokens, 1):
        detector.push(token)
        if detector.is_looping:
            return count
    return None


def is_loop(tokens: list[int], num_tokens: int) -> bool:
    """The rule, spelled out."""
    for period in range(1, 129):
        length = max(num_tokens, MIN_PERIODS * period)
        newest = tokens[-length:]
        if len(newest) == length and newest[period:] == newest[:-period]:
            return True
    return False


@pytest.mark.parametrize("period", [1, 2, 3, 31, 32, 33, 64, 65, 100, 127, 128])
@pytest.mark.parametrize("before", [0, 1, 100, 5000])
def test_a_loop_is_found_as_soon_as_it_is_long_enough(period: int, before: int) -> None:
    chance = random.Random(period * 10_000 + before)
    phrase = [chance.randrange(1000) for _ in range(period)]
    tokens = [2000 + n for n in range(before)] + phrase * (4000 // period)
    needed = before + max(512, MIN_PERIODS * period)
    found = found_after(tokens)
    assert found is not None
    assert needed <= found < needed + CHECK_EVERY + period


@pytest.mark.parametrize(
    "tokens",
    [
        [7] * 511,
        [7] * 200 + list(range(400)) + [7] * 200,
        [token for n in range(300) for token in (1, 2, 1000 + n, 3, 4)],  # a table: something differs in each row
        [n % 129 for n in range(4000)],  # a longer phrase than is looked for
        ([5] * 300 + [6]) * 20,
    ],
    ids=["too short", "apart", "a table", "a long phrase", "interrupted"],
)
def test_what_is_no_loop_goes_on(tokens: list[int]) -> None:
    assert found_after(tokens) is None


def test_it_is_the_rule_at_every_look() -> None:
    chance = random.Random(5)
    for _ in range(60):
        tokens: list[int] = []
        while len(tokens) < 3000:
            phrase = [chance.randrange(3) for _ in range(chance.choice([1, 2, 3, 7, 40, 128]))]
            tokens += phrase * chance.randint(1, 1200 // len(phrase))
        detector = LoopDetector(256)
        for count, token in enumerate(tokens, 1):
            detector.push(token)
            if count % CHECK_EVERY == 0:
                assert detector.is_looping == is_loop(tokens[:count], 256), count
            if detector.is_looping:
                break


def test_none_is_looked_for_when_switched_off() -> None:
    assert found_after([7] * 5000, num_tokens=0) is None


def test_it_costs_little_whatever_the_tokens() -> None:
    chance = random.Random(1)
    for tokens in ([chance.randrange(50_000) for _ in range(20_000)], ([1] * 300 + [2]) * 66):
        began = time.process_time()
        assert found_after(tokens) is None
        assert time.process_time() - began < 20e-6 * len(tokens)
