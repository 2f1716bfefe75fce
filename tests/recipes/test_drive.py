import pyarrow.parquet as pq
import pytest
import torch
from models import Lab, without_times
from runs import Runner

from strop.method.algorithm import Until
from strop.parts.sampling import draw_hardest_prompts as module
from strop.parts.sampling.draw_hardest_prompts import DrawHardestPrompts, hardest
from strop.recipes.drive import drive
from strop.support.errors import UserError


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


def test_the_set_becomes_smaller_as_keep_does(monkeypatch):
    measured = iter([{1: 0.0, 2: 0.1, 3: 0.3, 4: 0.6, 5: 0.9}, {1: 0.1, 2: 0.4, 3: 0.5}])
    asked = []

    def measure(texts, grading, sampling, uids, num, success, rng):
        asked.append((uids, num))
        return next(measured)

    monkeypatch.setattr(module, "success_of", measure)
    kept = [0, 0, 3, 2, 2, 2, 0]
    parts = [DrawHardestPrompts(2, 8 if keep else 4, keep, num_answers=6) for keep in kept]
    state, found = parts[0].init(), []
    for part in parts:
        result = drawn(part, state)
        state = result.state
        found.append(result)
    assert [each.metrics["draw/pool"] for each in found] == [5, 5, 3, 2, 2, 2, 5]
    assert asked == [((1, 2, 3, 4, 5), 6), ((1, 2, 3), 6)]
    assert [each.value[0].num_rollouts for each in found] == [4, 4, 8, 8, 8, 8, 4]
    assert {d.uid for each in found[3:6] for d in each.value} == {1, 2}
    assert found[2].metrics["draw/success"] == pytest.approx(0.4 / 3)
    assert found[3].value[0].why.startswith("of the hardest 2, solved 0.")
    assert found[0].value[0].why == ""
    # a refill belongs to the set that its step began with
    more = drawn(parts[2], found[1].state, num_wanted=3)
    assert more.metrics["draw/pool"] == 5


def test_phases_and_refusals():
    method = drive(num_rollouts=4, sizes=(9, 3), lasts=(32, 64), later=5)
    assert method.names == ("broad", "hard_1", "hard_2")
    assert [phase.until for phase in method.phases] == [Until(32), Until(96), None]
    first = [each.sampling[0].part for each in method.algorithms]
    assert [(part.keep, part.num_rollouts) for part in first] == [(0, 4), (9, 5), (3, 5)]
    assert [phase.until and phase.until.last(160) for phase in drive().phases] == [
        32,
        96,
        128,
        None,
    ]
    drive().check_steps(160)
    with pytest.raises(UserError, match="phase hard_2 would begin after step 96"):
        method.check_steps(96)
    for fields in ({"sizes": (3,)}, {"sizes": (0, 1, 1)}, {"lasts": (1, 1, 0)}, {"sizes": ()}):
        with pytest.raises(UserError, match="as many `sizes` as `lasts`"):
            drive(**fields)
    with pytest.raises(UserError, match="all steps or all shares"):
        drive(sizes=(3, 2), lasts=(0.5, 2))


def test_a_run_changes_phase_and_goes_on_as_it_would_have(tmp_path):
    recipe = "drive(sizes=(4, 2), lasts=(1, 1), later=3, num_answers=2)"
    raw = Lab.make(tmp_path).raw(recipe, reward="even", training={"steps": 4})
    del raw["algorithm"]["sampling.num_rollouts"]  # of all phases
    raw["phases"] = {"broad": {"algorithm": {"sampling.num_rollouts": 4}}}
    Runner().whole(raw, tmp_path / "whole")

    def ask(run):
        run.stop_asked = run.done == 2

    runner = Runner()
    runner.go(runner.start(raw, tmp_path / "cut"), ask)
    runner.go(runner.resume(tmp_path / "cut"))
    assert without_times(tmp_path / "cut") == without_times(tmp_path / "whole")
    lines = without_times(tmp_path / "whole")[-4:]
    assert [line["phase"] for line in lines] == [1, 2, 3, 3]
    assert [line["draw/pool"] for line in lines] == [10, 4, 2, 2]
    assert [line["data/rollouts_sampled"] for line in lines] == [8, 6, 6, 6]
    rows = pq.read_table(tmp_path / "whole" / "rollouts" / "step-000003.parquet").to_pylist()
    assert len({row["uid"] for row in rows}) == 2
    assert all(row["draw/why"].startswith("of the hardest 2, solved") for row in rows)
