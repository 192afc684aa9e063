"""Whatever holders do, the tree says of every prefix exactly who holds it, and keeps nothing that nobody holds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from inference.engine.kv.radix_tree import TokenTree, common_prefix
from tests.engine.driving import ids


class Holder:
    """Anything with an identity."""


def common(left: list[int], right: list[int]) -> int:
    return next((i for i, pair in enumerate(zip(left, right)) if pair[0] != pair[1]), min(len(left), len(right)))


@pytest.mark.parametrize("seed", range(30))
def test_random_holders_are_found_as_a_plain_scan_finds_them(seed):
    rng = random.Random(seed)
    tree: TokenTree[Holder] = TokenTree()
    held: dict[Holder, list[int]] = {Holder(): [] for _ in range(rng.choice([1, 3, 12]))}
    num_kinds = rng.choice([1, 2, 5])
    for _ in range(300):
        holder = rng.choice(list(held))
        if rng.random() < 0.6:
            other = rng.choice(list(held.values()))
            at = len(held[holder])
            news = other[at : at + rng.randint(0, 30)] if held[holder] == other[:at] and rng.random() < 0.6 else []
            news += [rng.randrange(num_kinds) for _ in range(rng.choice([0, 1, 1, 7]))]
            tree.extend(holder, ids(news))
            held[holder] += news
        else:
            length = rng.choice([0, len(held[holder]), rng.randint(0, len(held[holder]))])
            tree.truncate(holder, length)
            del held[holder][length:]
        tree.check_integrity({h: ids(tokens) for h, tokens in held.items() if tokens})

        asked = [*rng.choice(list(held.values())), *(rng.randrange(num_kinds) for _ in range(3))]
        found = tree.find(ids(asked))
        assert [s.length for s in found] == sorted({s.length for s in found}, reverse=True)
        for h, tokens in held.items():
            assert tree.length(h) == len(tokens)
            assert next((s.length for s in found if h in s.holders), 0) == common(tokens, asked)
            doubles = [o for o, others in held.items() if o is not h and others[: len(tokens)] == tokens]
            assert tree.is_doubled(h) == (not tokens or bool(doubles))
        whole = {h for h, tokens in held.items() if tokens and asked[: len(tokens)] == tokens}
        assert set(tree.ending_within(ids(asked))) == whole
    for holder in held:
        tree.remove(holder)
        tree.remove(holder)
    tree.check_integrity({})


def test_what_was_given_is_copied():
    tree: TokenTree[Holder] = TokenTree()
    holder, given = Holder(), np.array([1, 2, 3], np.int32)
    tree.extend(holder, given)
    given[:] = 9
    tree.check_integrity({holder: ids([1, 2, 3])})


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2], 2), ([1, 2, 3], [1, 9, 3], 1), ([2], [1], 0)],
)
def test_common_prefix(left, right, length):
    assert common_prefix(ids(left), ids(right)) == length
