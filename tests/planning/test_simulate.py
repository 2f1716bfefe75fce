"""Layouts whose seconds are known without a simulation, and invariants of all layouts."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strop.planning.course import Speed
from strop.planning.simulate import FINE, NEAR, ROUGH, best_division, divided, layouts, simulate
from strop.planning.work import Costs, Layout, Work

TICKS = Speed(step=1.0, row=0.0, cached=0.0, read=0.0)
COSTS = Costs(TICKS, reward=0.25, token=0.5, rest=1.0)


def work(*groups, num_groups=1, prompt=0.0, kept=1.0, slots=99):
    return Work(tuple(np.array(g) for g in groups), num_groups, prompt, kept, slots)


def apart(generate, train, staleness, **more):
    return Layout(generate, train, False, staleness, **more)


def test_one_worker_takes_the_sum_of_the_stages():
    found = simulate(COSTS, work([2, 6]), Layout(1, 1))
    # 6 decode steps, 2 rewards, 8 tokens, the rest
    assert found.step_seconds == pytest.approx(6 + 0.5 + 4 + 1)
    assert found.tokens_per_second == pytest.approx(8 / 11.5)
    shares = found.shares
    assert shares["generating"] == pytest.approx(6 / 11.5)
    assert shares["grading"] == pytest.approx(0.5 / 11.5)
    assert shares["training"] == pytest.approx(5 / 11.5)
    assert shares["idle"] == pytest.approx(0)


def test_two_workers_wait_for_the_longest_answer():
    found = simulate(COSTS, work([2, 6]), Layout(2, 2))
    # 6 of generating, 0.25 of grading, 3 for the 6 tokens of one answer, which is 1 more than half
    assert found.step_seconds == pytest.approx(6 + 0.25 + 3 + 1)
    assert found.shares["generating"] == pytest.approx((2 + 6) / 2 / 10.25)
    assert found.shares["training"] == pytest.approx((2 + 1) / 10.25)
    assert found.shares["idle"] == pytest.approx((4 / 2 + 1) / 10.25)


def test_prompts_are_read_once_a_group_and_trained_on_with_every_answer():
    costs = Costs(Speed(1.0, 0.0, 0.0, 0.1), 0.0, 0.5, 0.0)
    found = simulate(costs, work([3, 3], prompt=10.0, kept=0.5), Layout(1, 1))
    assert found.step_seconds == pytest.approx(10 * 0.1 + 3 + 0.5 * 0.5 * 26)
    assert found.tokens_per_second * found.step_seconds == pytest.approx(3)  # half of 6


def test_an_answer_is_handled_once_and_rows_are_let_in_together():
    costs = Costs(Speed(1.0, 0.0, 0.0, 0.1, begin=0.5, answer=0.25), 0.0, 0.75, 0.0)
    found = simulate(costs, work([3, 3], prompt=10.0), Layout(1, 1))
    assert found.step_seconds == pytest.approx(0.5 + 10 * 0.1 + 2 * 0.25 + 3 + 0.75 * 26)
    # weights come while a row is under way: it is let in again, and is no new answer
    free = replace(costs, token=0.0, rest=2.0, speed=replace(costs.speed, read=0.0))
    one = simulate(free, work([4], prompt=1.0), apart(1, 1, 1))
    assert one.step_seconds == pytest.approx(4 + 0.25 + 2 * 0.5)


def test_training_beside_generating_takes_the_longer_of_the_two():
    two = work([4], [4])
    slow = Costs(TICKS, 0.0, 2.0, 0.0)  # 4 to generate, 8 to train
    fast = Costs(TICKS, 0.0, 0.5, 0.0)  # 4 to generate, 2 to train
    assert simulate(slow, two, apart(1, 1, 1)).step_seconds == pytest.approx(8)
    assert simulate(fast, two, apart(1, 1, 1)).step_seconds == pytest.approx(4)
    found = simulate(fast, two, apart(1, 1, 3)).shares
    assert found["idle engines"] == pytest.approx(0)
    assert found["idle trainers"] == pytest.approx(0.5)
    assert found["idle"] == pytest.approx(0.25)


def test_new_weights_let_caches_be_read_again():
    costs = Costs(Speed(1.0, 0.0, 0.0, 0.5), 0.0, 0.75, 0.0)
    # weights come after 3 of the 4 tokens, which takes 3 * 0.5 seconds more
    assert simulate(costs, work([4]), apart(1, 1, 1)).step_seconds == pytest.approx(5.5)
    assert simulate(costs, work([4]), apart(1, 1, 1, renew=False)).step_seconds == pytest.approx(4)


def test_new_weights_let_the_rows_of_a_round_in_again():
    """With a prompt beyond that of a step, so that answers come in rounds."""
    costs = Costs(Speed(1.0, 0.0, 0.0, 0.5, begin=0.25), 0.0, 0.0, 3.0)
    found = simulate(costs, work([4]), apart(1, 1, 1, spare=1.0))
    # two steps a round: 3 to train; 4 to draw, 0.25 to let two rows in again and to read 3 of each
    assert found.step_seconds == pytest.approx((3 + 4 + 0.25 + 2 * 3 * 0.5) / 2)


def test_the_exchange_is_paid_where_there_is_somebody_to_exchange_with():
    costs = Costs(TICKS, 0.0, 0.5, 0.0, exchange=10.0)
    assert simulate(costs, work([4]), Layout(1, 1)).step_seconds == pytest.approx(6)
    assert simulate(costs, work([4, 4]), Layout(2, 2)).step_seconds == pytest.approx(4 + 2 + 10)
    # round s begins 10 s after step s - 2, which is trained 6 s after its round began
    assert simulate(costs, work([4]), apart(1, 1, 1)).step_seconds == pytest.approx(8)


def test_a_partial_round_ends_with_the_last_prompt_that_is_needed():
    costs = Costs(TICKS, 0.0, 0.25, 0.0)
    found = simulate(costs, work([4]), Layout(1, 1, spare=1.0))
    # two prompts end at once, one of which waits: every other round takes no time
    assert found.step_seconds == pytest.approx(4 / 2 + 1)
    rounds = found.ended - found.started
    assert sorted(rounds[-4:].tolist()) == pytest.approx([0, 0, 4, 4])
    assert simulate(costs, work([4]), Layout(1, 1)).step_seconds == pytest.approx(5)


def test_what_is_put_off_goes_on_from_its_tokens():
    costs = Costs(TICKS, 0.0, 0.0, 1.0)
    mixed = work([2], [20], num_groups=4)
    found = simulate(costs, mixed, Layout(1, 1, spare=2.0), steps=200)
    # 11 tokens an answer on average, as without: nothing is lost and nothing drawn twice
    assert found.tokens_per_second * found.step_seconds == pytest.approx(4 * 11, rel=0.1)
    plain = simulate(costs, mixed, Layout(1, 1), steps=200)
    assert found.step_seconds < 0.6 * plain.step_seconds


LENGTHS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=4)
SECONDS = st.floats(0.0, 1.0)
SPEEDS = st.builds(Speed, st.floats(0.01, 1.0), SECONDS, st.floats(0.0, 0.01), st.just(0.0))
SOME = st.builds(Costs, SPEEDS, SECONDS, st.floats(0.01, 1.0), SECONDS, SECONDS)


@given(SOME, LENGTHS, st.integers(1, 4), st.integers(1, 6))
def test_with_a_bound_of_0_they_take_turns(costs, groups, num_groups, count):
    costs = replace(costs, exchange=0.0)
    some = work(*groups, num_groups=num_groups)
    together = simulate(costs, some, Layout(count, count))
    turns = simulate(costs, some, apart(count, count, 0))
    assert turns.step_seconds == pytest.approx(together.step_seconds)
    assert turns.shares["idle"] >= 0.5 - 1e-9  # one half waits for the other


@settings(max_examples=10)
@given(SOME, LENGTHS, st.integers(1, 4), st.integers(2, 9), st.integers(1, 3),
       st.sampled_from([0.0, 1.0]), st.floats(0.0, 0.1))  # fmt: skip
def test_shares_are_shares(costs, groups, num_groups, count, bound, spare, read):
    costs = replace(costs, speed=replace(costs.speed, read=read))
    some = work(*groups, num_groups=num_groups, prompt=3.0, slots=3)
    for found in layouts(costs, some, count, [bound], spare):
        shares, layout = found.shares, found.layout
        names = ("generating", "grading", "training", "idle")
        assert sum(shares[name] for name in names) == pytest.approx(1)
        assert all(-1e-9 <= share <= 1 + 1e-9 for share in shares.values())
        assert layout.workers == count
        if not layout.shared:
            own = layout.generate * shares["idle engines"] + layout.train * shares["idle trainers"]
            assert own == pytest.approx(count * shares["idle"], abs=1e-9)
        # no round begins under weights that are too old, no step before its answers or the last one
        there = found.trained + costs.exchange * (not layout.shared)
        gap = layout.staleness + 1
        assert (found.started[gap:] >= there[:-gap] - 1e-9).all()
        assert (found.trains >= found.graded - 1e-9).all()
        assert (found.trains[1:] >= found.trained[:-1] - 1e-9).all()


@settings(max_examples=3)
@given(SOME, st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))
@example(Costs(Speed(0.4375, 0.125, 0.0, 0.0), 0.0, 0.25, 0.0), 1, 2, 5, 2)
def test_more_workers_are_never_slower_with_answers_of_one_length(
    costs, length, size, num_groups, bound
):
    some = work([length] * size, num_groups=num_groups)
    costs = replace(costs, exchange=0.0)
    found = [divided(costs, some, n, bound).tokens_per_second for n in range(2, 9)]
    # Steps that are alike for long before they change are taken for steady too early.
    assert all(b >= a * (1 - ROUGH) for a, b in pairwise(found))


@pytest.mark.parametrize(("bound", "spare"), [(2, 0.0), (1, 1.0)])
def test_the_division_is_the_best_of_all(bound, spare):
    costs = Costs(Speed(0.02, 0.001, 1e-5, 1e-4), 0.01, 0.001, 0.1)
    rng = np.random.default_rng(3)
    some = work(*np.maximum(rng.lognormal(3, 1, (50, 4)), 1).astype(int), num_groups=16)
    best = divided(costs, some, 20, bound, spare).tokens_per_second
    every = [simulate(costs, some, apart(n, 20 - n, bound, spare=spare)) for n in range(1, 20)]
    assert best >= 0.97 * max(found.tokens_per_second for found in every)


def test_thousands_of_workers():
    costs = Costs(Speed(0.02, 0.001, 1e-5, 1e-4), 0.01, 0.001, 0.1)
    rng = np.random.default_rng(3)
    some = work(*np.maximum(rng.lognormal(5, 1, (50, 8)), 1).astype(int), num_groups=256)
    few, many = (divided(costs, some, count, 1) for count in (64, 2048))
    assert many.layout.workers == 2048
    assert many.tokens_per_second > few.tokens_per_second


@given(st.integers(1, 5), st.integers(1, 60), st.integers(0, 60))
def test_halving_finds_where_the_balance_lies(few, more, place):
    """Of made divisions whose throughput falls from the best one on both sides."""
    many, asked = few + more, []
    balance = few + place % (more + 1)

    def at(count, error):
        asked.append((count, error))
        waits = (0.0, 1.0) if count < balance else (1.0, 0.0)
        return SimpleNamespace(
            waits=waits, window=(0, 5), tokens_per_second=2.0 ** -abs(count - balance), count=count
        )

    assert abs(best_division(at, few, many).count - balance) <= NEAR * min(
        balance - few + 1, many - balance + 1
    )
    assert asked[-1][1] == FINE  # the best one once more, as its few steps were rough
    assert all(error == ROUGH for _, error in asked[:-1])
    rough = len(asked) - 1
    best_division(at, few, many, error=ROUGH)
    assert len(asked) == 2 * rough + 1


def test_what_a_rough_estimate_does_not_tell_apart_is_simulated_once_more():
    rough, fine = {3: 12.5, 4: 12.3, 5: 12.0, 6: 8.0}, {3: 11.9, 4: 13.0}
    asked = []

    def at(count, error):
        asked.append((count, error))
        waits = (0.0, 1.0) if count < 5 else (1.0, 0.0)
        found = (fine if error == FINE else rough)[count]
        return SimpleNamespace(waits=waits, window=(0, 5), tokens_per_second=found, count=count)

    assert best_division(at, 3, 6).count == 4
    assert {count for count, error in asked if error == FINE} == {3, 4}  # 12.0 is too far off


@pytest.mark.parametrize(
    ("first", "last", "balance", "best"),
    [
        (1, 40, 21, 19), (1, 40, 20, 21),  # one more than halving has tried, below and above
        (100, 600, 105, 105),  # so few more than the least are told apart one by one
    ],
)  # fmt: skip
def test_those_around_the_balance_are_tried_too(first, last, balance, best):
    def at(count, error):
        waits = (0.0, 1.0) if count < balance else (1.0, 0.0)
        return SimpleNamespace(
            waits=waits, window=(0, 5), tokens_per_second=2.0 ** -abs(count - best), count=count
        )

    assert best_division(at, first, last).count == best
