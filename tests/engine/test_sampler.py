"""The sampler against a slow, obvious reference: same ids, same probabilities, same draw, for every parameter."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from inference.engine.sampling.plan import SamplerPlan
from inference.engine.sampling.sampler import BAD_ROW, Sampler
from inference.engine.sampling.token_history import TokenHistory

SIZES = [7, 31, 32, 33, 97, 1000, 4096, 5003, 49_152]


@dataclass
class Row:
    plan: SamplerPlan
    history: TokenHistory
    constraint: None = None


def row(plan: SamplerPlan, prompt=(1,), generated=()) -> Row:
    history = TokenHistory(
        np.array(prompt, np.int32),
        np.array(generated, np.int32),
        capacity=len(prompt) + len(generated) + 1,
        counts_generated=plan.counts_generated,
    )
    return Row(plan, history)


def reference(logits: np.ndarray, wanted: Row) -> dict[int, float]:
    """id -> probability, one step after the other over Python floats, in llama.cpp's order."""
    plan, history = wanted.plan, wanted.history
    values = dict(enumerate(logits))  # float32, and penalties are float32 arithmetic, as in llama.cpp
    for token, bias in plan.logit_bias:
        values[token] += np.float32(bias if bias > -100 else -np.inf)
    if plan.repetition_penalty != 1.0:
        factor = np.float32(plan.repetition_penalty)
        for token in set(history.ids[-64:].tolist()):
            values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
    for token, count in Counter(history.ids[history.num_prompt :].tolist()).items():
        values[token] -= np.float32(count) * np.float32(plan.frequency_penalty) + np.float32(plan.presence_penalty)
    if plan.dry_multiplier:
        for token, length in slow_repeats(history.ids.tolist(), plan.dry_allowed_length).items():
            penalty = plan.dry_multiplier * plan.dry_base ** (length - plan.dry_allowed_length)
            values[token] -= np.float32(min(penalty, float(np.finfo(np.float32).max)))
    kept = sorted(((float(v), -i) for i, v in values.items()), reverse=True)
    if plan.temperature == 0:
        return {-kept[0][1]: 1.0}
    if plan.top_k:
        kept = kept[: plan.top_k]
    largest = kept[0][0]
    if plan.typical_p < 1:
        kept = [(v, i) for v, i in kept if v > -np.inf]
        log_mass = largest + math.log(math.fsum(math.exp(v - largest) for v, _ in kept))
        entropy = math.fsum(math.exp(v - log_mass) * (log_mass - v) for v, _ in kept)
        mass, nearest = 0.0, []
        for v, i in sorted(kept, key=lambda pair: abs(log_mass - pair[0] - entropy)):
            nearest.append((v, i))
            mass += math.exp(v - log_mass)
            if mass > plan.typical_p:
                break
        kept = sorted(nearest, reverse=True)
        largest = kept[0][0]
    if plan.top_p < 1:
        total = math.fsum(math.exp(v - largest) for v, _ in kept)
        mass, count = 0.0, 0
        while count < len(kept) and mass < plan.top_p * total:
            mass += math.exp(kept[count][0] - largest)
            count += 1
        kept = kept[:count]
    if plan.min_p > 0:
        kept = [(v, i) for v, i in kept if v - largest >= math.log(plan.min_p)]
    weights = {-i: math.exp((v - largest) / plan.temperature) for v, i in kept}
    total = math.fsum(weights.values())
    return {i: w / total for i, w in weights.items() if w > 0}


def slow_repeats(ids: list[int], allowed: int) -> dict[int, int]:
    """token -> length of the longest repetition that it would lengthen, of the last 1,024 ids; no breakers."""
    ids = ids[-1024:]
    longest: dict[int, int] = {}
    for end in range(1, len(ids)):
        length = 0
        while length < end and ids[end - 1 - length] == ids[-1 - length]:
            length += 1
        if length >= allowed:
            longest[ids[end]] = max(longest.get(ids[end], 0), length)
    return longest


def random_row(rng: random.Random, vocab_size: int) -> Row:
    plan = SamplerPlan(
        temperature=rng.choice([0.0, 0.05, 0.6, 1.0, 2.0]),
        top_k=rng.choice([0, 0, 1, 2, 40, 300, 10**6]),
        top_p=rng.choice([1.0, 0.999, 0.95, 0.5, 0.01]),
        min_p=rng.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
        repetition_penalty=rng.choice([1.0, 1.2, 0.5]),
        dry_multiplier=rng.choice([0.0, 0.8]),
        dry_base=rng.choice([1.0, 1.75]),
        dry_allowed_length=rng.choice([1, 2, 5]),
        logit_bias=tuple((t, rng.choice([-100.0, -3.0, 5.0])) for t in range(1, rng.choice([1, 1, 5]))),
        ignores_end=rng.random() < 0.2,
        num_logprobs=rng.choice([None, None, 0, 3, 20]),
        presence_penalty=rng.choice([0.0, 1.5, -0.5]),
        frequency_penalty=rng.choice([0.0, 0.3, -0.2]),
        seed=rng.randrange(2**64),
    )
    prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 90))]
    generated = [rng.randrange(min(vocab_size, 20)) for _ in range(rng.randint(0, 90))]
    return row(plan, prompt, generated)


def random_logits(rng: np.random.Generator, num_rows: int, vocab_size: int) -> np.ndarray:
    logits = rng.standard_normal((num_rows, vocab_size)) * rng.choice([0.5, 2.0, 6.0], (num_rows, 1))
    if rng.random() < 0.3:
        logits = np.round(logits)  # many equal values
    if rng.random() < 0.3:
        logits[:, rng.random(vocab_size) < 0.5] = -np.inf
        logits[:, 0] = 1.0
    return logits.astype(np.float32)


def assert_same_distribution(found: tuple[np.ndarray, np.ndarray], expected: dict[int, float]) -> None:
    got = dict(zip(found[0].tolist(), found[1].tolist(), strict=True))
    differing = set(got) ^ set(expected)
    # A candidate exactly at the edge of top-p may fall either way by rounding; its neighbours may not.
    assert len(differing) <= 1, (len(got), len(expected))
    slack = 1e-9 + 2 * sum(got.get(i, 0) + expected.get(i, 0) for i in differing)
    if differing:
        assert len(expected) > 20, "only a flat tail has an edge that rounding can move"
    common = sorted(set(got) & set(expected))
    np.testing.assert_allclose([got[i] for i in common], [expected[i] for i in common], rtol=1e-6 + slack, atol=1e-12)


@pytest.mark.parametrize("vocab_size", SIZES)
def test_distribution_equals_reference(vocab_size):
    rng, np_rng = random.Random(vocab_size), np.random.default_rng(vocab_size)
    sampler = Sampler(vocab_size)
    for logits in random_logits(np_rng, 120 if vocab_size < 6000 else 6, vocab_size):
        wanted = random_row(rng, vocab_size)
        expected = reference(logits, wanted)
        assert_same_distribution(sampler.distribution(logits.copy(), wanted), expected)


@pytest.mark.parametrize(("vocab_size", "scale"), [(128_256, 5.0), (199_999, 1.0)])
@pytest.mark.parametrize(
    "options",
    [{"top_k": 40, "top_p": 0.95}, {"top_p": 0.9}, {"min_p": 0.05, "top_p": 0.9}, {"top_k": 5000}, {}],
    ids=str,
)
def test_distribution_equals_reference_over_a_large_vocabulary(vocab_size, scale, options):
    logits = (np.random.default_rng(1).standard_normal(vocab_size) * scale).astype(np.float32)
    wanted = row(SamplerPlan(temperature=0.6, **options))
    assert_same_distribution(Sampler(vocab_size).distribution(logits.copy(), wanted), reference(logits, wanted))


@pytest.mark.parametrize("vocab_size", [7, 97, 5003, 49_152])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_rows_together_choose_as_each_alone(vocab_size, num_threads):
    rng, np_rng = random.Random(vocab_size), np.random.default_rng(vocab_size)
    together, alone = Sampler(vocab_size, num_threads=num_threads), Sampler(vocab_size)
    for _ in range(40 if vocab_size < 6000 else 3):
        rows = [random_row(rng, vocab_size) for _ in range(rng.randint(1, 20))]
        logits = random_logits(np_rng, len(rows), vocab_size)
        expected = [alone.sample(logits[i : i + 1].copy(), [r]).tokens[0] for i, r in enumerate(rows)]
        assert together.sample(logits.copy(), rows).tokens == expected
    together.close()


@pytest.mark.parametrize("vocab_size", [7, 97, 5003])
def test_draw_is_where_the_uniform_falls_in_the_distribution(vocab_size):
    rng, np_rng = random.Random(vocab_size), np.random.default_rng(vocab_size)
    sampler = Sampler(vocab_size)
    for logits in random_logits(np_rng, 300, vocab_size):
        wanted = random_row(rng, vocab_size)
        (token,) = sampler.sample(logits[None].copy(), [wanted]).tokens
        ids, probabilities = sampler.distribution(logits.copy(), wanted)
        assert token in ids
        if wanted.plan.is_greedy:
            continue
        place = ids.tolist().index(token)
        draw = wanted.plan.uniform(wanted.history.num_generated)
        below = probabilities[:place].sum()
        assert below - 1e-6 <= draw <= below + probabilities[place] + 1e-6


def test_draws_follow_the_distribution():
    # 4,000 fixed draws: the counts cannot change from run to run.
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05, 1e-9], np.float32))
    sampler = Sampler(5)
    counts = Counter()
    for seed in range(4_000):
        counts[sampler.sample(logits[None].copy(), [row(SamplerPlan(seed=seed))]).tokens[0]] += 1
    assert [counts[i] / 4_000 for i in range(4)] == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.025)


@pytest.mark.parametrize("bad", [[np.nan], [np.inf], "all -inf", [np.nan, np.inf]], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {},
        {"top_k": 5},
        {"top_k": 1},
        {"top_k": 3000},
        {"top_p": 0.9},
        {"min_p": 0.1},
        {"top_p": 0.9, "top_k": 40},
        {"repetition_penalty": 1.5, "presence_penalty": 1.0, "top_k": 40},
        {"temperature": 1e-5},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab_size", [7, 5003])
def test_row_without_finite_maximum_is_bad_alone(bad, options, vocab_size):
    np_rng = np.random.default_rng(3)
    for place in (0, 3, vocab_size - 1):
        logits = np_rng.standard_normal((3, vocab_size)).astype(np.float32)
        if bad == "all -inf":
            logits[1] = -np.inf
        else:
            logits[1, place : place + len(bad)] = bad[: vocab_size - place]
        rows = [row(SamplerPlan(seed=n, **options)) for n in range(3)]
        expected = [Sampler(vocab_size).sample(logits[i : i + 1].copy(), [rows[i]]).tokens[0] for i in (0, 2)]
        first, middle, last = Sampler(vocab_size).sample(logits, rows).tokens
        assert middle == BAD_ROW
        assert [first, last] == expected
        assert BAD_ROW not in expected


def test_masked_tokens_are_never_drawn():
    sampler = Sampler(100)
    for options in ({}, {"top_k": 50}, {"top_p": 0.999999}, {"min_p": 1e-9}, {"temperature": 2.0, "top_k": 99}):
        for seed in range(50):
            logits = np.full((1, 100), -np.inf, np.float32)
            logits[0, [4, 50, 99]] = [1.0, 2.0, 0.5]
            assert sampler.sample(logits, [row(SamplerPlan(seed=seed, **options))]).tokens[0] in (4, 50, 99)


@pytest.mark.parametrize("vocab_size", [7, 97, 5003])
def test_equal_logits_are_ordered_by_id(vocab_size):
    logits = np.zeros((1, vocab_size), np.float32)
    sampler = Sampler(vocab_size)
    assert sampler.sample(logits.copy(), [row(SamplerPlan(temperature=0.0))]).tokens == [0]
    ids, probabilities = sampler.distribution(logits[0].copy(), row(SamplerPlan(top_k=5)))
    assert ids.tolist() == [0, 1, 2, 3, 4]
    assert probabilities == pytest.approx([0.2] * 5)


def test_negative_zero_equals_zero():
    logits = np.zeros(5003, np.float32)
    logits[::2] = -0.0
    ids, _ = Sampler(5003).distribution(logits, row(SamplerPlan(top_k=300)))
    assert ids.tolist() == list(range(300))


def test_repetition_looks_at_the_last_64_tokens_prompt_included():
    logits = np.zeros(10, np.float32)
    logits[1:4] = [2.0, 1.9, -1.0]
    prompt = [1] + [5] * 3
    near = row(SamplerPlan(temperature=0.0, repetition_penalty=1.5), prompt, [5] * 60)
    far = row(SamplerPlan(temperature=0.0, repetition_penalty=1.5), prompt, [5] * 61)
    sampler = Sampler(10)
    assert sampler.sample(logits[None].copy(), [near]).tokens == [2]
    assert sampler.sample(logits[None].copy(), [far]).tokens == [1]


def test_presence_and_frequency_look_at_generated_tokens_alone():
    logits = np.zeros(10, np.float32)
    logits[1], logits[2] = 2.0, 1.9
    sampler = Sampler(10)
    for options in ({"presence_penalty": 0.5}, {"frequency_penalty": 0.2}):
        plan = SamplerPlan(temperature=0.0, **options)
        assert sampler.sample(logits[None].copy(), [row(plan, prompt=[1, 1, 1])]).tokens == [1]
        assert sampler.sample(logits[None].copy(), [row(plan, prompt=[3], generated=[1])]).tokens == [2]


def test_frequency_counts_and_presence_does_not():
    logits = np.array([0.0, 2.0, 1.0], np.float32)
    sampler = Sampler(3)
    for generated, by_frequency, by_presence in (([1] * 2, 1, 1), ([1] * 3, 2, 1)):
        frequency = row(SamplerPlan(temperature=0.0, frequency_penalty=0.4), [0], generated)
        presence = row(SamplerPlan(temperature=0.0, presence_penalty=0.4), [0], generated)
        assert sampler.sample(np.array([logits, logits]), [frequency, presence]).tokens == [by_frequency, by_presence]


def test_counts_come_along_as_tokens_are_appended():
    history = TokenHistory(np.array([9], np.int32), np.array([4], np.int32), capacity=200, counts_generated=True)
    for n in range(100):
        history.append(n % 40)
    ids, counts = history.generated_counts()
    expected = Counter([4] + [n % 40 for n in range(100)])
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == expected
    assert history.num_generated == 101


def test_tiny_temperature_is_greedy_without_warning():
    logits = np.array([[1.0, 5.0, 4.999, -80.0]], np.float32)
    for options in ({}, {"top_k": 3}, {"top_p": 0.9}):
        for temperature in (1e-6, 1e-40, 5e-324):
            plan = SamplerPlan(temperature=temperature, **options)
            assert Sampler(4).sample(logits.copy(), [row(plan)]).tokens == [1]
