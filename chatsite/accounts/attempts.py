"""How often signing in may fail: growing waits, for one who guesses and for nobody else.

A name from one address has a few tries, then one at a time after waits that double. All names together from one
address, and one name from all addresses, have wide caps against guessing on many names or from many places. A browser
that has signed in to an account before is spared all three: it has tries of its own, so nobody can lock its owner out.
Counted in the cache, before a password is looked at and taken back when it was right, so that guesses at once count
too. Called by `adapter`, from any thread.
"""

from __future__ import annotations

import hashlib
import time
import unicodedata
from dataclasses import dataclass
from typing import Protocol

import structlog
from allauth.core.internal.ratelimit import get_ip
from django.core.cache import cache
from django.http import HttpRequest

from chatsite.accounts import known_browsers

log = structlog.get_logger(__name__)

FREE_TRIES = 5  # of one name from one address, or of one browser at its own account
FIRST_WAIT_SECONDS = 15
LONGEST_WAIT_SECONDS = 900
FORGOTTEN_SECONDS = 3_600  # after the last failure
MAX_PER_ADDRESS, ADDRESS_SECONDS = 200, 600  # more than an office gets wrong on a Monday morning
MAX_PER_NAME, NAME_SECONDS = 100, 3_600


class TooManyTries(Exception):
    """The next try may be in `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"The next try may be in {seconds} seconds.")
        self.seconds = seconds


class _Gate(Protocol):
    def take(self) -> int:
        """Count a try that fails; or, uncounted, how many seconds there is none."""

    def give_back(self) -> None:
        """That try was none."""

    def forgive(self) -> None:
        """It was right."""


@dataclass
class Growing:
    """A few tries, then one after each wait, and each wait is longer."""

    name: str
    _wait_seconds: int = 0  # that this try began

    def take(self) -> int:
        if left := self._left():
            return left
        number = _count(f"{self.name}:tries", FORGOTTEN_SECONDS)
        if number <= FREE_TRIES:
            return 0
        seconds = min(FIRST_WAIT_SECONDS << min(number - FREE_TRIES - 1, 16), LONGEST_WAIT_SECONDS)
        if not cache.add(f"{self.name}:wait", time.time() + seconds, timeout=seconds):
            _uncount(f"{self.name}:tries")  # another try just now began the wait
            return self._left() or 1
        self._wait_seconds = seconds
        return 0

    def give_back(self) -> None:
        _uncount(f"{self.name}:tries")
        if self._wait_seconds:
            cache.delete(f"{self.name}:wait")

    def forgive(self) -> None:
        cache.delete_many([f"{self.name}:tries", f"{self.name}:wait"])

    def _left(self) -> int:
        until = cache.get(f"{self.name}:wait", 0.0)
        return max(0, min(int(until - time.time()) + 1, LONGEST_WAIT_SECONDS)) if until else 0


@dataclass
class Capped:
    """So many tries in each window of time."""

    name: str
    most: int
    window_seconds: int

    def take(self) -> int:
        now = time.time()
        self._key = f"{self.name}:{int(now // self.window_seconds)}"
        if _count(self._key, self.window_seconds) <= self.most:
            return 0
        _uncount(self._key)
        log.warning("sign-ins refused", gate=self.name.split(":")[1])
        return int(self.window_seconds - now % self.window_seconds) + 1

    def give_back(self) -> None:
        _uncount(self._key)

    forgive = give_back


@dataclass(frozen=True)
class Try:
    """One that counts as failed until it is `right`."""

    gates: tuple[_Gate, ...]

    def right(self) -> None:
        for gate in self.gates:
            gate.forgive()


def begin(request: HttpRequest, name: str) -> Try:
    """Before the password that was typed for `name` is looked at.

    Raises:
        TooManyTries: it must not be looked at.
    """
    taken: list[_Gate] = []
    for gate in _gates(request, name):
        if seconds := gate.take():
            for other in taken:
                other.give_back()
            raise TooManyTries(seconds)
        taken.append(gate)
    return Try(tuple(taken))


def _gates(request: HttpRequest, name: str) -> list[_Gate]:
    own = known_browsers.mark_of(request, name)
    if own:
        return [Growing(f"sign-in:browser:{own}")]
    who, where = _hashed(_folded(name)), _hashed(get_ip(request))
    return [
        Growing(f"sign-in:pair:{who}:{where}"),
        Capped(f"sign-in:name:{who}", MAX_PER_NAME, NAME_SECONDS),
        Capped(f"sign-in:address:{where}", MAX_PER_ADDRESS, ADDRESS_SECONDS),
    ]


def _folded(name: str) -> str:
    """The same for all ways of writing a name that Postgres may take for one, ignoring case."""
    return unicodedata.normalize("NFKC", name).strip().upper().casefold()


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _count(key: str, seconds: int) -> int:
    cache.add(key, 0, timeout=seconds)
    try:
        number = int(cache.incr(key))
    except ValueError:  # it expired just now, or holds what nobody counts
        cache.set(key, 1, timeout=seconds)
        return 1
    cache.touch(key, seconds)
    return number


def _uncount(key: str) -> None:
    try:
        cache.decr(key)
    except ValueError:  # it expired
        return
