import math

import pytest
import torch
from builders import flat_batch
from models import Lab, without_times
from runs import Runner

from strop.batch import segments
from strop.method import part as parts
from strop.method import reading
from strop.method.check import check
from strop.method.part import Use
from strop.parts.probe.measure_angles import MeasureAngles
from strop.parts.sampling._chosen import draw_by_weight
from strop.parts.sampling.draw_along_ranking import DrawAlongRanking
from strop.recipes.gain_rl import gain_rl
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


class Scoring:
    """Hidden states by token, two rollouts at a time."""

    def __init__(self, state_VF):
        self.state_VF = state_VF

    def hidden(self, batch):
        ids = torch.split(batch["id_T"][batch["mask_T"]], batch["length_B"].tolist())
        for start in range(0, len(ids), 2):
            rows = list(range(start, min(start + 2, len(ids))))
            yield rows, tuple(self.state_VF[ids[row]] for row in rows)


class Texts:
    def __init__(self, prompts):
        self.prompts = prompts

    def prompt_ids(self, uid):
        return self.prompts[uid]


# token 0: east, 1: north, 2: north-east, 3: west
SCORING = Scoring(torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 3.0], [-1.0, 0.0]]))


def test_worked_example_of_the_step():
    part = DrawAlongRanking()
    assert part.step(0.75, 0.3) == pytest.approx(499.6, abs=0.05)
    assert part.step(0.25, 0.3) == pytest.approx(37.5, abs=0.05)
    assert part.step(0.5, 0.0) == 0.0
    assert part.step(0.0, 0.0) == 0.0  # never back
    assert DrawAlongRanking(pace=1e9).step(1.0, 1.0) == 1000.0


def test_weights_at_a_distance():
    weights = [math.exp(-((d / 1000.0) ** 2) / 2) for d in (0, 1000, 2000)]
    assert weights == pytest.approx([1, 0.607, 0.135], abs=5e-4)
    rng = torch.Generator().manual_seed(0)
    log_N = torch.tensor([0.0, -0.5, -2.0]).double()
    first = torch.zeros(3)
    for _ in range(4000):
        first[draw_by_weight(log_N, 1, rng)] += 1
    expected = log_N.exp() / log_N.exp().sum()
    torch.testing.assert_close(first.double() / 4000, expected, atol=0.025, rtol=0)
    assert sorted(draw_by_weight(torch.tensor([0.0, -1e6, -1e9]), 3, rng)) == [0, 1, 2]


def test_cosines():
    north, east = torch.tensor([[0.0, 2.0]]), torch.tensor([[3.0, 0.0]])
    both = torch.cat([north, east])
    assert float(segments.mean_cosine(both, both)) == pytest.approx(0.5)  # two 1s, two 0s
    assert float(segments.mean_cosine(both, -north)) == pytest.approx(-0.5)
    assert float(segments.mean_cosine(both, both[:0])) == 0.0


def test_the_ranking_is_by_both_cosines():
    # all begin with token 0; own tokens: alike and like it, apart, alike and opposite
    prompts = {5: (0, 1, 3), 6: (0, 3, 3), 7: (0, 0, 0), 8: (0, 1, 2)}
    part = DrawAlongRanking()
    assert part.ranked((5, 6, 7, 8), Texts(prompts), SCORING) == (7, 8, 5, 6)
    # among themselves: .5, 1, 1, .854; with token 0: -.5, -1, 1, .354
    inner = DrawAlongRanking(inter_weight=0.0)
    assert inner.ranked((5, 6, 7, 8), Texts(prompts), SCORING) == (6, 7, 8, 5)
    assert inner.ranked((5,), Texts(prompts), SCORING) == (5,)
    assert part.ranked((7, 6), Texts({7: (0,), 6: (0,)}), SCORING) == (7, 6)
    # the last token is a prompt's own: 0 + 1 of the short one, 1/2 - 1/2 of the long one
    assert part.ranked((7, 6), Texts({7: (0, 1, 3), 6: (0, 1)}), SCORING) == (6, 7)


def test_the_angle_of_a_rollout_is_that_of_a_loop():
    batch = flat_batch((3, 1), id_T=[0, 1, 2, 3])
    found = parts.call(Use(MeasureAngles()), batch, services=SimpleServices(SCORING)).value
    rows = torch.nn.functional.normalize(SCORING.state_VF[[0, 1, 2]], dim=-1)
    pairs = [float(rows[s] @ rows[t]) for t in range(3) for s in range(t + 1)]
    assert found.tolist() == pytest.approx([sum(pairs) / 6, 1.0])


class SimpleServices:
    def __init__(self, scoring):
        self.scoring = scoring


def drawn(part, state, num_wanted=None, seed=0):
    texts = Texts({uid: (0, uid % 4) for uid in range(20)})
    rng = torch.Generator().manual_seed(seed)
    return part(tuple(range(20)), texts, SCORING, rng, state, num_wanted)


def test_the_window_follows_the_centre():
    part = DrawAlongRanking(num_prompts=4, width=0.5)
    first = drawn(part, part.init())
    ranking = first.state["ranking"]
    assert sorted(ranking) == list(range(20))
    assert first.value[0].uid in ranking[:3]
    rank = ranking.index(first.value[0].uid) + 1
    assert first.value[0].why == f"rank {rank} of 20, centre 1"
    last = drawn(part, {**first.state, "centre": 19.0, "left": ()})
    assert {draw.uid for draw in last.value} & set(ranking[-3:])
    assert last.metrics["draw/rank"] > 0.7 > 0.3 > first.metrics["draw/rank"]
    more = drawn(part, first.state, num_wanted=16)
    assert {draw.uid for draw in (*more.value, *first.value)} == set(range(20))


def test_the_centre_moves_after_a_period_by_its_accuracy_and_angle_up_to_the_end():
    # a period of 8 prompts is two steps of 4; mean outcome (3 + 3) / 8 = .75, mean angle .3: 499.6
    part = DrawAlongRanking(num_prompts=4, period=8, width=0.5)
    batch = flat_batch((1,) * 4, outcome_B=[1.0, 1.0, 1.0, 0.0], angle_B=[0.2, 0.4, 0.4, 0.2])
    first = drawn(part, {**part.init(), "ranking": tuple(range(2000))})
    second = drawn(part, parts.update(Use(part), batch, first.state))
    assert second.state["centre"] == 0.0
    both = [draw.uid for draw in (*first.value, *second.value)]
    assert len(set(both)) == 8  # without replacement
    third = drawn(part, parts.update(Use(part), batch, second.state))
    assert third.state["centre"] == pytest.approx(499.6, abs=0.05)
    assert third.metrics["draw/centre"] == pytest.approx(499.6 / 2000, abs=1e-4)
    short = {**second.state, "ranking": tuple(range(100)), "told": (6.0, 2.4, 8)}
    assert drawn(part, short).state["centre"] == 99.0
    nobody = batch.set(scored_B=torch.zeros(4, dtype=torch.bool))
    assert parts.update(Use(part), nobody, second.state) == second.state
    one = DrawAlongRanking(num_prompts=4, period=1)
    assert len(drawn(one, one.init()).value) == 4  # not shorter than a step


def test_recipe():
    shuffled = reading.replace_stage(gain_rl(), "sampling", "draw_in_shuffled_order")
    with pytest.raises(UserError, match="measure_angles writes angle_B, which nothing after it"):
        check(shuffled)
    assert reading.replace_stage(shuffled, "probes", "") == grpo()
    with pytest.raises(UserError, match=r"begins with a steepness: \(-1.0, 0.5\)"):
        gain_rl(alpha=-1.0)
    with pytest.raises(UserError, match="width"):
        DrawAlongRanking(width=0.0)


def test_a_run_moves_along_its_ranking(tmp_path):
    raw = Lab.make(tmp_path).raw("gain_rl(n=2.0, std=2.0, subset_size=2)", reward="even")
    Runner().whole(raw, tmp_path / "whole")
    centres = [line["draw/centre"] for line in without_times(tmp_path / "whole")[-3:]]
    assert centres == sorted(centres)
    assert centres[-1] > 0
