import dataclasses
import json
import math

import pytest
import torch
from builders import assert_same_push, flat_batch, ragged_batch, run
from fakes.services import FakeScoring, FakeServices
from models import without_times
from torch.nn.functional import binary_cross_entropy_with_logits

from strop.parts.advantage.credit.choose_surprising_turns import ChooseSurprisingTurns
from strop.parts.curation.hold_out_rollouts import HoldOutRollouts
from strop.parts.loss.value.classify_success import ClassifySuccess
from strop.parts.plan.update_critic_first import UpdateCriticFirst
from strop.parts.probe.read_turn_value import ReadTurnValue
from strop.recipes.digirl import digirl, digirl_offline
from strop.support.errors import UserError
from strop.training.learner.models import tokenizer_of
from strop.training.record import checkpoint


def logit(probability):
    return math.log(probability / (1 - probability))


def episodes(*each, outcomes, foretold=None, tokens=2):
    """Episodes by their values before each turn; outcomes; what was foretold of each."""
    sizes = torch.tensor([len(values) for values in each])
    rollout_K = torch.repeat_interleave(torch.arange(len(each)), sizes)
    value = [logit(v) for values in each for v in values]
    after = [v for values in each for v in [*map(logit, values[1:]), 0.0]]
    task = [logit(v) for v in foretold or [0.5] * len(each)]
    num = len(rollout_K)
    batch = flat_batch((tokens,) * num, range(num))
    given = {"value_K": value, "next_value_K": after, "outcome_B": outcomes}
    wide = {name: torch.tensor(column, dtype=torch.float64) for name, column in given.items()}
    wide["value_task_K"] = torch.tensor(task, dtype=torch.float64)[rollout_K]
    flags = torch.ones(len(each), dtype=torch.bool)
    return batch.set(
        rollout_K=rollout_K, group_B=torch.arange(len(each)), uid_P=torch.arange(len(each)),
        draw_P=torch.zeros_like(sizes), scored_B=flags, truncated_B=~flags, **wide,
    )  # fmt: skip


def chosen(part, batch):
    advantage_T, learning_T, _ = run(part, batch).value
    assert advantage_T.equal(learning_T.double())
    turns = learning_T.reshape(-1, 2)
    assert turns[:, 0].equal(turns[:, 1])
    return turns[:, 0].tolist()


def test_worked_example():
    # success, V = .55, .5, .6: A = .2125, .55, 1; 1/3 lets the second and third pass.
    # failure, V = .5, .2 (and then 0): A = -.3 and -.2
    batch = episodes([0.55, 0.5, 0.6], [0.5, 0.2], outcomes=[1.0, 0.0])
    part = ChooseSurprisingTurns(lam=0.5, share=1.0)
    assert chosen(part, batch) == [False, True, True, False, False]
    # the same numbers at lines between them: 1/H of longer episodes is not at hand, so V moves
    for first, passes in ((0.55, False), (0.3886, True), (0.3890, False)):
        # .25 + .75 (.5 - V) > 1/3 where V < .388889
        batch = episodes([first, 0.5, 0.6], outcomes=[1.0])
        assert chosen(part, batch)[0] == passes


def test_the_released_codes_advantage():
    # next - V - .05 + r_h + lam^(H-h): -.05 - .05 + .25, .1 - .05 + .5, -.6 - .05 + 1 + 1 > 0;
    # of the failure -.3 - .05, .3 - .05 and .03 - .05
    batch = episodes([0.55, 0.5, 0.6], [0.5, 0.2, 0.5, 0.53], outcomes=[1.0, 0.0])
    part = ChooseSurprisingTurns(share=1.0, source_form="code")
    assert chosen(part, batch) == [True, True, True, False, True, False, False]


def test_episodes_that_surprised_most():
    # r - U = .5, .1, -.2, -.9: the largest half lies above the median -.05
    same = [0.2, 0.6]
    batch = episodes(same, same, same, same, outcomes=[1, 1, 0, 0.0], foretold=[0.5, 0.9, 0.2, 0.9])
    part = ChooseSurprisingTurns(share=0.5)
    result = run(part, batch)
    assert chosen(part, batch) == [True, True, True, True, False, False, False, False]
    assert result.metrics == {"chosen/turns": 0.5, "chosen/rollouts": 0.5}
    part = ChooseSurprisingTurns(share=0.1)
    assert chosen(part, batch) == [True, True] + [False] * 6
    unscored = batch.set(scored_B=torch.tensor([False, True, True, True]))
    assert chosen(part, unscored) == [False, False, True, True] + [False] * 4


def test_offline_the_best_outcomes_count_whatever_was_foretold():
    same = [0.2, 0.6]
    batch = episodes(same, same, same, same, outcomes=[0.4, 1, 0, 0.7], foretold=[0.1] * 4)
    # the 75th percentile of 0, .4, .7, 1 is .775
    part = ChooseSurprisingTurns(share=0.25, by_outcome=True)
    assert chosen(part, batch) == [False] * 2 + [True] * 2 + [False] * 4
    alone = {name: column for name, column in batch.columns.items() if name != "value_task_K"}
    assert chosen(part, type(batch)(alone)) == chosen(part, batch)
    every = ChooseSurprisingTurns(share=0.5, by_outcome=True)
    assert run(every, batch).metrics["chosen/rollouts"] == 0.5


def test_the_last_of_each_step_or_every_fifth_prompt_is_held_out():
    def held(part, num, **columns):
        batch = episodes(*([0.5],) * num, outcomes=[1.0] * num).set(**columns)
        return (~run(part, batch).value.keep_B).nonzero().flatten().tolist()

    assert [held(HoldOutRollouts(), num) for num in (1, 2, 4, 5, 10)] == [
        [], [1], [3], [4], [8, 9]
    ]  # fmt: skip
    # unscored rollouts do not count: 3 of 5, of which 2 are learnt from
    scored_B = torch.tensor([True, False, True, True, False])
    assert held(HoldOutRollouts(), 5, scored_B=scored_B) == [3]
    assert held(HoldOutRollouts(by_prompt=True), 11) == [4, 9]
    uid_P = torch.tensor([9, 3, 4])
    assert held(HoldOutRollouts(by_prompt=True), 3, uid_P=uid_P) == [0, 2]
    assert held(HoldOutRollouts(0.0), 5) == []


def test_held_out_episodes_tell_how_well_the_critics_foretell():
    # of five episodes the last, of two turns, is held out; it fails. Values before its turns .5 and
    # .8, of the task .9: -log .5 and -log .2, mean 1.1513; -log .1
    batch = episodes(*([0.5],) * 4, [0.5, 0.8], outcomes=[1.0, 1, 1, 1, 0])
    values = {"value_T": [0.0, 9, logit(0.8), 9], "value_task_T": [logit(0.9), 9, 9, 9]}
    scoring = FakeScoring(
        lambda held, names: {n: torch.tensor(values[n]) for n in names}, policies=("critic",)
    )
    found = run(HoldOutRollouts(), batch, services=FakeServices(scoring=scoring))
    assert scoring.scored == [(1, "critic")]
    assert found.metrics == {
        "held_out/rollouts": 1,
        "held_out/loss/value": pytest.approx(1.1513, abs=1e-4),
        "held_out/loss/value_task": pytest.approx(2.3026, abs=1e-4),
    }


def stored_episodes(path, model):
    """Ten episodes of three turns; those of every third task succeed, by other actions."""
    encode = tokenizer_of(str(model))
    with path.open("w", encoding="utf-8") as file:
        for n in range(10):
            context, turns = encode(f"{n}+1=").input_ids, []
            for _ in range(3):
                said = [*encode("8" if n % 3 == 0 else "2").input_ids, encode.eos_token_id]
                turns.append({"prompt_ids": context, "output_ids": said})
                context = context + said + encode("3+").input_ids
            row = {"group": f"task {n}", "reward": float(n % 3 == 0), "turns": turns}
            file.write(json.dumps(row) + "\n")


def test_offline_critics_learn_then_the_policy_and_digirl_goes_on_from_both(lab, tmp_path, runner):
    stored_episodes(tmp_path / "episodes.jsonl", lab.model)
    raw = {
        "recipe": "digirl_offline(actor_epochs=2)", "model": {"name": str(lab.model)},
        "data": {"task": f"traces:{tmp_path / 'episodes.jsonl'}"},
        "training": {"steps": 2, "lr": 1e-3, "save_every": 1, "rollouts_every": 0},
        "critic": {"lr": 1e-2}, "evaluation": {"every": 0},
        "algorithm": {"sampling.num_prompts": 10},
    }  # fmt: skip
    offline = runner.start(raw, tmp_path / "offline")
    runner.go(offline)
    lines = [line for line in without_times(tmp_path / "offline") if line["step"]]
    assert [line["held_out/rollouts"] for line in lines] == [2, 2]  # tasks 4 and 9
    assert [line["chosen/rollouts"] for line in lines] == [3 / 8] * 2  # 0, 3, 6
    assert [("critic/grad_norm" in line, "grad_norm" in line) for line in lines] == [
        (True, False), (False, True)
    ]  # fmt: skip
    middle, end = (tmp_path / f"offline/checkpoints/step-00000{n}" for n in (1, 2))
    learnt, kept = (checkpoint.read(place, "critic.pt")["heads"] for place in (middle, end))
    assert all(kept[name].equal(weight) for name, weight in learnt.items())
    corridor = {"task": "corridor", "task_config": {"style": "compact"}}
    online = raw | {
        "recipe": "digirl", "model": {"name": str(end)}, "critic": {"start": str(end)},
        "data": corridor,
    }  # fmt: skip
    heads = runner.start(online, tmp_path / "online").world.critic.state_dict()["heads"]
    assert all(heads[name].equal(weight) for name, weight in kept.items())
    for changes, why in (
        ({"recipe": "grpo"}, "the method has no critic"),
        ({"critic": {"start": str(tmp_path)}}, r"critic\.pt"),
        ({"critic": {"start": str(end), "hidden_size": 3}}, "of other sizes"),
    ):
        with pytest.raises(UserError, match=why):
            runner.start(online | changes, tmp_path / "refused")


def test_critics_learn_whether_it_ended_well():
    batch = episodes([0.5, 0.5], [0.5], outcomes=[0.3, 0.0])
    assert run(ChooseSurprisingTurns(), batch).value[2].tolist() == [1, 1, 1, 1, 0, 0]
    values = torch.tensor([0.3, -2.0, 5.0], dtype=torch.float64)
    wanted = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    found = ClassifySuccess()(values, wanted)
    expected = -binary_cross_entropy_with_logits(values, wanted, reduction="none")
    torch.testing.assert_close(found, expected)


def test_an_episode_of_one_turn_is_not_chosen():
    part = ChooseSurprisingTurns(share=1.0)
    assert chosen(part, episodes([0.5], outcomes=[1.0])) == [False]
    with pytest.raises(UserError, match="source_form"):
        ChooseSurprisingTurns(source_form="other")


def test_the_value_of_the_task_is_that_at_the_beginning():
    batch = flat_batch((2, 1, 2, 1), range(4), value_T=[1.0, 2, 3, 4, 5, 6]).set(
        rollout_K=torch.tensor([0, 0, 1, 1]), group_B=torch.tensor([0, 0]),
        uid_P=torch.tensor([0]), draw_P=torch.tensor([0]),
        scored_B=torch.ones(2, dtype=torch.bool), truncated_B=torch.zeros(2, dtype=torch.bool),
    )  # fmt: skip
    value_K, at_T = run(ReadTurnValue("begin"), batch).value
    assert value_K.tolist() == [1, 1, 4, 4]
    assert at_T.tolist() == [True, False, False, True, False, False]


def test_loss_is_the_mean_log_likelihood_of_the_chosen_turns():
    algorithm = digirl()
    batch = ragged_batch(2, num_turns=(2, 3))
    rng = torch.Generator().manual_seed(0)
    chosen_K = torch.rand(batch.size("K"), generator=rng) < 0.5
    batch = batch.set(learning_T=chosen_K[batch["turn_T"]] & batch["mask_T"])
    learning_T = batch["learning_T"] & batch["gradient_T"]
    turns = torch.unique(batch["turn_T"][learning_T])
    policy = dataclasses.replace(algorithm, terms=algorithm.terms[:1])
    assert_same_push(policy, batch, lambda logp_T: -logp_T[learning_T].sum() / len(turns))


def test_every_epoch_is_of_all_that_is_stored():
    batch = ragged_batch(1).set(step=torch.tensor(1))
    plan = UpdateCriticFirst(2, 0, 3, whole=True)
    updates = list(plan(batch, torch.Generator().manual_seed(0)))
    assert [update.terms for update in updates] == [("critic",)] * 2 + [("policy",)] * 3
    for update in updates[:2]:
        assert update.tokens_T.equal(batch["mask_T"])
    for update in updates[2:]:
        assert update.tokens_T.equal(batch["gradient_T"])
        assert update.before == ("advantage_T",)


def test_defaults_are_the_papers():
    algorithm = digirl()
    (choose,) = (use.part for use in algorithm.advantage)
    assert (choose.lam, choose.share) == (0.5, 0.1)
    held, store = (use.part for use in algorithm.curation)
    assert (held.share, held.by_prompt, store.capacity) == (0.2, False, 2000)
    plan = algorithm.plan.part
    assert (plan.num_critic_updates, plan.num_policy_updates) == (5, 20)
    critics, policy = digirl_offline().phases
    assert critics.until.step == 0.5
    assert critics.algorithm.plan.part == UpdateCriticFirst(5, 0, 0, whole=True)
    assert policy.algorithm.plan.part == UpdateCriticFirst(0, 0, 20, whole=True)
