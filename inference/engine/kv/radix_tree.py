"""A radix tree over ids: who holds which beginning of what, each common beginning written once.

Owns the runs of ids and, per run, who holds it; a run that nobody holds any more is gone at once. Knows nothing of
slots, KV memory or salts: `prefix_cache.py` says who its holders are and which ids their paths have. Engine thread
only.

A lookup reads each id of the path once. A holder that nobody shares its end with grows in place, so a growing answer
costs what its new ids cost.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from inference.engine.logits import TokenIds

H = TypeVar("H", bound=Hashable)

_NO_IDS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Shared(Generic[H]):
    """All of `holders` hold the first `length` ids that were looked up. A view, good until the tree changes."""

    length: int
    holders: AbstractSet[H]


class _Node(Generic[H]):
    """A run of ids between two branchings. Every holder of it holds all runs above it too."""

    __slots__ = ("_ids", "children", "holders", "length", "parent")

    def __init__(self, parent: _Node[H] | None, run: TokenIds, holders: set[H]) -> None:
        self.parent = parent
        self.children: dict[int, _Node[H]] = {}
        self.holders = holders
        self.length = len(run)
        self._ids = run.copy()

    @property
    def run(self) -> TokenIds:
        return self._ids[: self.length]

    @property
    def first(self) -> int:
        return int(self._ids[0])

    def append(self, ids: TokenIds) -> None:
        end = self.length + len(ids)
        if end > len(self._ids):
            grown = np.empty(max(end, 2 * len(self._ids)), np.int32)  # doubled: each id is copied twice at most
            grown[: self.length] = self.run
            self._ids = grown
        self._ids[self.length : end] = ids
        self.length = end

    def replace(self, run: TokenIds) -> None:
        self._ids = run.copy()
        self.length = len(run)


class TokenTree(Generic[H]):
    """A holder's path is the ids it holds, from the first on; a holder without ids is not in the tree."""

    def __init__(self) -> None:
        self._root: _Node[H] = _Node(None, _NO_IDS, set())
        self._ends: dict[H, _Node[H]] = {}
        self._lengths: dict[H, int] = {}

    def length(self, holder: H) -> int:
        """How many ids `holder` holds."""
        return self._lengths.get(holder, 0)

    def is_doubled(self, holder: H) -> bool:
        """Whether all that `holder` holds is held by somebody else too."""
        end = self._ends.get(holder)
        return end is None or len(end.holders) > 1

    def find(self, ids: TokenIds) -> list[Shared[H]]:
        """Who holds how much of the beginning of `ids`, the longest first.

        Whoever is among the holders of one entry is so in all that follow: the first entry with it is the one that
        counts.
        """
        found: list[Shared[H]] = []
        node, depth = self._root, 0
        while depth < len(ids):
            child = node.children.get(int(ids[depth]))
            if child is None:
                break
            num_common = common_prefix(child.run, ids[depth:])
            depth += num_common
            found.append(Shared(depth, child.holders))
            if num_common < child.length:
                break
            node = child
        found.reverse()
        return found

    def ending_within(self, ids: TokenIds) -> list[H]:
        """Those whose whole path is a beginning of `ids`, or all of it."""
        found = self.find(ids)
        return [h for shared in found for h in shared.holders if self._lengths[h] == shared.length]

    def extend(self, holder: H, ids: TokenIds) -> None:
        """`holder` holds `ids` after those it held before."""
        if not len(ids):
            return
        node = self._ends.get(holder, self._root)
        self._lengths[holder] = self._lengths.get(holder, 0) + len(ids)
        while len(ids):
            if node is not self._root and not node.children and len(node.holders) == 1:
                node.append(ids)  # the only holder there is is this one
                break
            child = node.children.get(int(ids[0]))
            if child is None:
                child = _Node(node, ids, {holder})
                node.children[child.first] = child
                node = child
                break
            num_common = common_prefix(child.run, ids)
            if num_common < child.length:
                child = self._split(child, num_common)
            child.holders.add(holder)
            self._join(node)
            node, ids = child, ids[num_common:]
        self._ends[holder] = node

    def truncate(self, holder: H, length: int) -> None:
        """`holder` holds only its first `length` ids any more."""
        depth = self._lengths.get(holder, 0)
        assert 0 <= length <= depth, (length, depth)
        if length == depth:
            return
        node = self._ends[holder]
        while depth - node.length >= length and node.parent is not None:
            depth -= node.length
            node = self._leave(node, holder)
        if length == 0:
            del self._ends[holder], self._lengths[holder]
            return
        if depth > length:
            rest = node
            node = self._split(node, length - (depth - node.length))
            self._leave(rest, holder)
        self._ends[holder], self._lengths[holder] = node, length

    def remove(self, holder: H) -> None:
        """Forget `holder`; nothing happens when it holds nothing."""
        self.truncate(holder, 0)

    def _leave(self, node: _Node[H], holder: H) -> _Node[H]:
        """Take `holder` out of one node and put right what that leaves behind; returns the node's parent."""
        parent = node.parent
        assert parent is not None, "nobody leaves the root"
        node.holders.remove(holder)
        if not node.holders:
            assert not node.children, "held below, but not here"
            del parent.children[node.first]
        else:
            self._join(node)
        return parent

    def _split(self, node: _Node[H], length: int) -> _Node[H]:
        """Put the first `length` ids of a node into a new one above it, and return that. `node` keeps the rest, and
        with it those whose path ends there."""
        assert 0 < length < node.length, (length, node.length)
        assert node.parent is not None
        run = node.run
        upper = _Node(node.parent, run[:length], set(node.holders))
        node.parent.children[upper.first] = upper
        node.replace(run[length:])
        node.parent = upper
        upper.children[node.first] = node
        return upper

    def _join(self, node: _Node[H]) -> None:
        """Put a node and its only child together where the same hold both: without this, every branch that once was
        would leave a cut behind."""
        if len(node.children) != 1 or node.parent is None:
            return
        (child,) = node.children.values()
        if len(child.holders) != len(node.holders):
            return
        child.replace(np.concatenate((node.run, child.run)))
        child.parent = node.parent
        node.parent.children[child.first] = child

    def check_integrity(self, paths: dict[H, TokenIds]) -> None:
        """Raise AssertionError unless exactly these holders are here, with exactly these paths."""
        assert set(paths) == set(self._ends) == set(self._lengths), "other holders"
        for holder, ids in paths.items():
            runs, node = [], self._ends[holder]
            while node.parent is not None:
                assert holder in node.holders
                assert node.parent.children[node.first] is node
                runs.append(node.run)
                node = node.parent
            assert node is self._root
            assert np.array_equal(np.concatenate(runs[::-1]), ids), "a path differs from what its holder holds"
        open_nodes = list(self._root.children.values())
        while open_nodes:
            node = open_nodes.pop()
            assert node.holders <= set(paths), "a run that nobody holds"
            assert node.holders, "a run without holders"
            ending = {holder for holder in node.holders if self._ends[holder] is node}
            below = [child.holders for child in node.children.values()]
            assert sum(len(holders) for holders in below) + len(ending) == len(node.holders), "a holder lost or doubled"
            assert ending or len(below) != 1, "a cut that no branch needs"
            open_nodes += node.children.values()


def common_prefix(left: TokenIds, right: TokenIds) -> int:
    """How many ids both begin with."""
    length = min(len(left), len(right))
    if length == 0 or left[0] != right[0]:
        return 0
    differs = left[:length] != right[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
