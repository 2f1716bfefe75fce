import json

import pytest
import torch
from builders import assert_same_push, flat_batch, ragged_batch, run, stages
from models import Lab
from runs import Runner

from strop import functional
from strop.parts.selection.keep_confident_errors import KeepConfidentErrors
from strop.recipes.entropy_sft import entropy_sft
from strop.recipes.sft import sft
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics

CE, ENTROPY = [0.1, 2.0, 0.5, 3.0], [0.05, 2.5, 0.2, 1.0]


def test_worked_example():
    # d = 0.05, -0.5, 0.3, 2: tokens 2 and 3
    batch = flat_batch((4,), logp_old_T=[-x for x in CE], entropy_old_T=ENTROPY)
    found = run(KeepConfidentErrors(0.5, 1.0), batch)
    assert found.value.gradient_T.tolist() == [False, False, True, True]
    assert found.value.denominator_T.equal(found.value.gradient_T)
    assert found.metrics["entropy_control/error_threshold"] == pytest.approx(0.3)
    none = batch.set(gradient_T=torch.zeros(4).bool())
    assert not run(KeepConfidentErrors(), none).value.gradient_T.any()
    few = run(KeepConfidentErrors(0.2, 1.0), batch).value  # int(0.8) is 0: one
    assert few.gradient_T.tolist() == [False, False, False, True]


def test_worked_example_through_the_padded_call():
    logp = -torch.tensor([CE]).double()
    loss, _ = functional.policy_loss(
        "entropy_sft", logp=logp, logp_old=logp, entropy=torch.tensor([ENTROPY]).double(),
        mask=torch.ones(1, 4), params={"q": 0.5, "c": 1.0},
    )  # fmt: skip
    assert float(loss) == pytest.approx(1.75)


def test_gradient_is_that_of_the_published_loss():
    algorithm = entropy_sft(q=0.4, c=0.7)
    batch = stages(algorithm, ragged_batch(4))
    rows = batch["gradient_T"].nonzero().squeeze(1)
    d_N = -batch["logp_old_T"][rows] - 0.7 * batch["entropy_old_T"][rows]
    kept = rows[d_N.topk(int(0.4 * len(rows))).indices]
    assert_same_push(algorithm, batch, lambda logp_T: -logp_T[kept].mean())


def test_is_sft_where_everything_is_kept():
    batch = stages(sft(), ragged_batch(2))
    rows = batch["gradient_T"].nonzero().squeeze(1)
    assert_same_push(entropy_sft(q=1.0), batch, lambda logp_T: -logp_T[rows].mean())
    with pytest.raises(UserError, match="share must be between"):
        entropy_sft(q=1.5)


def test_learns_answers_from_a_file(tmp_path):
    """The confident errors become rarer and smaller."""
    lab = Lab.make(tmp_path)
    rows = [{"prompt": f"{n}+1:", "completion": f"={n % 2}"} for n in range(8)]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    training = {"steps": 25, "save_every": 0, "rollouts_every": 0}
    raw = lab.raw("entropy_sft(q=0.3)", training=training)
    raw["reward"] = {}
    raw["algorithm"] = {"sampling.num_prompts": 4, "sampling.num_rollouts": 1}
    raw["data"]["validation_size"] = 0
    Runner().whole(raw, tmp_path / "run")
    first, *_, last = [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    assert last["loss"] < first["loss"] / 2
    name = "entropy_control/error_threshold"
    assert last[name] < first[name]
