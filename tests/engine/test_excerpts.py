"""Sampling from excerpts: the same tokens as from whole rows, which are asked for where an excerpt is too little."""

from __future__ import annotations

import numpy as np
import pytest

from inference.engine.logits import Excerpt
from inference.engine.sampling.excerpt import UNDECIDED, is_enough_for
from inference.engine.sampling.plan import SamplerPlan
from inference.engine.sampling.sampler import BAD_ROW, Sampler
from inference.testing import ScriptedBackend
from tests.engine.driving import make_engine, run, submit
from tests.engine.test_sampler import row

VOCAB, WIDTH = 4096, 8

PLANS = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 1.3, "top_k": 5, "top_p": 0.8},
    {"temperature": 0.6, "top_p": 0.95},
    {"temperature": 1.0, "top_p": 0.5, "min_p": 0.02},
    {"temperature": 0.8, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 20, "typical_p": 0.7},
    {"temperature": 0.7, "top_k": 40, "ignores_end": True},
    {"temperature": 0.0, "ignores_end": True},
]


def excerpt_of(logits: np.ndarray, num_blocks: int = 64) -> Excerpt:
    blocks = logits.reshape(len(logits), -1, WIDTH)
    maxima = blocks.max(axis=2)
    order = (-maxima).argsort(axis=1)[:, :num_blocks]
    wide = logits.astype(np.float64)
    softmax = np.exp(wide - wide.max(axis=1, keepdims=True))
    softmax /= softmax.sum(axis=1, keepdims=True)
    shares = softmax.reshape(blocks.shape)[np.arange(len(logits)), order[:, 0]].astype(np.float32)
    values = np.take_along_axis(blocks, order[:, :, None], axis=1).reshape(len(logits), -1)
    return Excerpt(values, np.take_along_axis(maxima, order, axis=1), order.astype(np.int32), shares)


@pytest.mark.parametrize("options", PLANS, ids=str)
@pytest.mark.parametrize("spread", [0.5, 3.0, 8.0])
def test_an_excerpt_gives_the_token_of_the_whole_row_or_says_that_it_cannot(options, spread):
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((64, VOCAB)) * spread).astype(np.float32)
    logits[:, 5] += 4 * spread  # an end token that is often the best
    rows = [row(SamplerPlan(seed=i, **options)) for i in range(len(logits))]
    sampler = Sampler(VOCAB, end_tokens=frozenset({5, 17}))
    found = sampler.sample_excerpt(excerpt_of(logits), rows).tokens
    expected = sampler.sample(logits.copy(), rows).tokens
    assert all(token in (UNDECIDED, wanted) for token, wanted in zip(found, expected))
    if spread == 8.0 or "top_k" in options or options["temperature"] == 0.0:
        assert UNDECIDED not in found


def test_a_row_with_no_number_in_it_is_bad():
    logits = np.random.default_rng(1).standard_normal((3, VOCAB)).astype(np.float32)
    excerpt = excerpt_of(logits)
    excerpt.shares[1] = np.nan
    excerpt.maxima[2, 3] = np.inf
    tokens = Sampler(VOCAB).sample_excerpt(excerpt, [row(SamplerPlan(temperature=0.7, top_k=40))] * 3).tokens
    assert tokens[0] >= 0
    assert tokens[1:] == [BAD_ROW, BAD_ROW]


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"dry_multiplier": 0.8},
        {"logit_bias": ((3, 2.0),)},
        {"num_logprobs": 0},
        {"top_k": 60},
        {"typical_p": 0.5},
        {"top_p": 0.9, "ignores_end": True},
        {},
    ],
    ids=str,
)
def test_what_needs_whole_rows_is_known_beforehand(options):
    assert not is_enough_for(SamplerPlan(temperature=0.7, **options))


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.0}, *[o for o in PLANS if "ignores_end" not in o], {"repetition_penalty": 1.3}],
    ids=str,
)
def test_answers_are_the_same_with_and_without_excerpts(options):
    answers = []
    for width in (0, 8):
        backend = ScriptedBackend(num_slots=3, vocab_size=512, excerpt_width=width, is_async=bool(width))
        engine = make_engine(backend)
        asked = [submit(engine, range(1, 9 + i), plan=SamplerPlan(seed=i, **options), max_tokens=20) for i in range(6)]
        run(engine)
        answers.append([answer.tokens for answer in asked])
        engine.check_integrity()
    assert answers[0] == answers[1]


def test_an_undecided_row_is_looked_at_whole_and_nothing_is_lost():
    plan = SamplerPlan(temperature=1.5, top_p=0.999, seed=4)
    expected = None
    for width in (0, 8):
        backend = ScriptedBackend(num_slots=2, vocab_size=512, excerpt_width=width)
        engine = make_engine(backend)
        answer = submit(engine, range(1, 20), plan=plan, max_tokens=12)
        run(engine)
        expected = expected or answer.tokens
        assert answer.tokens == expected
        assert (engine.stats().num_undecided_rows > 0) == bool(width)


class EvenAfter:
    """A constraint that allows everything for `num_free` tokens, then even ids for `num_held`, then everything."""

    def __init__(self, num_free, num_held, vocab_size):
        self._num_free, self._num_held = num_free, num_held
        self._evens = np.full((vocab_size + 31) // 32, 0x55555555, np.uint32)
        self.accepted = []
        self.num_masks = 0
        self.is_complete = False

    @property
    def is_open(self):
        return not self._num_free <= len(self.accepted) < self._num_free + self._num_held

    def mask(self):
        assert not self.is_open, "nobody need look at an open mask"
        self.num_masks += 1
        return self._evens

    def accept(self, token):
        self.accepted.append(token)


@pytest.mark.parametrize(("num_free", "num_held"), [(0, 3), (5, 4), (30, 0)])
def test_an_open_constraint_costs_nothing_and_a_closed_one_holds_at_once(num_free, num_held):
    answers = []
    for width in (0, 8):
        backend = ScriptedBackend(num_slots=2, vocab_size=512, excerpt_width=width, is_async=bool(width))
        engine = make_engine(backend)
        constraint = EvenAfter(num_free, num_held, 512)
        beside = submit(engine, range(1, 6), plan=SamplerPlan(seed=1, temperature=0.0), max_tokens=12)
        answer = submit(
            engine, range(1, 9), plan=SamplerPlan(seed=2, temperature=0.0), max_tokens=12, constraint=constraint
        )
        num_whole = 0
        while engine.step():
            engine.check_integrity()
            assert len(backend.whole_slots) <= 1, "the other one goes on with excerpts"
            num_whole += bool(backend.whole_slots)
            assert not backend.whole_slots or len(constraint.accepted) >= num_free
        answers.append((answer.tokens, beside.tokens))
        assert constraint.accepted == answer.tokens
        assert all(token % 2 == 0 for token in answer.tokens[num_free : num_free + num_held])
        assert constraint.num_masks == min(num_held, 12)
        assert bool(num_whole) == bool(num_held)
    assert answers[0] == answers[1]
