"""A free answer whose tool calls follow a grammar once they begin: `engine.constraint.Constraint` around another.

Owns whether a call is being written. Knows no grammar and no engine; `grammar.matcher` makes it. Outside of calls
everything is allowed, and the engine need not look at a mask.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from inference.engine.constraint import Constraint, TokenMask


class Restartable(Constraint, Protocol):
    """A constraint that can hold one call after another."""

    def restart(self) -> None:
        """Stand at the beginning again."""


class CallsOnceBegun:
    """`call` holds what comes behind the tag `open_id`, up to its own end."""

    def __init__(self, open_id: int, call: Restartable, vocab_size: int) -> None:
        self._open_id = open_id
        self._call = call
        self._is_in_call = False
        self._everything = np.full((vocab_size + 31) // 32, 0xFFFFFFFF, np.uint32)

    @property
    def is_complete(self) -> bool:
        return False

    @property
    def is_open(self) -> bool:
        return not self._is_in_call

    def mask(self) -> TokenMask:
        return self._call.mask() if self._is_in_call else self._everything

    def accept(self, token: int) -> None:
        """Raises as the call's constraint does."""
        if self._is_in_call:
            self._call.accept(token)
            self._is_in_call = not self._call.is_complete
        elif token == self._open_id:
            self._call.restart()
            self._is_in_call = True
