import math

import pytest
import torch
from builders import flat_batch
from hypothesis import given
from hypothesis import strategies as st

from strop.method import part as parts
from strop.method import reading
from strop.method.check import check
from strop.method.part import Draw, Use
from strop.parts.sampling.track_success import TrackSuccess
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

STEPS = st.lists(
    st.dictionaries(st.integers(1, 5), st.lists(st.sampled_from([0, 1, None]), min_size=1,
                                                max_size=4), max_size=4),
    min_size=1, max_size=6,
)  # fmt: skip


def batch_of(step):
    """A step's batch from uid -> outcomes, None: unscored."""
    uids = list(step)
    outcomes = [each for uid in uids for each in step[uid]]
    groups = [n for n, uid in enumerate(uids) for _ in step[uid]]
    batch = flat_batch(
        [1] * len(outcomes), groups, outcome_B=[float(each or 0) for each in outcomes]
    )
    scored_B = torch.tensor([each is not None for each in outcomes])
    return batch.set(uid_P=torch.tensor(uids), scored_B=scored_B)


def after(part, *steps):
    state = part.init()
    for step in steps:
        state = parts.update(Use(part), batch_of(step), state, "observe")
    return state


def counts(part, state, uid):
    known = part.view(state).of([uid])
    return float(known.right_N), float(known.wrong_N)


@given(steps=STEPS.filter(lambda steps: all(steps)), keep=st.sampled_from([0.0, 0.2, 1.0]),
       fade=st.sampled_from([0.5, 0.999, 1.0]))  # fmt: skip
def test_sums_are_those_of_a_loop_over_all_prompts_and_steps(steps, keep, fade):
    part = TrackSuccess(keep, fade)
    expected = {uid: [0.0, 0.0, 0] for uid in range(1, 6)}
    for step in steps:
        for uid, sums in expected.items():
            known = [each for each in step.get(uid, []) if each is not None]
            left = keep if known else fade
            right = sum(each == 1 for each in known)
            sums[0] = left * sums[0] + right
            sums[1] = left * sums[1] + len(known) - right
            sums[2] += len(known)
    state = after(part, *steps)
    known = part.view(state).of(range(1, 6))
    found = zip(known.right_N.tolist(), known.wrong_N.tolist(), known.answers_N.tolist(),
                strict=True)  # fmt: skip
    for uid, sums in zip(range(1, 6), found, strict=True):
        assert sums == pytest.approx(expected[uid])
    assert state["steps"] == len(steps)


def test_worked_example_of_fading_counts():
    # (0.1, 8.4) with 1 of 8 right -> (1.02, 8.68); (2.7, 5.3) with 4 of 8 -> (4.54, 5.06);
    # not drawn: (9, 0.2) -> (8.991, 0.1998)
    part = TrackSuccess(0.2, 0.999)
    double = torch.float64
    state = {
        **part.init(),
        "uid": torch.tensor([1, 2, 3]),
        "step": torch.zeros(3).long(),
        "right": torch.tensor([0.1, 2.7, 9.0], dtype=double),
        "wrong": torch.tensor([8.4, 5.3, 0.2], dtype=double),
        "answers": torch.zeros(3, dtype=double),
        "entries": torch.zeros(3, 0, dtype=double),
    }
    step = {1: [1] + [0] * 7, 2: [1] * 4 + [0] * 4}
    state = parts.update(Use(part), batch_of(step), state, "observe")
    assert counts(part, state, 1) == pytest.approx((1.02, 8.68))
    assert counts(part, state, 2) == pytest.approx((4.54, 5.06))
    assert counts(part, state, 3) == pytest.approx((8.991, 0.1998))


def test_a_window_forgets_what_is_older():
    mean, any_of = TrackSuccess(window=2), TrackSuccess(window=2, entry="any")
    steps = ({7: [1, 1]}, {7: [0, 1, None]}, {8: [0, 0]}, {7: [0, 0, 0, 1]})
    assert float(mean.view(after(mean, *steps)).of([7]).success_N) == pytest.approx(0.375)
    assert float(any_of.view(after(any_of, *steps)).of([7]).success_N) == 1.0
    assert float(any_of.view(after(any_of, *steps)).of([8]).success_N) == 0.0
    whole = TrackSuccess()
    assert float(whole.view(after(whole, *steps)).of([7]).success_N) == pytest.approx(4 / 8)


@pytest.mark.parametrize(("window", "expected"), [(1, 0.5), (3, 0.5), (0, 5 / 8)])
def test_a_window_may_change_when_a_run_goes_on(window, expected):
    state = after(TrackSuccess(window=2), {7: [1, 1]}, {7: [1, 0]}, {7: [1, 0]})
    part = TrackSuccess(window=window)
    assert float(part.view(state).of([7]).success_N) == pytest.approx(0.5 if window else 4 / 6)
    state = parts.update(Use(part), batch_of({7: [0, 1]}), state, "observe")
    assert float(part.view(state).of([7]).success_N) == pytest.approx(expected)
    assert state["entries"].shape == (1, window)


def test_draws_are_told_and_unknown_prompts_are_nan():
    part = TrackSuccess()
    state = after(part, {4: [1, 0, 0, 0]}, {5: [None]})
    error = part((Draw(4, 2), Draw(5, 2), Draw(6, 2)), state)
    assert error.value[0].columns == {"past_success_B": 0.25, "past_answers_B": 4.0}
    assert error.value[1].columns["past_success_B"] != error.value[1].columns["past_success_B"]
    assert error.value[2].columns["past_answers_B"] == 0.0
    assert error.metrics == pytest.approx(
        {"tracked/prompts": 1.0, "tracked/success": 0.25, "tracked/frac_new": 2 / 3}
    )
    assert part((), part.init()).metrics["tracked/frac_new"] == 1.0


def test_a_prompt_whose_answers_have_faded_away_is_unknown():
    part = TrackSuccess(fade=0.0)
    state = after(part, {4: [1, 0]}, {5: [1]})
    found = part((Draw(4, 2), Draw(5, 2)), state)
    assert math.isnan(found.value[0].columns["past_success_B"])
    assert found.metrics["tracked/success"] == 1.0
    assert found.metrics["tracked/frac_new"] == 0.5


def test_bad_fields_and_a_sampler_without_a_tracker():
    for fields in ({"keep": 1.5}, {"fade": -0.1}, {"window": -1}, {"entry": "best"}):
        with pytest.raises(UserError, match=next(iter(fields))):
            TrackSuccess(**fields)
    with pytest.raises(UserError, match=r"sampling: draw_uncertain_prompts reads what is known .*"
                                        r"put track_success after it"):  # fmt: skip
        check(reading.replace_stage(grpo(), "sampling", "draw_uncertain_prompts"))
