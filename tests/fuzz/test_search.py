"""The search: smallest case, cases judged once, time limits."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.fuzz.search import Profile, search

NUMBERS = st.integers(0, 10_000)
MANY = Profile(300, None, True)


def test_the_smallest_is_found_and_no_case_is_judged_twice():
    asked = []

    def judge(number):
        asked.append(number)
        return "too large" if number >= 777 else ""

    found = search(NUMBERS, judge, MANY)
    assert found.smallest == 777 and found.judged[777] == "too large" and found.in_time
    assert len(asked) == len(set(asked))


def test_all_well():
    found = search(NUMBERS, lambda number: "", MANY)
    assert found.smallest is None and len(found.judged) > 100


def test_first_cases_count_even_where_none_is_drawn():
    found = search(st.just(1), lambda number: "odd one" if number == 5 else "", MANY, first=[4, 5])
    assert found.smallest == 5 and list(found.judged) == [4, 5, 1]


def test_out_of_time_is_said_and_proves_nothing():
    found = search(NUMBERS, lambda number: "wrong", Profile(50, -1.0, True), first=[3])
    assert not found.in_time and found.judged == {} and found.smallest is None


def test_repeatable():
    runs = [list(search(NUMBERS, lambda number: "", MANY).judged) for _ in range(2)]
    assert runs[0] == runs[1]
