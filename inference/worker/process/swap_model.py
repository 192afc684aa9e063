"""Carries out the order to serve another model, up to the point where the process may be replaced.

Owns the order's course: the new file is checked (and downloaded) while the old model answers; then the card says that
the old model is leaving, so that new messages go elsewhere; then what still needs the old model is answered, here if
nobody else serves it, else after a drain as for any stop. Whatever goes wrong until then leaves the worker as it was.
Knows neither Celery nor the loading: `worker.lifecycle` is told when to go, and tells how loading went.

`look` runs in the heartbeat's thread, the course in a thread of its own, `end` and `has_loaded` in the main thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import UUID

import structlog
from redis.exceptions import RedisError

from inference.catalog import Catalog, CatalogEntry, completed
from inference.config import InferenceConfig
from inference.coordination.registry import Registry
from inference.coordination.swap_orders import Orders
from inference.coordination.waiting_room import WaitingRoom
from inference.errors import InferenceError, InvalidRequest, StoreUnavailable
from inference.messages.swap import SwapOrder, SwapReport
from inference.prompt.tokenizer import check_supported
from inference.worker.process.runtime import Runtime

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.2
SETTLE_SECONDS = 2.0  # what a web node chose before it read that the model is leaving has arrived by then
RETRY_SECONDS = 1.0


class _CalledOff(Exception):
    """The course ends here, and the worker serves on. The sentence says why."""

    def __init__(self, sentence: str, state: str = "called_off") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.is_refusal = state == "refused"


def find_servable(config: InferenceConfig, model: str) -> CatalogEntry:
    """The entry of `model`, its file here, whole and of a kind that can be loaded; downloads.

    Raises:
        InferenceError: it cannot be served; one sentence says why.
    """
    catalog = Catalog.of(config)
    entry = catalog.entry(model)
    header = catalog.fetch(entry)
    check_supported(header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre", "default"))
    return completed(entry, header)


class Swapping:
    """`announce` puts the worker's card into Redis now; `go` is called, once, when the process may be replaced.

    `order_id` is that of an order which the image before this one took; this one ends it.
    """

    def __init__(
        self,
        config: InferenceConfig,
        model: str,
        *,
        orders: Orders,
        room: WaitingRoom,
        registry: Registry,
        announce: Callable[[], object],
        go: Callable[[], object],
        order_id: UUID | None = None,
        has_own_queues: bool = False,
        find: Callable[[InferenceConfig, str], CatalogEntry] = find_servable,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self.runtime: Runtime | None = None  # once the model is loaded
        self.next_model = ""  # catalog name, while this worker's own model is leaving
        self.going: SwapOrder | None = None  # the process may be replaced now
        self._config = config
        self._worker = config.worker_name
        self._model = model
        self._orders = orders
        self._room = room
        self._registry = registry
        self._announce = announce
        self._go = go
        self._has_own_queues = has_own_queues
        self._find = find
        self._settle_seconds = settle_seconds
        self._order_id = order_id  # of the order under way
        self._is_ending = False  # the process stops, for whatever reason
        self._lock = threading.Lock()  # for what follows
        self._told: SwapReport | None = None
        self._unsent: dict[UUID, SwapReport] = {}
        self._ended: set[UUID] = set()

    def look(self) -> None:
        """Take an order that came, keep the one under way, send again what could not be said. Raises RedisError."""
        self._send()
        try:
            order = self._orders.current(self._worker)
        except InvalidRequest as error:
            log.warning("order_unreadable", error=error.message)
            return
        if order is None or self._is_ending:
            return
        if order.id == self._order_id:
            self._orders.keep(self._worker)
        elif order.id in self._ended:
            self._orders.take_away(self._worker, order.id)
        elif problem := self._problem(order):
            self._end_order(order.id, problem)
        else:
            self._order_id = order.id
            log.info("swap_ordered", model=order.model)
            threading.Thread(target=self._run, args=(order,), name="swapping", daemon=True).start()

    def _problem(self, order: SwapOrder) -> SwapReport | None:
        """Why an order that was found is not taken."""
        if self._order_id is not None:
            return _refusal(order.id, f"{self._worker} is changing its model already.")
        if self._orders.report_of(order.id) is not None:
            sentence = f"{self._worker} ended in the middle of the swap and was started again with {self._model}."
            return SwapReport(order=order.id, state="failed", sentence=sentence)
        if self.runtime is None:
            return _refusal(order.id, f"{self._worker} is still loading {self._model}.")
        if self._has_own_queues:
            return _refusal(order.id, f"{self._worker} was started with queues of its own (-Q) and cannot change them.")
        return None

    def has_loaded(self, *, failure: str = "") -> None:
        """The model is loaded: the one that was ordered, or after its `failure` the one before."""
        if self._order_id is not None:
            state = SwapReport(order=self._order_id, state="ready", model=self._model)
            if failure:
                state = SwapReport(order=self._order_id, state="failed", sentence=failure)
            self._end_order(self._order_id, state)

    def is_loading(self, model: str) -> None:
        """The process is about to be replaced, or has been."""
        if self._order_id is not None:
            self._tell(SwapReport(order=self._order_id, state="loading", model=model))

    def end(self) -> None:
        """The process is told to stop: an order under way comes to nothing."""
        self._is_ending = True
        if self._order_id is not None:
            sentence = f"{self._worker} was told to stop before it served the new model."
            self._end_order(self._order_id, SwapReport(order=self._order_id, state="called_off", sentence=sentence))

    # -- the course of an order

    def _run(self, order: SwapOrder) -> None:
        try:
            entry = self._checked(order)
            self._leave(order, entry)
            if self._is_ending:
                return
            self.going = order
            log.info("swap_goes", model=entry.name)
            self._go()
        except _CalledOff as reason:
            self._call_off(order, reason)
        except Exception:  # edge of a thread: the worker must serve on, and whoever asked must hear of it
            log.exception("swap_failed", model=order.model)
            self._call_off(order, _CalledOff(f"{self._worker} failed while it prepared the swap; see its log."))

    def _checked(self, order: SwapOrder) -> CatalogEntry:
        self._tell(SwapReport(order=order.id, state="checking", model=order.model))
        if not order.model:
            raise _CalledOff("No model was named.", "refused")
        try:
            entry = self._find(self._config, order.model)
        except InferenceError as error:
            raise _CalledOff(error.message, "refused") from error
        if entry.name == self._model:
            raise _CalledOff(f"{self._worker} serves {self._model} already.", "refused")
        return entry

    def _leave(self, order: SwapOrder, entry: CatalogEntry) -> None:
        """Return once nobody needs this worker's model of this worker any more, and it accepts nothing."""
        assert self.runtime is not None
        deadline = time.monotonic() + order.timeout_seconds
        settled_at: float | None = None
        self.next_model = entry.name
        while not self._is_ending:
            try:
                if settled_at is None:
                    self._announce()  # before others are looked at: of two that leave at once, each must see it
                    settled_at = time.monotonic() + self._settle_seconds
                if self._may_go(order, settled_at):
                    return
            except RedisError as error:
                log.warning("swap_waits_for_redis", error=type(error).__name__)
                if not self.runtime.accepts:
                    self._resume()
                time.sleep(RETRY_SECONDS)
            if time.monotonic() > deadline and not self._is_ending:
                raise _CalledOff(
                    f"{order.timeout_seconds:.0f} s were not enough to answer all that waits for {self._model}, which "
                    f"nobody else serves; {self._worker} serves it as before."
                )
            time.sleep(LOOK_SECONDS)

    def _may_go(self, order: SwapOrder, settled_at: float) -> bool:
        assert self.runtime is not None
        if self._is_served_elsewhere():

            def look() -> bool:
                self._tell_waiting(order, "draining", len(self.runtime.attempts.all()) if self.runtime else 0)
                return self._is_ending

            look()
            self.runtime.drain(self._config.drain_seconds, is_hurried=look)
            if self._is_served_elsewhere() or not self._room.num_unfinished(self._model):
                return True
            self._resume()  # the other one left meanwhile, so what was handed on is for us again
            return False
        num_left = self._room.num_unfinished(self._model)
        self._tell_waiting(order, "waiting", num_left)
        if num_left or time.monotonic() < settled_at:
            return False
        self.runtime.accepts = False
        if self.runtime.is_idle and not self._room.num_unfinished(self._model):
            self.runtime.draining.set()
            return True
        self._resume()
        return False

    def _is_served_elsewhere(self) -> bool:
        """Whether another worker serves this one's model and keeps to it."""
        return any(
            card.name != self._worker
            and card.model.name == self._model
            and card.state == "ready"
            and not card.next_model
            for card in self._registry.workers()
        )

    def _resume(self) -> None:
        assert self.runtime is not None
        if self._is_ending:
            return
        self.runtime.resume()
        try:
            self.runtime.bench.ring(self._model)  # bells that rang meanwhile were dropped
        except StoreUnavailable as error:
            log.warning("hint_not_sent", what="ring", error=error.message)  # the sweeper repeats it

    def _call_off(self, order: SwapOrder, reason: _CalledOff) -> None:
        if self._is_ending:
            return
        self.next_model = ""
        if not reason.is_refusal:
            self._resume()
        report = SwapReport(order=order.id, state="called_off", sentence=reason.sentence)
        self._end_order(order.id, _refusal(order.id, reason.sentence) if reason.is_refusal else report)

    # -- what whoever ordered it hears

    def _tell_waiting(self, order: SwapOrder, state: str, num_answers: int) -> None:
        self._tell(SwapReport(order=order.id, state=state, model=self.next_model, num_answers=num_answers))  # type: ignore[arg-type]

    def _end_order(self, order_id: UUID, report: SwapReport) -> None:
        if report.state != "ready":
            log.warning("swap_ended", state=report.state, reason=report.sentence)
        self._ended.add(order_id)
        self._tell(report)
        if self._order_id == order_id:
            self._order_id = None
        try:
            self._orders.take_away(self._worker, order_id)
        except RedisError as error:
            log.warning("order_not_taken_away", error=type(error).__name__)  # the next look does it

    def _tell(self, report: SwapReport) -> None:
        with self._lock:
            if report == self._told:
                return
            self._told = self._unsent[report.order] = report
        try:
            self._send()
        except RedisError as error:
            log.warning("swap_report_not_sent", error=type(error).__name__)  # the next look does it

    def _send(self) -> None:
        with self._lock:  # held while it is sent: an older report must not come last
            for order_id, report in list(self._unsent.items()):
                self._orders.report(report)
                del self._unsent[order_id]


def _refusal(order_id: UUID, sentence: str) -> SwapReport:
    return SwapReport(order=order_id, state="refused", sentence=sentence)
