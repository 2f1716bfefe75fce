import pyarrow.parquet as pq
import pytest
import torch
from models import Lab, without_times
from runs import Runner

from strop.errors import UserError
from strop.recipes.drive import drive
from strop.sampling import draw_hardest_prompts as module
from strop.sampling.draw_hardest_prompts import DrawHardestPrompts, hardest


def test_worked_example():
    first = hardest(
        (1, 2, 3, 4, 5), dict(zip(range(1, 6), (0, 0.1, 0.3, 0.6, 0.9), strict=True)), 3
    )
    assert first == (1, 2, 3)
    assert hardest(first, {1: 0.1, 2: 0.4, 3: 0.5}, 2) == (1, 2)
    assert hardest((5, 4, 3), {3: 0.5, 4: 0.5}, 2) == (5, 4)  # 5: never scored; then pool order
    assert hardest((5, 4), {}, 9) == (5, 4)


def drawn(part, state, num_wanted=None):
    rng = torch.Generator().manual_seed(0)
    return part(tuple(range(1, 6)), state, rng, None, None, None, num_wanted)


def test_phases(monkeypatch):
    measured = iter([{1: 0.0, 2: 0.1, 3: 0.3, 4: 0.6, 5: 0.9}, {1: 0.1, 2: 0.4, 3: 0.5}])
    asked = []

    def measure(texts, grading, sampling, uids, num, success, rng):
        asked.append(uids)
        return next(measured)

    monkeypatch.setattr(module, "success_of", measure)
    part = DrawHardestPrompts(2, 4, sizes=(3, 2), lasts=(2, 1), later=8)
    state, found = part.init(), []
    for _ in range(6):
        result = drawn(part, state)
        state = result.state
        found.append(result)
    assert [each.metrics["draw/phase"] for each in found] == [0, 0, 1, 2, 2, 2]
    assert [each.metrics["draw/pool"] for each in found] == [5, 5, 3, 2, 2, 2]
    assert asked == [(1, 2, 3, 4, 5), (1, 2, 3)]
    assert {d.num_rollouts for d in found[1].value} == {4}
    assert {d.num_rollouts for d in found[2].value} == {8}
    assert {d.uid for each in found[3:] for d in each.value} == {1, 2}
    assert found[2].metrics["draw/success"] == pytest.approx(0.4 / 3)
    assert found[3].value[0].why.startswith("phase 2, solved 0.")
    assert found[0].value[0].why == ""
    more = drawn(part, found[1].state, num_wanted=3)  # a refill belongs to the step's phase
    assert more.metrics["draw/phase"] == 0


def test_refusals_and_one_phase():
    drive().check()
    assert drive(num_rollouts=4).paths()["sampling.draw_in_shuffled_order.num_rollouts"] == 4
    for fields in ({"sizes": (3,)}, {"sizes": (0, 1, 1)}, {"lasts": (1, 1, 0)}):
        with pytest.raises(UserError, match="as many `sizes` as `lasts`"):
            drive(**fields)
    part = DrawHardestPrompts(5, 4, sizes=(), lasts=())
    assert sorted(d.uid for d in drawn(part, part.init()).value) == [1, 2, 3, 4, 5]


def test_a_run_changes_phase_and_goes_on_as_it_would_have(tmp_path):
    recipe = "drive(sizes=(4, 2), lasts=(1, 1), later=3, num_answers=2)"
    raw = Lab.make(tmp_path).raw(recipe, reward="even")
    Runner().whole(raw, tmp_path / "whole")
    Runner().whole({**raw, "training": {**raw["training"], "steps": 2}}, tmp_path / "cut")
    runner = Runner()
    runner.go(runner.resume(tmp_path / "cut", training={"steps": 3}))
    assert without_times(tmp_path / "cut") == without_times(tmp_path / "whole")
    lines = without_times(tmp_path / "whole")[-3:]
    assert [line["draw/pool"] for line in lines] == [10, 4, 2]
    assert [line["data/rollouts_sampled"] for line in lines] == [8, 6, 6]
    rows = pq.read_table(tmp_path / "whole" / "rollouts" / "step-000003.parquet").to_pylist()
    assert len({row["uid"] for row in rows}) == 2
    assert all(row["draw/why"].startswith("phase 2, solved") for row in rows)
