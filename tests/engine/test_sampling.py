"""Plans are checked and complete; draws depend on seed and position alone and are evenly spread."""

from __future__ import annotations

from uuid import UUID

import pytest

from inference.engine.sampling.plan import SamplerPlan, seed_of, uniforms
from inference.errors import InvalidRequest
from inference.messages.generation import SamplingParams


def test_what_is_not_set_becomes_neutral():
    assert SamplerPlan.of(SamplingParams(), seed=7) == SamplerPlan(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        seed=7,
    )


def test_what_is_set_is_kept():
    params = SamplingParams(temperature=0.6, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1, seed=-3)
    plan = SamplerPlan.of(params, seed=7)
    assert (plan.temperature, plan.top_k, plan.top_p, plan.min_p, plan.seed) == (0.6, 40, 0.95, 0.05, -3)
    assert plan.repetition_penalty == 1.1


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": float("nan")},
        {"temperature": -0.1},
        {"top_k": -1},
        {"top_p": 0.0},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 3.0},
        {"frequency_penalty": float("inf")},
        {"seed": 2**64},
        {"typical_p": 0.0},
        {"dry_multiplier": -1.0},
        {"dry_base": 0.5},
        {"dry_allowed_length": 0},
        {"logit_bias": ((3, 101.0),)},
    ],
)
def test_value_out_of_range_is_named(bad):
    (name,) = bad
    with pytest.raises(InvalidRequest, match=name):
        SamplerPlan(**bad)


def test_draw_depends_on_seed_and_position_alone():
    assert SamplerPlan(seed=5).uniform(3) == SamplerPlan(seed=5, temperature=0.1, top_k=2).uniform(3)
    draws = {SamplerPlan(seed=seed).uniform(n) for seed in range(50) for n in range(50)}
    assert len(draws) == 2500
    assert all(0 <= draw < 1 for draw in draws)


def test_negative_seed_is_the_same_64_bits():
    assert SamplerPlan(seed=-1).uniform(0) == SamplerPlan(seed=2**64 - 1).uniform(0)


def test_seeds_one_increment_apart_are_not_the_same_draws_shifted():
    gamma = 0x9E3779B97F4A7C15
    one, next_one = SamplerPlan(seed=1), SamplerPlan(seed=1 + gamma)
    assert [one.uniform(n + 1) for n in range(5)] != [next_one.uniform(n) for n in range(5)]


def test_draws_are_evenly_spread():
    # Given seeds and positions fixed here, the counts are fixed too: this cannot fail by chance.
    counts = [0] * 10
    for seed in range(100):
        for n in range(100):
            counts[int(SamplerPlan(seed=seed).uniform(n) * 10)] += 1
    assert all(900 < count < 1100 for count in counts)


def test_seed_of_a_generation_is_fixed_and_its_own():
    ids = [UUID(int=n << shift) for n in range(1, 50) for shift in (0, 32, 70)]
    assert len({seed_of(i) for i in ids}) == len(set(ids))
    assert seed_of(ids[0]) == seed_of(UUID(str(ids[0])))
    assert all(0 <= seed_of(i) < 2**64 for i in ids)


def test_all_that_params_say_is_in_the_plan():
    params = SamplingParams(
        typical_p=0.9,
        dry_multiplier=0.8,
        dry_base=1.5,
        dry_allowed_length=3,
        logit_bias={9: -100.0, 4: 2.0},
        ignore_eos=True,
        logprobs=5,
    )
    plan = SamplerPlan.of(params)
    assert (plan.typical_p, plan.dry_multiplier, plan.dry_base, plan.dry_allowed_length) == (0.9, 0.8, 1.5, 3)
    assert plan.logit_bias == ((4, 2.0), (9, -100.0))
    assert plan.ignores_end
    assert plan.num_logprobs == 5


def test_logprobs_out_of_range_are_named():
    with pytest.raises(InvalidRequest, match="logprobs"):
        SamplerPlan(num_logprobs=21)


def test_bias_of_a_token_outside_the_vocabulary_is_refused_by_name():
    plan = SamplerPlan(logit_bias=((4, 1.0), (100, 1.0)))
    plan.check_vocab(101)
    with pytest.raises(InvalidRequest, match="token 100"):
        plan.check_vocab(100)


def test_draws_of_many_rows_are_those_of_each():
    plans = [SamplerPlan(seed=seed) for seed in (0, 1, -1, 2**63, 2**64 - 1, 12345)]
    positions = [0, 1, 7, 100, 2**20, 3]
    expected = [plan.uniform(position) for plan, position in zip(plans, positions, strict=True)]
    assert uniforms(plans, positions).tolist() == expected
