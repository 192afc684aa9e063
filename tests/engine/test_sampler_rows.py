"""What a row brings along beside the usual filters: masks, biases, forbidden ends, DRY, typical, logprobs."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.sampling.dry import Repeats
from inference.engine.sampling.plan import SamplerPlan
from inference.engine.sampling.sampler import BAD_ROW, NOTHING_ALLOWED, Sampler
from inference.engine.sampling.token_history import TokenHistory
from tests.engine.test_sampler import assert_same_distribution, random_logits, random_row, reference, slow_repeats

GREEDY = SamplerPlan(temperature=0.0)


class Mask:
    """A constraint that always allows the same tokens."""

    is_complete = is_open = False

    def __init__(self, vocab_size: int, allowed: list[int]) -> None:
        bits = np.zeros((vocab_size + 31) // 32 * 32, np.uint8)
        bits[allowed] = 1
        self.words = np.packbits(bits, bitorder="little").view(np.uint32)

    def mask(self) -> np.ndarray:
        return self.words

    def accept(self, token: int) -> None:
        raise AssertionError("the sampler accepts nothing")


@dataclass
class Row:
    plan: SamplerPlan
    history: TokenHistory
    constraint: Mask | None = None


def row(plan: SamplerPlan = GREEDY, ids=(1,), constraint=None) -> Row:
    history = TokenHistory(
        np.array(ids, np.int32), np.zeros(0, np.int32), capacity=len(ids) + 9, counts_generated=plan.counts_generated
    )
    return Row(plan, history, constraint)


def normal(num_rows: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((num_rows, vocab_size)) * 3).astype(np.float32)


@pytest.mark.parametrize("vocab_size", [7, 97, 5003, 49_152])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"top_k": 40}, {"top_p": 0.95}, {"typical_p": 0.9}, {}], ids=str
)
def test_masked_row_is_the_row_without_what_the_mask_forbids(vocab_size, share, options):
    rng = np.random.default_rng(vocab_size)
    allowed = np.flatnonzero(rng.random(vocab_size) < share).tolist() or [3]
    logits = normal(1, vocab_size)[0]
    expected = np.full_like(logits, -np.inf)
    expected[allowed] = logits[allowed]
    wanted = row(SamplerPlan(**options), constraint=Mask(vocab_size, allowed))
    found = Sampler(vocab_size).distribution(logits.copy(), wanted)
    assert set(found[0].tolist()) <= set(allowed)
    assert_same_distribution(found, reference(expected, row(SamplerPlan(**options))))


@pytest.mark.parametrize("vocab_size", [7, 5003])
@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.9}, {"typical_p": 0.5}, {}], ids=str
)
def test_row_in_which_everything_is_forbidden_says_so_and_a_bad_one_is_bad(vocab_size, options):
    bad = normal(1, vocab_size)[0]
    bad[2] = np.nan
    sound = normal(1, vocab_size)[0]
    sampler = Sampler(vocab_size, end_tokens=frozenset({4}))
    nothing = row(SamplerPlan(**options), constraint=Mask(vocab_size, []))
    only_end = row(SamplerPlan(ignores_end=True, **options), constraint=Mask(vocab_size, [4]))
    only_biased = row(SamplerPlan(logit_bias=((5, -100.0),), **options), constraint=Mask(vocab_size, [5]))
    free = row(SamplerPlan(**options))
    logits = np.array([sound, bad, sound, sound, sound])
    tokens = sampler.sample(logits, [nothing, nothing, only_end, only_biased, free]).tokens
    assert tokens[:4] == [NOTHING_ALLOWED, BAD_ROW, NOTHING_ALLOWED, NOTHING_ALLOWED]
    assert tokens[4] >= 0


def test_infinity_behind_a_forbidding_bias_is_still_bad():
    logits = normal(2, 5003)
    logits[:, 7] = np.inf
    forbidding = [row(SamplerPlan(temperature=0.0, logit_bias=((7, -100.0),))), row(SamplerPlan(ignores_end=True))]
    assert Sampler(5003, end_tokens=frozenset({7})).sample(logits, forbidding).tokens == [BAD_ROW, BAD_ROW]


def test_bias_adds_and_minus_100_forbids():
    logits = np.array([[1.0, 2.0, 150.0, 0.0]] * 3, np.float32)
    plans = [
        SamplerPlan(temperature=0.0, logit_bias=((2, -100.0),)),
        SamplerPlan(temperature=0.0, logit_bias=((2, -99.0), (0, 60.0))),
        SamplerPlan(temperature=0.0, logit_bias=((9_999, 100.0),)),  # refused where it comes in; harmless here
    ]
    assert Sampler(4).sample(logits, [row(plan) for plan in plans]).tokens == [1, 0, 2]


def test_end_tokens_are_forbidden_only_where_the_plan_says():
    logits = np.array([[1.0, 9.0, 8.0, 0.0]] * 2, np.float32)
    sampler = Sampler(4, end_tokens=frozenset({1, 2}))
    assert sampler.sample(logits, [row(SamplerPlan(temperature=0.0, ignores_end=True)), row()]).tokens == [0, 1]


@settings(max_examples=150, deadline=None)
@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=80),
    num_first=st.integers(1, 80),
    allowed=st.integers(1, 5),
    breakers=st.frozensets(st.integers(2, 3)),
)
def test_repeats_followed_token_by_token_equal_the_slow_search(ids, num_first, allowed, breakers):
    plan = SamplerPlan(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=allowed)
    repeats, array = Repeats(), np.array(ids, np.int32)
    for end in range(min(num_first, len(ids)), len(ids) + 1):
        repeats.follow(array[:end])
        since_breaker = next((n for n, t in enumerate(reversed(ids[:end])) if t in breakers), end)
        expected = {
            token: 0.5 * 2.0 ** (min(length, since_breaker) - allowed)
            for token, length in slow_repeats(ids[:end], allowed).items()
            if token not in breakers and since_breaker >= allowed
        }
        tokens, penalties = repeats.penalties(plan, breakers)
        assert dict(zip(tokens.tolist(), penalties.tolist(), strict=True)) == expected


def test_repeats_look_back_1024_tokens():
    rng = random.Random(5)
    ids = [rng.randrange(3) for _ in range(1500)]
    plan = SamplerPlan(dry_multiplier=1.0, dry_base=1.1, dry_allowed_length=1)
    repeats, array = Repeats(), np.array(ids, np.int32)
    for end in range(1000, 1500):
        repeats.follow(array[:end])
    for fresh in (repeats, Repeats()):
        fresh.follow(array)
        tokens, penalties = fresh.penalties(plan, frozenset())
        found = dict(zip(tokens.tolist(), penalties.tolist(), strict=True))
        assert found == pytest.approx({t: 1.1 ** (n - 1) for t, n in slow_repeats(ids, 1).items()})
    far = np.array([7, 8, *([1, 2] * 511), 7], np.int32)  # 7 8 stands 1,024 places back
    repeats = Repeats()
    repeats.follow(far)
    assert 8 not in repeats.penalties(plan, frozenset())[0]


def test_endless_repetition_loses_without_overflow():
    plan = SamplerPlan(temperature=0.0, dry_multiplier=10.0, dry_base=10.0, dry_allowed_length=1)
    logits = np.zeros((1, 5003), np.float32)
    logits[0, 3] = 50.0
    assert Sampler(5003).sample(logits, [row(plan, [3] * 2000)]).tokens == [0]


def test_dry_breaks_a_loop_that_would_go_on():
    logits = np.zeros((2, 10), np.float32)
    logits[:, 6] = 1.0
    loop = [4, 5, 6] * 3 + [4, 5]
    plan = SamplerPlan(temperature=0.0, dry_multiplier=0.8)
    assert Sampler(10).sample(logits, [row(plan, loop), row(GREEDY, loop)]).tokens == [0, 6]


@pytest.mark.parametrize("vocab_size", [7, 97, 5003])
def test_logprobs_are_those_of_the_raw_row(vocab_size):
    rng, np_rng = random.Random(vocab_size), np.random.default_rng(vocab_size)
    sampler = Sampler(vocab_size, end_tokens=frozenset({2}))
    for _ in range(20):
        wanted = [random_row(rng, vocab_size) for _ in range(6)]
        logits = random_logits(np_rng, 6, vocab_size)
        sampled = sampler.sample(logits.copy(), wanted)
        asked = {i for i, r in enumerate(wanted) if r.plan.num_logprobs is not None}
        assert set(sampled.logprobs) == {i for i in asked if sampled.tokens[i] >= 0}
        for i, found in sampled.logprobs.items():
            raw = logits[i].astype(np.float64)
            expected = raw - raw.max() - math.log(np.exp(raw - raw.max()).sum())
            assert found.chosen == pytest.approx(expected[sampled.tokens[i]], abs=1e-6)
            assert found.chosen <= 0
            order = [int(t) for t in np.argsort(-raw, kind="stable") if raw[t] > -np.inf]
            assert [token for token, _ in found.top] == order[: wanted[i].plan.num_logprobs]
            assert [value for _, value in found.top] == pytest.approx([expected[t] for t, _ in found.top], abs=1e-6)
            assert sum(math.exp(value) for _, value in found.top) <= 1 + 1e-12
            assert dict(found.top).get(sampled.tokens[i], found.chosen) == found.chosen


def test_greedy_choice_is_the_best_logprob():
    logits = normal(8, 49_152)
    plan = SamplerPlan(temperature=0.0, num_logprobs=5)
    sampled = Sampler(49_152, num_threads=2).sample(logits, [row(plan) for _ in range(8)])
    for i, token in enumerate(sampled.tokens):
        assert sampled.logprobs[i].top[0] == (token, sampled.logprobs[i].chosen)


@pytest.mark.parametrize("vocab_size", [97, 5003, 49_152])
def test_asking_for_logprobs_changes_no_draw(vocab_size):
    logits = normal(40, vocab_size)
    options = [{}, {"top_k": 40}, {"top_p": 0.9}, {"temperature": 0.0}, {"min_p": 0.1}, {"typical_p": 0.9}]
    plain = [SamplerPlan(seed=n, **options[n % len(options)]) for n in range(40)]
    asking = [SamplerPlan(seed=n, num_logprobs=n % 21, **options[n % len(options)]) for n in range(40)]
    sampler = Sampler(vocab_size)
    expected = sampler.sample(logits.copy(), [row(plan) for plan in plain])
    found = sampler.sample(logits.copy(), [row(plan) for plan in asking])
    assert found.tokens == expected.tokens
    assert len(found.logprobs) == 40
    assert not expected.logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("lift", [0.0, 4.0, 8.0, 12.0, 20.0])
@pytest.mark.parametrize("top_p", [0.999, 0.95, 0.5, 0.05])
def test_open_top_p_is_exact_whether_bounds_decide_or_the_row_is_summed(temperature, lift, top_p):
    logits = normal(1, 49_152, seed=int(lift))[0]
    logits[::1500] += np.float32(lift)
    wanted = row(SamplerPlan(temperature=temperature, top_p=top_p))
    assert_same_distribution(Sampler(49_152).distribution(logits.copy(), wanted), reference(logits, wanted))


@pytest.mark.parametrize("vocab_size", [97, 5003, 49_152])
def test_typical_follows_the_reference_alone_and_with_other_filters(vocab_size):
    for options in (
        {"typical_p": 0.5},
        {"typical_p": 0.2, "top_k": 30},
        {"typical_p": 0.9, "top_p": 0.5, "min_p": 0.3},
    ):
        for logits in normal(3, vocab_size):
            wanted = row(SamplerPlan(temperature=0.7, **options))
            assert_same_distribution(Sampler(vocab_size).distribution(logits.copy(), wanted), reference(logits, wanted))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.1},
        {"top_k": 2},
        {"top_p": 0.5},
        {"min_p": 0.5},
        {"typical_p": 0.3},
        {"repetition_penalty": 2.0},
        {"dry_multiplier": 2.0},
        {"dry_multiplier": 2.0, "dry_base": 3.0},
        {"dry_multiplier": 2.0, "dry_allowed_length": 1},
        {"logit_bias": ((8, 3.0),)},
        {"ignores_end": True},
    ],
    ids=str,
)
def test_every_parameter_has_an_effect(options):
    logits = np.linspace(0, 3, 12).astype(np.float32)
    sampler = Sampler(12, end_tokens=frozenset({11}))
    ids = [8, 9, 10, 11, 4, 8, 9, 10]
    less = dict(list(options.items())[:-1])
    plain = sampler.distribution(logits.copy(), row(SamplerPlan(**less), ids))
    changed = sampler.distribution(logits.copy(), row(SamplerPlan(**options), ids))
    as_dict = [dict(zip(found[0].tolist(), found[1].tolist(), strict=True)) for found in (plain, changed)]
    assert as_dict[0] != as_dict[1]


@pytest.mark.parametrize("lift", [0.0, 6.0, 12.0, 20.0])
@pytest.mark.parametrize(
    "options", [{"temperature": 0.6}, {"temperature": 1.0, "min_p": 0.01}, {"temperature": 1.5}], ids=str
)
def test_open_top_p_draws_where_the_exact_distribution_says(lift, options):
    logits = normal(1, 49_152, seed=3)[0]
    logits[::400] += np.float32(lift)
    sampler = Sampler(49_152, num_threads=2)
    plans = [SamplerPlan(seed=seed, top_p=0.95, **options) for seed in range(30)]
    ids, probabilities = sampler.distribution(logits.copy(), row(plans[0]))
    ends = probabilities.cumsum()
    tokens = sampler.sample(np.repeat(logits[None], 30, axis=0), [row(plan) for plan in plans]).tokens
    assert tokens == [int(ids[ends.searchsorted(plan.uniform(0), side="right")]) for plan in plans]
    sampler.close()
