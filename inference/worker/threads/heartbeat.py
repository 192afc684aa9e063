"""Says every second that this worker lives, what it serves and how busy it is.

Owns the rhythm and the prompt kit's being there: Redis forgets a kit that nobody names for an hour, or with all else.
Knows no engine: whoever starts it hands in how to describe the worker. Runs from before the model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from inference.coordination.registry import Registry
from inference.messages.cards import WorkerCard
from inference.worker.threads.periodic import TickingThread

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 1.0


class Heartbeat(TickingThread):
    """`kit` is empty until the model is loaded."""

    name = "heartbeat"

    def __init__(
        self, registry: Registry, describe: Callable[[], WorkerCard], *, look: Callable[[], object] = lambda: None
    ) -> None:
        """`look` is called after each announcement: at what else lies in Redis for this worker."""
        super().__init__(HEARTBEAT_SECONDS)
        self._registry = registry
        self._describe = describe
        self._look = look
        self.kit = b""

    def tick(self) -> None:
        self.announce()
        self._look()

    def announce(self) -> None:
        """Raises RedisError."""
        has_kit = self._registry.announce(self._describe())
        if not has_kit and self.kit:
            self._registry.store_kit(self.kit)

    def announce_if_possible(self) -> None:
        """As `announce`; what Redis does not hear now it hears with the next tick."""
        try:
            self.announce()
        except RedisError as error:
            log.warning("card_not_announced", error=type(error).__name__)

    def withdraw(self) -> None:
        """Stop, and take the card back at once instead of letting it expire."""
        self.stop()
        card = self._describe()
        try:
            self._registry.withdraw(card.name)
        except RedisError as error:
            log.warning("card_not_withdrawn", error=type(error).__name__)
