import statistics

import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from fakes.services import FakeServices, FakeTexts

from strop import functional
from strop.method.check import check
from strop.parts.advantage.weight.favour_early_marker import FavourEarlyMarker
from strop.parts.probe.find_marker import FindMarker
from strop.recipes.aspo_tool import aspo_tool
from strop.recipes.dapo import dapo
from strop.support.errors import UserError

EXAMPLE = {
    "rewards": torch.tensor([1.0, 1, 1, 0], dtype=torch.float64),
    "groups": torch.zeros(4, dtype=torch.int64),
    "marker_at": torch.tensor([200, 1000, 3000, -1]),
    "lengths": torch.tensor([5000, 4000, 6000, 100]),
}


def test_worked_example():
    found = functional.advantages("aspo_tool", **EXAMPLE)
    assert found.tolist() == pytest.approx([0.85, 0.66, 0.15, -1.5], abs=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"params": {"delta": 0.0}},
        {"params": {"kappa": 0.0}},
        {"marker_at": torch.tensor([200, -1, -1, 30])},
        {"rewards": torch.ones(4)},
    ],
)
def test_nothing_changes(change):
    given = {**EXAMPLE, **change}
    plain = {name: given[name] for name in ("rewards", "groups")}
    assert functional.advantages("aspo_tool", **given).tolist() == pytest.approx(
        functional.advantages("dapo", **plain).tolist()
    )


def test_against_a_loop_and_metrics():
    batch = ragged_batch(4, groups=(4, 5, 3), unscored=(2,))
    rng = torch.Generator().manual_seed(1)
    batch = batch.set(
        marker_at_B=torch.randint(-1, 6, (12,), generator=rng), reward_B=batch["outcome_B"]
    )
    before, after = stages(dapo(), batch), stages(aspo_tool(success=1.0), batch)
    plain_B, moved = before["advantage_B"], 0
    for i in range(12):
        group = [
            j for j in range(12)
            if batch["group_B"][j] == batch["group_B"][i] and batch["scored_B"][j]
            and batch["marker_at_B"][j] >= 0 and batch["outcome_B"][j] >= 1
        ]  # fmt: skip
        change = 0.0
        if i in group:
            late = float(batch["marker_at_B"][i]) - statistics.mean(
                float(batch["marker_at_B"][j]) for j in group
            )
            change = -2 * late / statistics.mean(float(batch["length_B"][j]) for j in group)
            limit = 0.7 * abs(float(plain_B[i]))
            change = max(min(change, limit), -limit)
            moved += change != 0
        own_T = (batch["rollout_T"] == i) & batch["mask_T"]
        expected = torch.full((int(own_T.sum()),), float(plain_B[i]) + change).double()
        torch.testing.assert_close(after["advantage_T"][own_T], expected)
    assert moved > 1
    metrics = run(FavourEarlyMarker(), before).metrics
    wrote_B = batch["scored_B"] & (batch["marker_at_B"] >= 0)
    assert metrics["marker/frac_rollouts"] == pytest.approx(float(wrote_B.sum()) / 11)
    mean = float(batch["marker_at_B"][wrote_B].double().mean())
    assert metrics["marker/mean_position"] == pytest.approx(mean)


CHARACTERS = dict(enumerate("0123456789+*()="))
IDS = {character: id for id, character in CHARACTERS.items()}


def answers(*texts):
    return flat_batch([len(x) for x in texts], id_T=[IDS[c] for x in texts for c in x])


def found(marker, batch, pieces=CHARACTERS):
    services = FakeServices(FakeTexts(pieces=pieces))
    return run(FindMarker(marker), batch, services=services).value.tolist()


def test_the_marker_is_found_in_the_text():
    batch = answers("12+(3*4)=5", "(3", "3*3=9", "11(2(")
    assert found("(", batch) == [3, 0, -1, 2]
    assert found("+(3", batch) == [2, -1, -1, -1]
    mask_T = torch.ones(batch.size("T"), dtype=torch.bool)
    mask_T[:4] = False  # only tokens of the policy count
    assert found("(", batch.set(mask_T=mask_T)) == [-1, 0, -1, 2]


# Tokens of several characters, and one that is special.
PIECES = ("ab", "c```py", "thon x", "")


def test_a_marker_inside_and_across_tokens():
    batch = flat_batch((3, 4), id_T=[0, 1, 2, 3, 0, 3, 1])
    assert found("```python", batch, dict(enumerate(PIECES))) == [1, -1]
    assert found("c", batch, dict(enumerate(PIECES))) == [1, 3]


def test_composes_and_refuses_an_empty_marker():
    algorithm = aspo_tool(marker="<code>", num_prompts=5)
    check(algorithm)
    assert algorithm.probes[0].part == FindMarker("<code>")
    assert algorithm.terms == dapo().terms
    with pytest.raises(UserError, match="must be text"):
        aspo_tool(marker="")
