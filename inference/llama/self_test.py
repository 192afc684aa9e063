"""Does this model on this device answer in company as it answers alone? Asked once, before a worker serves.

Kernels have been wrong for some batch sizes and right for others, and nobody would notice but by reading nonsense. So a
fixed text is continued greedily by itself, and the same again from every slot, among neighbours, from a copied prefix
and from a saved state; the logits must lead to the same tokens. It is the warm-up as well: full batches over all slots
make the device load every kernel and allocate what the largest step needs.

The order of sums depends on the batch, so logits differ by rounding, and where the two best tokens are near each other
that decides. Such near ties are counted, no more: the token chosen instead must stand within NEAR_TIE standard
deviations of the row below the best. (Over an f16 cache llama.cpp's CPU kernels differ by up to a third of that; a
token out of a wrong row lies several deviations below.) After each step all go on with the lone run's token, so one
near tie is no second.

The loader calls it on the loading thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import structlog

from inference.engine.backend import Backend
from inference.engine.batch import Batch
from inference.errors import EngineError

log = structlog.get_logger(__name__)

PROBE_TEXT = (
    "The library of the old harbour town opens at nine. Its oldest book tells of a winter in which the sea froze, and "
    "how the people walked across the ice to the island, carrying bread, lamps and a small brass bell."
)
DEVICE_PROBE_TOKENS, CPU_PROBE_TOKENS = 48, 8  # a CPU is slow, and its first answer waits for the end of this
DEVICE_STEPS, CPU_STEPS = 8, 2
FEW_STEPS = 2  # where the KV is right or wrong from the first token on
NEAR_TIE = 1.0

TokenIds = npt.NDArray[np.int32]
Row = npt.NDArray[np.float32]


def run(backend: Backend, probe: Sequence[int]) -> None:
    """Leaves every slot empty. `probe` are the tokens of some plain text, at least two.

    Raises:
        EngineError: the model must not serve; the sentence names the check that failed.
    """
    _SelfTest(backend, probe).run()


class _SelfTest:
    def __init__(self, backend: Backend, probe: Sequence[int]) -> None:
        most = DEVICE_PROBE_TOKENS if backend.is_async else CPU_PROBE_TOKENS
        self._num_steps = DEVICE_STEPS if backend.is_async else CPU_STEPS
        fitting = min(backend.context_tokens, backend.pool_tokens // backend.num_slots) - self._num_steps
        fitting = min(fitting, backend.max_batch_tokens)
        self._probe = np.array(probe[: min(most, fitting)], np.int32)
        # Neighbours that fill a device's batches; a CPU allocates nothing late, and would only read longer.
        filling = 2 * backend.max_batch_tokens // backend.num_slots if backend.is_async else 0
        self._longest_neighbour = min(fitting, max(filling, len(self._probe)))
        assert len(self._probe) >= 2, "a probe needs a token to read and a token to go on from"
        self._backend = backend
        self._batch = Batch(backend.max_batch_tokens)
        self._expected: list[Row] = []
        self._forced: list[int] = []
        self._num_near_ties = 0
        self._worst_near_tie = 0.0  # in deviations of its row

    def run(self) -> None:
        backend, last = self._backend, self._backend.num_slots - 1
        for slot in range(backend.num_slots):
            backend.set_whole(slot, True)
        self._continue_alone()
        prefix = len(self._probe) - 1
        self._backend.remove_range(0, prefix)
        state = backend.save(0)
        if last:
            backend.copy_prefix(0, last, prefix)
            self._compare("a copied prefix", {last: self._probe[prefix:]}, FEW_STEPS)
            backend.remove_range(last, 0)
        backend.remove_range(0, 0)
        if backend.restore(last, state):
            self._compare("a saved state", {last: self._probe[prefix:]}, FEW_STEPS)
        else:
            log.warning("self_test_state_refused")  # a cache of such states finds nothing then; all else works
        backend.remove_range(last, 0)
        if last:
            self._compare_among_neighbours("a batch of 2", [last], [0])
            slots = list(range(backend.num_slots))
            self._compare_among_neighbours(f"a batch of {len(slots)}", slots[0::2], slots[1::2])
            self._compare_among_neighbours(f"a batch of {len(slots)}", slots[1::2], slots[0::2])
        for slot in range(backend.num_slots):
            backend.set_whole(slot, False)
        if backend.gives_excerpts:
            self._compare_excerpts([0, last] if last else [0])
        log.info(
            "self_test_passed",
            num_slots=backend.num_slots,
            num_near_ties=self._num_near_ties,
            worst_near_tie=round(self._worst_near_tie, 3),
        )

    def _continue_alone(self) -> None:
        upcoming = self._probe
        position = 0
        for _ in range(self._num_steps):
            (row,) = self._forward("the first forward", {0: upcoming}, position).values()
            self._expected.append(row.copy())
            self._forced.append(int(row.argmax()))
            position += len(upcoming)
            upcoming = np.array(self._forced[-1:], np.int32)

    def _compare_among_neighbours(self, check: str, slots: list[int], neighbours: list[int]) -> None:
        texts = dict.fromkeys(slots, self._probe)
        texts |= {slot: self._neighbour(slot) for slot in neighbours}
        self._read(check, {slot: text[:-1] for slot, text in texts.items()})
        self._compare(
            check,
            {slot: texts[slot][-1:] for slot in slots},
            self._num_steps,
            beside={slot: texts[slot][-1:] for slot in neighbours},
        )
        for slot in texts:
            self._backend.remove_range(slot, 0)

    def _neighbour(self, slot: int) -> TokenIds:
        """Another text for each slot, of another length."""
        length = max(2, self._longest_neighbour - 3 * (slot % 7))
        return np.resize(np.roll(self._probe, slot + 1), length)

    def _read(self, check: str, texts: Mapping[int, TokenIds]) -> None:
        """Evaluate all texts without asking for logits, in batches as full as they can be."""
        todo: dict[int, TokenIds] = {}
        room = self._batch.capacity
        for slot, text in texts.items():
            if len(text) > room:
                self._forward(check, todo, 0, wants_logits=False)
                todo, room = {}, self._batch.capacity
            todo[slot] = text
            room -= len(text)
        self._forward(check, todo, 0, wants_logits=False)

    def _compare(
        self,
        check: str,
        last: Mapping[int, TokenIds],
        num_steps: int,
        *,
        beside: Mapping[int, TokenIds] | None = None,
    ) -> None:
        """Continue the probe in the slots of `last`, each holding all but its last token, and see that it goes on as
        alone. The slots of `beside` go their own ways meanwhile."""
        slots, others = list(last), dict(beside or {})
        lengths = {slot: len(self._probe) - 1 for slot in slots}
        lengths |= {slot: len(self._neighbour(slot)) - 1 for slot in others}
        upcoming = dict(last)
        for step, expected in enumerate(self._expected[:num_steps]):
            rows = self._forward(check, upcoming | others, lengths)
            for slot in slots:
                self._check_row(check, slot, step, expected, rows[slot])
                upcoming[slot] = np.array(self._forced[step : step + 1], np.int32)
            for slot in others:
                others[slot] = np.array([rows[slot].argmax()], np.int32)
            lengths = {slot: length + 1 for slot, length in lengths.items()}

    def _check_row(self, check: str, slot: int, step: int, expected: Row, row: Row) -> None:
        best, chosen = int(expected.argmax()), int(row.argmax())
        if best == chosen:
            return
        gap = float(expected[best] - expected[chosen]) / max(float(expected.std()), 1e-6)
        if gap > NEAR_TIE:
            raise EngineError(
                f"The self-test failed: {check} answers otherwise than the same text alone "
                f"(slot {slot}, token {step + 1}, {gap:.1f} deviations away). This model cannot be served here.",
                check=check,
                slot=slot,
            )
        self._num_near_ties += 1
        self._worst_near_tie = max(self._worst_near_tie, gap)

    def _compare_excerpts(self, slots: list[int]) -> None:
        """What the device cuts out of its logits must be what the whole row holds, up to rounding."""
        self._batch.clear()
        for slot in slots:
            self._batch.add(slot, self._probe, 0, wants_logits=True)
        self._backend.forward(self._batch)
        excerpt = self._backend.excerpt(range(len(slots)))
        row = self._expected[0]
        mass = float(np.exp(row.astype(np.float64) - row.max()).sum())
        for i, slot in enumerate(slots):
            found = excerpt.values[i].reshape(len(excerpt.blocks[i]), -1)
            whole = row.reshape(-1, found.shape[1])[excerpt.blocks[i]]
            strays = float(np.abs(found - whole).max()) / max(float(row.std()), 1e-6)
            if not (strays <= NEAR_TIE and abs(float(np.log(excerpt.masses()[i] / mass))) <= NEAR_TIE):
                raise EngineError(
                    f"The self-test failed: an excerpt of the logits is not what the row holds (slot {slot}, "
                    f"{strays:.1f} deviations away). This model cannot be served here.",
                    slot=slot,
                )
            self._backend.remove_range(slot, 0)

    def _forward(
        self, check: str, texts: Mapping[int, TokenIds], position: int | Mapping[int, int], *, wants_logits: bool = True
    ) -> dict[int, Row]:
        """The last row of each text, by slot; all must be finite."""
        self._batch.clear()
        slots = sorted(texts)
        starts = dict.fromkeys(slots, position) if isinstance(position, int) else position
        if wants_logits and all(len(text) == 1 for text in texts.values()):
            self._batch.add_rows(slots, [int(texts[slot][0]) for slot in slots], [starts[slot] for slot in slots])
        else:
            for slot in slots:
                self._batch.add(slot, texts[slot], starts[slot], wants_logits=wants_logits)
        self._backend.forward(self._batch)
        rows = self._backend.logits()
        if not np.isfinite(rows).all():
            raise EngineError(f"The self-test failed: {check} gave numbers that are not finite.", check=check)
        return dict(zip(slots, rows, strict=True)) if wants_logits else {}
