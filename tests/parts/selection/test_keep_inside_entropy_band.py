import math

import pytest
import torch
from builders import NAN, flat_batch, ragged_batch, run, tokens_of

from strop.method.algorithm import Algorithm
from strop.method.part import Use, at_step
from strop.method.schedule import Cosine, Linear
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.parts.selection.keep_inside_entropy_band import KeepInsideEntropyBand
from strop.support.errors import UserError


def _example(entropy: float):
    # rewards (1, 1, 1, -1): grpo's advantages
    return flat_batch(
        (1, 2, 1, 2), entropy_old_T=[entropy] * 6, advantage_T=[0.5, 0.5, 0.5, 0.5, -1.5, -1.5]
    )


@pytest.mark.parametrize(
    ("entropy", "direction", "kept"),
    [
        (0.25, -1.0, [False] * 4 + [True] * 2),  # below: the bad one
        (0.6, 1.0, [True] * 4 + [False] * 2),  # above: the good ones
        (0.4, 0.0, [True] * 6),
        (0.375, 0.0, [True] * 6),  # on an edge is inside
        (0.5, 0.0, [True] * 6),
    ],
)
def test_worked_example(entropy, direction, kept):
    result = run(KeepInsideEntropyBand(0.375, 0.5), _example(entropy))
    assert result.value.gradient_T.tolist() == kept
    assert result.value.denominator_T.tolist() == kept
    assert result.metrics == {
        "entropy_control/low": 0.375,
        "entropy_control/high": 0.5,
        "entropy_control/entropy": pytest.approx(entropy),
        "entropy_control/direction": direction,
        "entropy_control/kept_fraction": {-1.0: 0.25, 1.0: 0.75, 0.0: 1.0}[direction],
    }


def test_band_follows_its_schedule():
    for kind, quarter in ((Linear, (0.475, 0.575)), (Cosine, (0.5268, 0.6268))):
        part = KeepInsideEntropyBand(kind(0.6, 0.1), kind(0.7, 0.2))
        for step, expected in ((25, quarter), (50, (0.35, 0.45))):
            now = at_step(part, step, 100)
            assert (now.h_low, now.h_high) == pytest.approx(expected, abs=5e-5)


def test_matches_slow_loop():
    batch = ragged_batch(1)
    rows = [i for i in range(batch.size("B")) if batch["scored_B"][i]]
    values = [float(batch["entropy_old_T"][t]) for i in rows for t in tokens_of(batch, i)]
    entropy = sum(values) / len(values)
    for part, sign in (
        (KeepInsideEntropyBand(entropy + 1e-6, 9.0), -1),
        (KeepInsideEntropyBand(0.0, entropy - 1e-6), 1),
        (KeepInsideEntropyBand(entropy - 1e-6, entropy + 1e-6), 0),
    ):
        expected = torch.zeros(batch.size("T"), dtype=torch.bool)
        kept = [i for i in rows if sign * float(batch["advantage_B"][i]) >= 0]
        for i in kept:
            expected[tokens_of(batch, i)] = True
        result = run(part, batch)
        assert (result.value.gradient_T == expected).all()
        assert (result.value.denominator_T == expected).all()
        assert result.metrics["entropy_control/entropy"] == pytest.approx(entropy, rel=1e-9)
        fraction = result.metrics["entropy_control/kept_fraction"]
        assert fraction == pytest.approx(len(kept) / len(rows))


def test_token_level_advantages_count_by_their_sum():
    batch = flat_batch((2, 2), entropy_old_T=[1.0] * 4, advantage_T=[3.0, -1.0, 1.0, -2.0])
    kept = run(KeepInsideEntropyBand(0.1, 0.2), batch).value.gradient_T
    assert kept.tolist() == [True, True, False, False]


def test_infinite_band_keeps_everything_and_one_sided_bands_one_sign():
    for entropy in (1e-9, 1e9):
        batch = _example(entropy)
        whole = run(KeepInsideEntropyBand(-math.inf, math.inf), batch).value
        assert whole.gradient_T.all()
        good = run(KeepInsideEntropyBand(-math.inf, -math.inf), batch).value.gradient_T
        assert good.tolist() == [True] * 4 + [False] * 2
        bad = run(KeepInsideEntropyBand(math.inf, math.inf), batch).value.gradient_T
        assert bad.tolist() == [False] * 4 + [True] * 2


def test_edges():
    # advantage 0 passes on either side; an unscored rollout is neither kept nor in H
    batch = flat_batch((1, 1, 1), entropy_old_T=[1.0, 1.0, 9.0], advantage_T=[0.0, -1.0, NAN]).set(
        scored_B=torch.tensor([True, True, False])
    )
    result = run(KeepInsideEntropyBand(0.1, 0.2), batch)
    assert result.value.gradient_T.tolist() == [True, False, False]
    assert result.metrics["entropy_control/entropy"] == 1.0
    assert result.metrics["entropy_control/kept_fraction"] == 0.5
    assert run(KeepInsideEntropyBand(2.0, 3.0), batch).value.gradient_T.tolist() == [
        True, True, False,
    ]  # fmt: skip
    nothing = run(KeepInsideEntropyBand(2.0, 3.0), _example(1.0).set(advantage_T=torch.ones(6)))
    assert not nothing.value.gradient_T.any()
    assert nothing.metrics["entropy_control/kept_fraction"] == 0.0
    empty = run(KeepInsideEntropyBand(-1.0, 1.0), batch.set(mask_T=torch.zeros(3).bool()))
    assert empty.metrics["entropy_control/entropy"] == 0.0
    assert empty.metrics["entropy_control/kept_fraction"] == 0.0
    lone = flat_batch((2,), entropy_old_T=[1.0, 1.0], advantage_T=[1.0, 1.0])
    kept = run(KeepInsideEntropyBand(0.0, 0.5), lone).metrics["entropy_control/kept_fraction"]
    assert kept == 1.0
    # edges that cross: the upper one decides
    crossed = run(KeepInsideEntropyBand(0.9, 0.1), _example(0.5))
    assert crossed.metrics["entropy_control/direction"] == 1.0
    with pytest.raises(UserError, match="h_low"):
        KeepInsideEntropyBand(h_low="low")
    with pytest.raises(UserError, match="h_high"):
        KeepInsideEntropyBand(h_high=float("nan"))


def test_schedules_may_be_replaced_by_numbers_one_after_the_other():
    algorithm = Algorithm(
        sampling=(Use(DrawInShuffledOrder()),),
        rollout=Use(SampleIndependently()),
        selection=(Use(KeepInsideEntropyBand()),),
    )
    path = "selection.keep_inside_entropy_band"
    moved = algorithm.at_step(5, 10).with_knobs({f"{path}.h_low": 0.9, f"{path}.h_high": 1.0})
    assert moved.selection[0].part == KeepInsideEntropyBand(0.9, 1.0)
    assert algorithm.at_step(5, 10).selection[0].part == KeepInsideEntropyBand(0.5, 0.6)
