"""What prompt tokens add to a step: base and slope are found, hiccups do not spoil them."""

import random

import pytest

from inference.engine.prefill_cost import CostLine


@pytest.mark.parametrize(("base", "per_token"), [(0.0, 3.0), (0.0, 0.05), (10.0, 0.05), (6.0, 0.5)])
def test_line_is_found_from_noisy_steps(base, per_token):
    rng = random.Random(1)
    line = CostLine()
    for _ in range(200):
        size = rng.choice([16, 32, 64, 200, 900])
        line.observe(size, (base + per_token * size) * rng.uniform(0.97, 1.03))
    assert line.cost(100) == pytest.approx(base + per_token * 100, rel=0.15)
    assert line.cost(800) == pytest.approx(base + per_token * 800, rel=0.1)
    assert line.affordable(base + per_token * 400) == pytest.approx(400, rel=0.15)


def test_nothing_is_affordable_below_the_base():
    line = CostLine()
    for size in (16, 64, 256) * 20:
        line.observe(size, 10.0 + 0.05 * size)
    assert line.affordable(8.0) == 0


def test_steps_all_alike_are_taken_as_cost_by_the_token():
    line = CostLine()
    for _ in range(10):
        line.observe(64, 12.8)
    assert line.affordable(25.6) == 128
    assert line.ms_per_token == pytest.approx(0.2)


def test_one_hiccup_moves_the_line_little():
    line = CostLine()
    for size in (32, 64, 128) * 20:
        line.observe(size, 5.0 + 0.1 * size)
    before = line.affordable(30.0)
    line.observe(64, 5_000.0)
    assert line.affordable(30.0) > before / 3


def test_unknown_costs_nothing_and_says_so():
    line = CostLine()
    assert not line.is_known
    assert line.ms_per_token == 0.0
