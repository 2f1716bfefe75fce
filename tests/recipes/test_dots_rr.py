import math

import pyarrow.parquet as pq
import pytest
import torch
from builders import assert_equal_pushes, ragged_batch, stages
from fakes.services import FakeScoring, FakeTexts
from models import Lab, without_times
from runs import Runner

from strop import functional
from strop.parts.sampling._chosen import draw_by_weight
from strop.parts.sampling.draw_near_target_success import (
    DrawNearTargetSuccess,
    attended,
    calibrated,
    embedded,
    predict,
)
from strop.recipes.dots_rr import dots_rr
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


def test_worked_example_of_the_prediction():
    # z . z_j / sqrt(F) = log .7 and log .3 up to a constant
    z_NF = torch.tensor([[math.sqrt(2.0), 0.0]]).double()
    known_KF = torch.tensor([[math.log(0.7), 0.0], [math.log(0.3), 5.0]]).double()
    base = attended(z_NF, known_KF, torch.tensor([0.25, 0.75]).double())
    assert base.tolist() == pytest.approx([0.4])
    assert float(calibrated(base)) == pytest.approx(0.4)
    assert float(calibrated(base, 0.5, 0.1)) == pytest.approx(0.3294, abs=5e-5)
    ends = calibrated(torch.tensor([0.0, 1.0]).double())
    assert ends.tolist() == pytest.approx([1e-4, 1 - 1e-4], abs=1e-9)


def test_embeddings_are_standardised_over_the_prompts_and_then_each():
    prompts = {5: (0, 1), 6: (2,), 7: (3, 0, 2)}
    state_VF = torch.tensor([[1.0, 5, 2, 0], [3, 1, 4, 7], [0, 2, 9, 1], [6, 6, 1, 3]]).double()

    class States(FakeScoring):
        def hidden(self, batch):
            ids = torch.split(batch["id_T"], [len(ids) for ids in prompts.values()])
            yield [0, 1, 2], tuple(state_VF[own] for own in ids)

    def standard(values):
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in values) / len(values))
        return [(x - mean) / deviation for x in values]

    means = [[sum(float(state_VF[id, f]) for id in ids) / len(ids) for f in range(4)]
             for ids in prompts.values()]  # fmt: skip
    expected = zip(*(standard(column) for column in zip(*means, strict=True)), strict=True)
    found = embedded(tuple(prompts), FakeTexts(prompts), States())
    for own, wanted in zip(found.tolist(), expected, strict=True):
        assert own == pytest.approx(standard(wanted), abs=1e-4)


def test_worked_example_of_the_draw():
    d = torch.tensor([0.5, 0.501, 0.55]).double()
    log_N = -(d - 0.5).abs() / 1e-3
    assert log_N.softmax(0).tolist() == pytest.approx([0.731, 0.269, 1.4e-22], rel=0.02)
    rng = torch.Generator().manual_seed(1)
    first = [draw_by_weight(log_N, 2, rng) for _ in range(2000)]
    assert sum(rows[0] == 0 for rows in first) / 2000 == pytest.approx(0.731, abs=0.03)
    assert {2} & {row for rows in first for row in rows} == set()


def test_a_line_is_fitted_on_the_references():
    # two kinds of prompts, far apart: easy ones at .9, hard ones at .1
    z_NF = torch.tensor([[9.0, 0.0]] * 3 + [[0.0, 9.0]] * 3)
    success_N, told = predict(z_NF, {0: 0.9, 1: 0.9, 3: 0.1, 4: 0.1})
    assert success_N.tolist() == pytest.approx([0.9] * 3 + [0.1] * 3, abs=1e-6)
    assert told == pytest.approx({"reference/success": 0.5, "reference/error": 0.0}, abs=1e-6)
    alike, told = predict(z_NF, {0: 0.5, 3: 0.5})
    assert alike.tolist() == [0.5] * 6
    assert told == {"reference/success": 0.5, "reference/error": 0.0}
    assert predict(z_NF, {2: 0.25})[0].tolist() == [0.25] * 6
    assert predict(z_NF, {})[1] == {"reference/success": 0.0, "reference/error": 0.0}


def test_worked_example_of_the_clip():
    # behaviour .2, start .3, now .4: rho 2, centre 1.5, range 1.2 to 1.8
    for advantage, loss in ((1.0, -1.8), (-1.0, 2.0)):
        found = functional.policy_loss(
            "dots_rr",
            logp=torch.tensor([[math.log(0.4)]]).double(),
            logp_start=torch.tensor([[math.log(0.3)]]).double(),
            logp_beh=torch.tensor([[math.log(0.2)]]).double(),
            advantages=torch.tensor([[advantage]]).double(),
            mask=torch.ones(1, 1),
        )
        assert float(found[0]) == pytest.approx(loss)


def test_the_clip_is_grpos_for_the_steps_own_rollouts():
    batch = stages(grpo(), ragged_batch(1))
    own = batch.set(logp_behavior_T=batch["logp_old_T"])
    algorithm, parent = dots_rr(), grpo(aggregation="token-mean")
    assert_equal_pushes(algorithm, parent, own)


class Drawing:
    """The part with predictions that are given."""

    def __init__(self, monkeypatch, rates, num_prompts=4, **fields):
        from strop.parts.sampling import draw_near_target_success as module

        self.asked = []
        self.part = DrawNearTargetSuccess(num_prompts, 2, **fields)
        monkeypatch.setattr(module, "embedded", lambda pool, texts, scoring: torch.zeros(20, 1))
        monkeypatch.setattr(module, "predict", lambda z, known: (rates, {}))
        monkeypatch.setattr(module, "success_of", self.success_of)
        self.state = self.part.init()

    def success_of(self, texts, grading, sampling, uids, num, success, rng):
        self.asked.append((len(uids), num))
        return dict.fromkeys(uids, 0.5)

    def step(self, seed=0, num_wanted=None):
        rng = torch.Generator().manual_seed(seed)
        found = self.part(tuple(range(100, 120)), *[None] * 4, rng, self.state, num_wanted)
        self.state = found.state
        return [draw.uid for draw in found.value]


def test_rounds_of_a_run(monkeypatch):
    near = torch.full((20,), 0.9).double()
    near[:5], near[5:11] = 0.1, 0.5
    drawing = Drawing(monkeypatch, near, every=2)
    steps = [drawing.step(seed) for seed in range(4)]
    assert [len(uids) for uids in steps] == [4, 4, 2, 2]  # all at first, then a half
    assert drawing.asked == [(2, 2), (2, 2)]  # half of 4, two answers each, every second step
    assert set(steps[0]) <= set(range(105, 111))
    assert len({*steps[0], *steps[1]}) == 8  # none twice between two predictions
    assert {*steps[2], *steps[3]} <= set(range(105, 111))
    more = drawing.step(7, num_wanted=3)
    assert not {*more} & {*steps[2], *steps[3]}
    assert drawing.state["steps"] == 4
    for num_prompts, tried in ((9, 4), (2, 2)):  # half of them, and two at least
        other = Drawing(monkeypatch, near, num_prompts)
        other.step()
        assert other.asked == [(tried, 2)]


def test_without_replay_or_with_a_flat_draw(monkeypatch):
    assert dots_rr(s=1.0).curation == ()
    flat = Drawing(monkeypatch, torch.rand(20).double(), every=1, tau=1e9, share=1.0)
    first = torch.zeros(20)
    for seed in range(1000):
        first[flat.step(seed)[0] - 100] += 1
    assert float(first.min()) > 20
    assert float(first.max()) < 90
    for fields in ({"share": 0.0}, {"tau": 0.0}, {"every": 0}, {"target": 2.0}):
        with pytest.raises(UserError, match=next(iter(fields))):
            DrawNearTargetSuccess(**fields)


def test_a_run_replays_and_goes_on_as_it_would_have(tmp_path):
    raw = Lab.make(tmp_path).raw("dots_rr", reward="even")
    raw["algorithm"]["sampling.num_prompts"] = 4
    raw["training"]["steps"] = 5
    Runner().whole(raw, tmp_path / "whole")
    Runner().whole({**raw, "training": {**raw["training"], "steps": 3}}, tmp_path / "cut")
    runner = Runner()
    runner.go(runner.resume(tmp_path / "cut", training={"steps": 5}))
    assert without_times(tmp_path / "cut") == without_times(tmp_path / "whole")
    lines = without_times(tmp_path / "whole")[-5:]
    assert [line["data/rollouts_sampled"] for line in lines] == [16, 16, 8, 8, 8]
    assert [line["replay/drawn"] for line in lines[:2]] == [0, 0]
    assert all(line["replay/drawn"] == 8 for line in lines[2:])
    rows = pq.read_table(tmp_path / "whole" / "rollouts" / "step-000005.parquet").to_pylist()
    fresh = [row for row in rows if row["draw/why"] is not None]
    assert len(fresh) == 8
    assert all(row["draw/why"].startswith("success predicted 0.") for row in fresh)
