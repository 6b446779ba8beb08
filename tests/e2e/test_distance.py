"""Differences of log-probabilities: what is listed, what is not, what is NaN, and where answers part."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.e2e import distance
from conformance.stacks.engine_protocol import Answer, Likely


def likely(*rows: dict[int, float]) -> Likely:
    return Likely(
        torch.tensor([list(row) for row in rows], dtype=torch.int32),
        torch.tensor([list(row.values()) for row in rows], dtype=torch.float32),
    )


def answer(tokens: list[int], *rows: dict[int, float]) -> Answer:
    return Answer(tokens, "length", likely(*rows))


def test_tokens_are_matched_by_id():
    found = distance.between(likely({3: -1.0, 5: -2.0}), likely({5: -2.25, 3: -1.5}))
    assert found.tolist() == [0.5, 0.25]


def test_a_token_that_is_not_listed_differs_at_least_by_what_the_list_ends_with():
    found = distance.between(likely({3: -1.0, 5: -2.0}), likely({5: -1.0, 9: -4.0}))
    assert found.tolist() == [3.0, 1.0]


def test_a_token_that_could_be_just_below_the_list_says_nothing():
    assert distance.between(likely({3: -5.0}), likely({9: -4.0})).tolist() == []


@pytest.mark.parametrize("values", [(-1.0, math.nan), (math.nan, -1.0)])
def test_nan_on_either_side_spoils_the_spread(values):
    found = distance.between(likely({1: values[0]}, {2: -1.0}), likely({1: values[1]}, {2: -1.0}))
    spread = distance.spread([found])
    assert math.isnan(spread.p99) and math.isnan(spread.max) and not spread.max <= 1e9


def test_nothing_compared_is_no_small_difference():
    assert math.isnan(distance.spread([]).max)


def test_the_spread_of_known_differences():
    spread = distance.spread([torch.arange(100) / 100])
    assert spread.values == 100
    assert spread[1:] == pytest.approx((0.5, 0.99, 0.99))


def test_against_a_full_table():
    truth = torch.tensor([[-1.0, -2.0, -3.0]])
    assert distance.exactly(likely({2: -2.5, 0: -1.0}), truth).tolist() == [0.5, 0.0]


def test_where_answers_part():
    a = answer([4, 5, 6], {4: -0.1, 9: -3.0}, {5: -0.7, 8: -0.75}, {6: -0.1, 1: -4.0})
    b = answer([4, 8, 6], {4: -0.1, 9: -3.0}, {8: -0.7, 5: -0.8}, {6: -0.1, 1: -4.0})
    (parting,) = distance.partings([a], [b])
    assert (parting.step, parting.tokens) == (1, (5, 8))
    assert parting.gap == pytest.approx(0.05)
    assert [len(x.ids) for x in distance.until_parted(a, b)] == [2, 2]
    assert distance.partings([a], [a]) == []


def test_a_token_that_the_base_had_not_listed_parts_by_infinity():
    a, b = answer([4], {4: -0.1, 9: -3.0}), answer([7], {7: -0.1, 4: -3.0})
    assert distance.partings([a], [b])[0].gap == math.inf


def test_identical_looks_at_bits():
    a = answer([4], {4: -0.1, 9: math.nan})
    assert distance.identical(a, a)
    assert not distance.identical(a, answer([4], {4: -0.1000001, 9: math.nan}))
