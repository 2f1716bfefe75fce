import json

import pytest
import torch
from builders import assert_same_push, flat_batch, members_of, ragged_batch, stages
from models import Lab
from runs import Runner

from strop import functional
from strop.method.check import check
from strop.recipes.hpt import hpt
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics


@pytest.mark.parametrize(
    ("right", "expected"),
    [(1, [0.875] + [-0.125] * 7), (3, [0.625] * 3 + [-0.375] * 5), (8, [0.0] * 8)],
)
def test_worked_example(right, expected):
    rewards = [1.0] * right + [0.0] * (8 - right)
    batch = stages(hpt(), flat_batch((1,) * 8, reward_B=rewards))
    assert batch["advantage_B"].tolist() == pytest.approx(expected)


def test_composes_with_and_without_its_terms():
    for algorithm, names in (
        (hpt(), ["policy", "sft", "entropy"]), (hpt(entropy_coef=0.0), ["policy", "sft"]),
    ):  # fmt: skip
        check(algorithm)
        assert [term.name for term in algorithm.terms] == names


def _mixed():
    """A ragged batch whose second and fifth rollout are demonstrations."""
    batch = stages(hpt(), ragged_batch(1, groups=(3, 1, 4, 3)))
    demo_T = torch.isin(batch["rollout_T"], torch.tensor([3, 5])) & batch["mask_T"]
    return batch.set(origin_T=torch.where(demo_T, 2, batch["origin_T"])), demo_T


def test_gradient_is_that_of_the_published_loss():
    batch, demo_T = _mixed()
    advantage = {}
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        mean = sum(float(batch["reward_B"][i]) for i in members) / len(members)
        advantage |= {i: float(batch["reward_B"][i]) - mean for i in members}
    all_rows = batch["gradient_T"].nonzero().squeeze(1).tolist()
    demo = [t for t in all_rows if demo_T[t]]
    own = [t for t in all_rows if not demo_T[t]]
    assert len(demo) > 2
    values = [advantage[int(batch["rollout_T"][t])] for t in own]
    advantage_N = torch.tensor(values, dtype=torch.float64)

    def loss_of(logp_T, entropy_T):
        ratio_N = (logp_T[own] - batch["logp_old_T"][own]).exp()
        rl = -(advantage_N * ratio_N).sum() / 50
        return 0.3 * -logp_T[demo].mean() + rl - 0.02 * entropy_T[all_rows].mean()

    algorithm = hpt(sft_coef=0.3, entropy_coef=0.02, L_max=50)
    assert_same_push(algorithm, batch, loss_of, "logp_T", "entropy_T")


def test_padded_call():
    logp = torch.tensor([[-1.0, -2.0], [-3.0, -4.0], [-0.5, -0.5]]).double()
    given = {
        "logp": logp, "logp_old": logp - 0.1,
        "advantages": torch.tensor([2.0, 0.0, -1.0]).double(),
        "mask": torch.tensor([[1, 1], [1, 1], [1, 0]]),
        "params": {"L_max": 10, "entropy_coef": 0.0},
    }  # fmt: skip
    for demo in (torch.tensor([0, 1, 0]), torch.tensor([[0, 0], [1, 1], [0, 0]])):
        for name in ("hpt", "hpt_loss"):
            loss, metrics = functional.policy_loss(name, demo_mask=demo, **given)
            ratio = 1.1051709
            assert float(loss) == pytest.approx(3.5 - ratio * (2 + 2 - 1) / 10)
            assert metrics["loss/sft"] == pytest.approx(3.5)
    with pytest.raises(UserError, match="entropy"):
        functional.policy_loss("hpt", demo_mask=demo, **{**given, "params": {}})


def test_the_policys_sum_is_divided_by_the_longest_answer_that_is_allowed():
    logp = torch.zeros(2, 16).double()
    given = {"logp": logp, "logp_old": logp, "advantages": torch.tensor([2.0, -1.0]).double(),
             "mask": torch.arange(16)[None] < torch.tensor([[4], [2]])}  # fmt: skip
    for params, length in (({}, 16), ({"L_max": 8192}, 8192)):
        params = {"entropy_coef": 0.0, **params}
        found = functional.token_weights("hpt", demo_mask=torch.zeros(2), params=params, **given)
        assert found[:, 0].tolist() == pytest.approx([2 / length, -1 / length])


ONE_RIGHT = '''
def solved(prompts, completions, answer, **columns):
    """1 where a prompt of an even number was answered at all; demonstrations are right."""
    return [float(int(a) % 2 == 0 or c == "=" + a) for a, c in zip(answer, completions)]
'''


def _lab(folder, rows):
    lab = Lab.make(folder, layers=2)
    lab.rewards.write_text(ONE_RIGHT, encoding="utf-8")
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return lab


def _rows(num=8):
    return [{"prompt": f"{n}+{n}:", "answer": str(n), "completion": f"={n}"} for n in range(num)]


def _start(runner, lab, folder, **options):
    raw = lab.raw("hpt", reward="solved", data={"validation_size": 0})
    raw["algorithm"] |= {"sampling.num_prompts": 8, **options}
    return runner.start(raw, folder)


def test_failed_prompts_are_imitated_in_training(tmp_path):
    lab, runner = _lab(tmp_path, _rows()), Runner()
    run = _start(runner, lab, tmp_path / "run")
    seen = [metrics for metrics in runner.go(run).seen if "num_rollouts" in metrics]
    assert len(seen) == 3
    for metrics in seen:
        assert metrics["demonstrations/prompts"] == 4
        assert metrics["data/dropped/failed_prompt"] == 16
        assert metrics["num_rollouts"] == 16 + 4
        assert metrics["reward"] == 1  # what is left was right, demonstrations too
        assert all(value == value for value in metrics.values())
    losses = [line["loss/sft"] for line in read_metrics(tmp_path / "run") if line["step"]]
    assert losses[-1] < losses[0] - 0.1


def test_where_demonstrations_come_from(tmp_path):
    rows = _rows()
    for row in rows[:4]:
        row["completion"] = None
    lab, runner = _lab(tmp_path, rows), Runner()
    run = _start(runner, lab, tmp_path / "some")
    seen = runner.go(run).seen
    assert seen[-1]["demonstrations/missing"] == 2
    assert seen[-1]["demonstrations/prompts"] == 2
    lab = _lab(tmp_path, [{"prompt": f"{n}:", "answer": str(n)} for n in range(8)])
    with pytest.raises(UserError, match="no column completion"):
        runner.go(_start(runner, lab, tmp_path / "none"))
    lab = _lab(tmp_path, [{**row, "completion": "123456"} for row in _rows()])
    with pytest.raises(UserError, match=r"7 tokens long, the limit is 6: raise rollout.max_tok"):
        runner.go(_start(runner, lab, tmp_path / "long"))


def test_everything_may_fail(tmp_path):
    odd = [{"prompt": f"{n}:", "answer": str(n), "completion": f"={n}"} for n in (1, 3, 5, 7)]
    lab, runner = _lab(tmp_path, odd), Runner()
    seen = runner.go(_start(runner, lab, tmp_path / "run", **{"sampling.num_prompts": 4})).seen
    assert seen[-1]["num_rollouts"] == 4
    lab = _lab(tmp_path, _rows())
    run = _start(runner, lab, tmp_path / "never", **{"curation.gate": -1})
    assert runner.go(run).seen[-1]["num_rollouts"] == 32
