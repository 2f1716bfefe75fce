import json

import pytest
import torch
from builders import flat_batch, pushed, ragged_batch, rows_learning, run, stages
from models import Lab
from runs import Runner

from strop.method.check import check
from strop.parts.probe.pair_best_with_worst import PairBestWithWorst
from strop.recipes.self_improving_pretraining import self_improving_pretraining
from strop.recipes.sft import sft
from strop.training.step import train_step


def test_worked_example():
    """Four candidates A > B > C > D win 1, 2/3, 1/3 and 0 of their comparisons."""
    batch = flat_batch((1,) * 4, reward_B=[2 / 3, 1.0, 0.0, 1 / 3])
    assert run(PairBestWithWorst(), batch).value.tolist() == [0, 1, -1, 0]


def test_ties_unscored_and_single_candidates():
    batch = flat_batch(
        (1,) * 9, (0, 0, 0, 1, 1, 2, 3, 3, 3),
        reward_B=[1.0, 1.0, 0.0, 0.5, 0.5, 1.0, 0.0, 9.0, 1.0],
        scored_B=[True, True, True, True, True, True, True, False, True],
    )  # fmt: skip
    assert run(PairBestWithWorst(), batch).value.tolist() == [0, 1, -1, 0, 0, 0, -1, 0, 1]
    alone = run(PairBestWithWorst(ties_count=True), batch).value.tolist()
    assert alone == [0, 1, -1, -1, 1, 1, -1, 0, 1]


def test_loss_is_that_of_the_pair_and_nothing_else_learns():
    batch = ragged_batch(5, groups=(3, 1, 4))
    chosen = run(PairBestWithWorst(), batch).value
    algorithm = self_improving_pretraining(beta=0.3)
    check(algorithm)
    batch = stages(algorithm, batch.set(preferred_B=chosen))
    assert {int(batch["rollout_T"][t]) for t in rows_learning(batch)} == {
        i for i in range(8) if chosen[i] != 0
    }
    lead = (batch["logp_T"] - batch["logp_ref_T"]).nan_to_num()

    def lead_of(sign, group):
        rows_T = (chosen == sign)[batch["rollout_T"]] & (batch["group_T"] == group)
        return float(lead[rows_T & batch["mask_T"]].sum())

    z = torch.tensor([0.3 * (lead_of(1, g) - lead_of(-1, g)) for g in (0, 2)])
    loss, found, metrics = pushed(algorithm, batch)
    assert loss == pytest.approx(float(-torch.nn.functional.logsigmoid(z).mean()), rel=1e-6)
    assert metrics["preference/accuracy"] == pytest.approx(float((z > 0).float().mean()))
    learning = torch.isin(batch["rollout_T"], (chosen != 0).nonzero()) & batch["mask_T"]
    assert found["logp_T"][learning].all()
    assert not found["logp_T"][~learning].any()


def test_likelihood_of_the_only_candidate_is_pretraining():
    """With the data's own continuation alone, as sft has it."""
    algorithm = self_improving_pretraining(objective="nll")
    check(algorithm)
    batch = ragged_batch(6, groups=(1, 1, 1), unscored=())
    chosen = run(algorithm.probes[0].part, batch).value
    assert chosen.tolist() == [1, 1, 1]
    batch = stages(algorithm, batch.set(preferred_B=chosen))
    loss, found, _ = pushed(algorithm, batch)
    expected, plain, _ = pushed(sft(), stages(sft(), batch))
    assert loss == pytest.approx(expected)
    torch.testing.assert_close(found["logp_T"], plain["logp_T"])


JUDGE = '''
def against_the_suffix(completions, **columns):
    """A judge with the text's own continuation as its pivot: more digits win, equals draw."""
    digits = lambda text: sum(c.isdigit() for c in text)
    return [(1 + (digits(a) > digits(b)) - (digits(a) < digits(b))) / 2
            for a, b in zip(completions, columns["completion"])]
'''


@pytest.mark.parametrize("objective", ["dpo", "nll"])
def test_trains_on_pairs_of_its_own_and_the_texts_continuation(objective, tmp_path):
    lab = Lab.make(tmp_path)
    lab.rewards.write_text(JUDGE, encoding="utf-8")
    rows = [{"prompt": f"{n}+1:", "completion": "=1234"} for n in range(12)]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    raw = lab.raw(
        f"self_improving_pretraining(objective={objective!r})", reward="against_the_suffix",
        training={"steps": 12, "save_every": 0}, data={"validation_size": 0},
    )  # fmt: skip
    raw["algorithm"]["sampling.num_prompts"] = 6
    seen = [m for m in Runner().go(Runner().start(raw, tmp_path / "run")).seen if "loss" in m]
    assert all(m["num_rollouts"] == 6 * 5 for m in seen)
    first, last = (sum(m["reward"] for m in part) / 4 for part in (seen[:4], seen[-4:]))
    assert last > first + 0.1, (first, last)


PAIRWISE = '''
def better(completions, **columns):
    """A judge of pairs: the text with the larger digit wins."""
    most = lambda text: max([int(c) for c in text if c.isdigit()], default=0)
    opponents = columns.get("opponent") or [None] * len(completions)
    return [0.0 if o is None else float(most(c) > most(o))
            for c, o in zip(completions, opponents, strict=True)]
'''


def test_pairs_of_all_candidates_are_compared_in_a_run(tmp_path):
    lab = Lab.make(tmp_path)
    lab.rewards.write_text(PAIRWISE, encoding="utf-8")
    rows = [{"prompt": f"{n}+1:", "completion": "=5", "rewrite": "=9"} for n in range(12)]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    raw = lab.raw(
        "self_improving_pretraining(wins=True, rewrite='rewrite')", reward="better",
        training={"steps": 1, "save_every": 0}, data={"validation_size": 0},
    )  # fmt: skip
    run = Runner().start(raw, tmp_path / "run")
    try:
        stepped = train_step(run.world, run.algorithm, {}, 1)
    finally:
        run.close()
    line, batch = stepped.metrics, stepped.batch
    assert line["num_rollouts"] == 2 * (4 + 2)
    assert line["pairs/compared"] == 15  # of six candidates
    uids, reward = batch["rollout_uid_B"], batch["reward_B"]
    rewritten = uids < -(2**40)
    assert (reward[rewritten] >= 0.8).all()
    assert (batch["preferred_B"] == 1).sum() == 2
    assert reward[batch["preferred_B"] == 1].min() >= reward.max() - 0.2
