"""Steps that are left empty, schedules of the temperature, repeated draws, knobs."""

from pathlib import Path

import pytest
import torch
from models import Lab
from runs import Runner

from strop.support.errors import UserError
from strop.training.step import train_step

KNOBS = '''
from dataclasses import dataclass
from strop.method.part import Result


@dataclass(frozen=True)
class MoveRate:
    """Halves the learning rate after every step."""

    kind = "control"
    path: str = "training.lr"
    moves: tuple[str, ...] = ("training.lr",)

    def init(self):
        return {"lr": 0.5}

    def __call__(self, metrics, state):
        return Result({self.path: state["lr"] / 2}, {"lr": state["lr"] / 2})
'''


def test_a_step_that_keeps_nothing_is_logged_and_leaves_the_weights(
    lab: Lab, runner: Runner, tmp_path: Path
) -> None:
    same = tmp_path / "same.py"
    same.write_text("def same(completions, **columns):\n    return [1.0 for _ in completions]\n")
    raw = lab.raw(
        "dapo",
        training={"steps": 2, "rollouts_every": 1},
        algorithm={"curation.max_rounds": 2, "curation.num_prompts": 2, "plan.num_minibatches": 2},
    )
    raw["reward"] = {"functions": [f"{same}:same"]}
    run = runner.start(raw, tmp_path / "run")
    before = {k: v.clone() for k, v in run.loaded.model.state_dict().items()}
    seen = runner.go(run).seen
    assert [row["data/rollouts_kept"] for row in seen if "loss" in row] == [0.0, 0.0]
    assert all(before[k].equal(v) for k, v in run.loaded.model.state_dict().items())
    assert len(list((tmp_path / "run/rollouts").glob("*.parquet"))) == 2


def test_sampler_and_trainer_follow_a_schedule_of_the_temperature(
    lab: Lab, runner: Runner, tmp_path: Path
) -> None:
    raw = lab.raw(training={"steps": 3}, algorithm={"rollout.temperature": "linear(1.5, 0.5)"})
    run = runner.start(raw, tmp_path / "run")
    seen = [row for row in runner.go(run).seen if "loss" in row]
    assert run.world.services.scoring.now.temperature == 0.5
    for row in seen:
        assert row["sampling/sampling_logp_difference/mean"] < 1e-5


def test_a_prompt_drawn_twice_in_a_step_makes_two_groups(
    lab: Lab, runner: Runner, tmp_path: Path
) -> None:
    raw = lab.raw(
        "dapo",
        data={"train_size": 2},
        algorithm={"sampling.num_prompts": 4, "sampling.num_rollouts": 3, "curation.max_rounds": 3},
    )
    run = runner.start(raw, tmp_path / "run")
    batch = train_step(run.world, run.algorithm, {}, 1).batch
    sizes = torch.bincount(batch["group_B"])
    assert set(sizes.tolist()) == {3}
    pairs = set(zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True))
    assert len(pairs) == batch.size("P")


def test_control_may_move_the_learning_rate_and_nothing_unknown(
    lab: Lab, runner: Runner, tmp_path: Path
) -> None:
    (tmp_path / "knobs.py").write_text(KNOBS)
    own = f'"{tmp_path}/knobs.py:MoveRate"'
    raw = lab.raw(stages={"control": own}, training={"steps": 3, "lr": 1e-3})
    seen = runner.go(runner.start(raw, tmp_path / "run")).seen
    rates = [row["learning_rate"] for row in seen if "learning_rate" in row]
    assert rates == [1e-3, 0.25, 0.125]
    raw["stages"] = {"control": f'{own}(path="terms.policy.coef")'}
    with pytest.raises(UserError, match=r"terms\.policy\.coef, which is not among its `moves`"):
        runner.go(runner.start(raw, tmp_path / "other"))
    raw["stages"] = {"control": f'{own}(moves=("terms.nothing.coef",))'}
    with pytest.raises(UserError, match=r"moves terms\.nothing\.coef, which is no option"):
        runner.start(raw, tmp_path / "third")
    assert not (tmp_path / "third").exists(), "before anything is written"
