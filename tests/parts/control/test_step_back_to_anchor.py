from pathlib import Path

import pytest
import torch
from models import Lab, without_times
from runs import Runner
from safetensors.torch import load_file

from strop.parts.control.average_explorer import AverageExplorer
from strop.parts.control.step_back_to_anchor import StepBackToAnchor
from strop.support.errors import UserError
from strop.training.learner.weight_copies import move


def windows(eps, ways, every=2):
    """Where weights that go this far in each window end, by the part and the rule of copies."""
    part, theta, anchor = StepBackToAnchor(every, eps), torch.zeros(1).double(), {}
    anchor["w"] = theta.clone()
    state, before = part.init(), 0.0
    for way in ways:
        for _ in range(every):
            theta += way / every
            result = part(state=state)
            state, at = result.state, result.value["model.anchor"]
            if at != before:
                move(anchor, {"w": theta}, result.value["model.anchor_share"])
                theta, before = anchor["w"].clone(), at
    return float(theta)


def test_worked_example_of_anchors():
    # three windows of +.4: 1.2, half of that, a tenth of that
    assert windows(1.0, [0.4] * 3) == pytest.approx(1.2)
    assert windows(0.5, [0.4] * 3) == pytest.approx(0.6)
    assert windows(0.1, [0.4] * 3) == pytest.approx(0.12)
    assert windows(0.0, [0.4] * 3) == 0


def test_worked_example_of_alignment():
    """Gradients g_1 = (-1, 0), g_2 = (0, -1): the two orders of two steps, and their mean."""
    curves = torch.tensor([[1.0, 0.2], [0.2, 1.0]]).double()
    centres = torch.eye(2).double()

    def ended(order, rate, eps):
        anchor, theta = {"w": torch.zeros(2).double()}, torch.zeros(2).double()
        for task in order:
            theta = theta - rate * curves[task] * (theta - centres[task])
        move(anchor, {"w": theta}, eps)
        return anchor["w"]

    assert ended((0, 1), 0.5, 1.0).tolist() == pytest.approx([0.45, 0.5])
    assert ended((1, 0), 0.5, 1.0).tolist() == pytest.approx([0.5, 0.45])
    back = (ended((0, 1), 0.5, 0.1) + ended((1, 0), 0.5, 0.1)) / 2
    assert back.tolist() == pytest.approx([0.0475, 0.0475])
    # the rate times eps in place of it goes .05 each, but for its own second order
    assert ended((0, 1), 0.05, 1.0).tolist() == pytest.approx([0.0495, 0.05])


def test_times_of_the_anchor_and_of_the_explorer():
    def told(part, knob):
        state, found = part.init(), []
        for _ in range(5):
            result = part(state=state)
            state = result.state
            found.append(result.value[knob])
        return found

    assert told(StepBackToAnchor(every=2), "model.anchor") == [0, 2, 2, 4, 4]
    assert told(AverageExplorer(decay=0.75), "model.explorer") == [1, 2, 3, 4, 5]
    assert told(AverageExplorer(decay=0.75), "model.explorer_share") == [0.25] * 5


@pytest.mark.parametrize("fields", [{"every": 0}, {"eps": 1.1}, {"eps": -0.1}])
def test_what_is_refused(fields):
    with pytest.raises(UserError, match=next(iter(fields))):
        StepBackToAnchor(**fields)


def raw_of(lab: Lab, control: str, steps: int = 4, **model: object) -> dict:
    raw = lab.raw("grpo", reward="even", stages={"control": control} if control else {})
    raw["training"] |= {"steps": steps, "lr": 0.02, "save_every": 1, "keep_checkpoints": 9}
    raw["model"] |= model
    return raw


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"checkpoints/step-{step:06d}/model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def test_of_a_run_the_whole_way_is_training_as_usual_and_none_is_none(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    start = load_file(lab.model / "model.safetensors")
    for name, control in (
        ("plain", ""),
        ("whole", "step_back_to_anchor(every=2, eps=1)"),
        ("half", "step_back_to_anchor(every=2)"),
        ("none", "step_back_to_anchor(every=2, eps=0)"),
    ):
        Runner().whole(raw_of(lab, control), tmp_path / name)
    plain, whole, half, none = (tmp_path / n for n in ("plain", "whole", "half", "none"))
    assert same(weights(plain, 4), weights(whole, 4))
    assert without_times(plain) == without_times(whole)
    assert same(weights(none, 4), start)
    assert not same(weights(none, 3), start)
    first = weights(plain, 2)
    for name, value in weights(half, 2).items():  # the first window is that of plain training
        torch.testing.assert_close(value, (start[name] + first[name]) / 2)


@pytest.mark.parametrize(
    ("control", "recipe"),
    [("step_back_to_anchor(every=2)", "grpo"), ("", "sol_rl_explore_then_train(N=4, K=2)")],
)
def test_a_run_that_is_resumed_between_two_moves_is_the_same(
    control: str, recipe: str, tmp_path: Path
) -> None:
    raw = {**raw_of(Lab.make(tmp_path), control), "recipe": recipe}
    raw["algorithm"].pop("sampling.num_rollouts")
    run, places = tmp_path / "run", tmp_path / "run/checkpoints"
    Runner().whole(raw, run)
    lines, last = without_times(run), weights(run, 4)
    copy = "anchor.pt" if control else "explorer.pt"
    kept = torch.load(places / "step-000004" / copy)
    assert not same(kept, weights(run, 3))
    (places / "step-000004").rename(tmp_path / "gone")
    runner = Runner()
    runner.go(runner.resume(run))
    assert same(weights(run, 4), last)
    assert without_times(run) == lines
    assert same(torch.load(places / "step-000004" / copy), kept)


def test_under_half_precision_the_masters_step_back(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    raw = raw_of(lab, "step_back_to_anchor(every=2, eps=0.3)", 2, dtype="bfloat16")
    Runner().whole(raw, tmp_path / "run")
    place = tmp_path / "run/checkpoints/step-000002"
    masters = torch.load(place / "trainer.pt")["optimiser"]["masters"]
    anchor = torch.load(place / "anchor.pt")
    assert all(map(torch.equal, masters, anchor.values()))
    assert any(not torch.equal(each, each.bfloat16().float()) for each in masters)
    for name, weight in load_file(place / "model.safetensors").items():
        assert torch.equal(weight, anchor[name].bfloat16())


def test_of_adapters_the_adapters_alone_are_kept(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    raw = raw_of(lab, "step_back_to_anchor(every=1)", 2, lora_rank=2)
    Runner().whole(raw, tmp_path / "run")
    anchor = torch.load(tmp_path / "run/checkpoints/step-000002/anchor.pt")
    assert anchor
    assert all("lora" in name for name in anchor)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": {"staleness": 1}}, r"does not go with engine\.staleness"),
        ({"training": {"max_staleness": 1}}, r"does not go with training\.max_staleness"),
        ({"recipe": "grpo", "stages": {"control": "average_explorer"}}, "no part explores"),
    ],
)
def test_an_explorer_that_could_not_explore_is_refused(
    settings: dict, message: str, tmp_path: Path
) -> None:
    raw = Lab.make(tmp_path).raw(**{"recipe": "sol_rl_explore_then_train(N=4, K=2)", **settings})
    raw["algorithm"].pop("sampling.num_rollouts")
    with pytest.raises(UserError, match=message):
        Runner().start(raw, tmp_path / "run")
