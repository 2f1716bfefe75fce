import itertools

import pyarrow.parquet as pq
import pytest
import torch
from builders import flat_batch, pushed, ragged_batch, stages
from fakes.engine import TableEngine
from fakes.services import over_table, rolled_out
from models import Lab, without_times
from runs import Runner

from strop import functional
from strop.method import notation
from strop.method.check import check
from strop.method.part import Draw
from strop.parts.rollout.extend_answers_by_window import ExtendAnswersByWindow
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.sampling.fill_free_places import FillFreePlaces
from strop.recipes.gae import gae
from strop.recipes.t_ppo_egae import t_ppo_egae
from strop.support.errors import UserError
from strop.support.exits import Exit

# Prompts are one token; 0 ends an answer, 4 and 5 go on.
A, B, C = 1, 2, 3
PROMPTS = {uid: (uid,) for uid in (A, B, C)}
LONGEST = 8


def tails(tokens):
    """a has 2 tokens, b 5, c as many as may be."""
    stops = float(len(tokens) - 1 == {A: 1, B: 4, C: -1}[tokens[0]])
    return [stops, 0, 0, 0, (1 - stops) / 2, (1 - stops) / 2]


class Steps:
    """Step after step of one strategy on one engine."""

    def __init__(self, part):
        self.part, self.engine = part, TableEngine(tails)
        self.services = over_table(self.engine, PROMPTS, answer_tokens=LONGEST)
        self.state = part.init() if hasattr(part, "init") else None

    def __call__(self, *draws, seed=0):
        rng = torch.Generator().manual_seed(seed)
        found = rolled_out(self.part, draws, self.engine, self.services, rng, self.state)
        self.state = found.state
        assert self.engine.rows == {}
        return found

    def next(self, *draws, seed=0):
        """A step that comes after another one, with other weights."""
        self.state = self.part.observe(self.state)
        self.engine.load_weights(None, self.engine.version + 1)
        return self(*draws, seed=seed)


def tokens(batch, column, row):
    return batch[column][batch["mask_T"] & (batch["rollout_T"] == row)].tolist()


def test_worked_example_of_a_window():
    values = torch.tensor([[0.5, 0.6, 0.7]] * 2).double()
    given = {"values": values, "token_rewards": torch.zeros_like(values), "mask": values > 0}
    given |= {"groups": torch.zeros(2, dtype=torch.int64), "pending": torch.tensor([True, False])}
    found = functional.advantages("t_ppo_egae", **given)
    assert found[0].tolist() == pytest.approx([0.195, 0.1, 0.0])
    assert found[1].tolist() == pytest.approx([-0.43675, -0.565, -0.7])


def test_a_pool_over_three_steps():
    """Windows of 3: b (5 tokens) ends in its second step, c (8, the most) in its third."""
    steps = Steps(ExtendAnswersByWindow(window=3))
    first = steps(Draw(A, 1), Draw(B, 1), Draw(C, 1))
    assert first.batch["length_B"].tolist() == [2, 3, 3]
    assert first.batch["pending_B"].tolist() == [False, True, True]
    assert first.batch["exit_B"].tolist() == [Exit.DONE, Exit.PENDING, Exit.PENDING]
    assert bool(first.batch["window_T"][first.batch["mask_T"]].all())
    assert first.metrics["pool/answers"] == 3
    assert first.metrics["pool/age_max"] == 0

    second = steps.next(Draw(A, 1), seed=1)
    assert second.batch["uid_P"].tolist() == [B, C, A]
    assert second.batch["length_B"].tolist() == [5, 6, 2]
    assert second.batch["pending_B"].tolist() == [False, True, False]
    assert tokens(second.batch, "window_T", 0) == [False] * 3 + [True] * 2
    assert tokens(second.batch, "version_T", 0) == [0] * 3 + [1] * 2
    for column in ("id_T", "logp_behavior_T"):
        assert tokens(second.batch, column, 0)[:3] == tokens(first.batch, column, 1)
    assert second.batch["rollout_uid_B"][:2].equal(first.batch["rollout_uid_B"][1:])
    assert second.metrics["pool/age_mean"] == pytest.approx(2 / 3)
    assert second.metrics["pool/window_share"] == pytest.approx(7 / 13)

    third = steps.next(seed=2)
    assert third.batch["uid_P"].tolist() == [C]
    assert third.batch["truncated_B"].tolist() == [True]  # at the most tokens it is over
    assert third.batch["exit_B"].tolist() == [Exit.TOKEN_LIMIT]
    assert tokens(third.batch, "window_T", 0) == [False] * 6 + [True] * 2
    assert steps.state["groups"] == ()


def test_windows_come_to_what_one_request_draws():
    whole = Steps(SampleIndependently())(Draw(B, 3), Draw(C, 2), seed=4).batch
    steps = Steps(ExtendAnswersByWindow(window=2))
    steps(Draw(B, 3), Draw(C, 2), seed=4)
    answers = {}
    for _ in range(3):
        batch = steps.next().batch
        for row, uid in enumerate(batch["rollout_uid_B"].tolist()):
            answers[uid] = tokens(batch, "id_T", row)
    assert answers == {
        uid: tokens(whole, "id_T", row) for row, uid in enumerate(whole["rollout_uid_B"].tolist())
    }


@pytest.mark.parametrize("window", [0, LONGEST])
def test_a_window_for_all_of_an_answer_samples_independently(window):
    draws = (Draw(A, 2), Draw(B, 2), Draw(C, 1))
    ours = Steps(ExtendAnswersByWindow(window=window))(*draws, seed=3)
    theirs = Steps(SampleIndependently())(*draws, seed=3).batch
    for name, column in theirs.columns.items():
        assert ours.batch[name].equal(column), name
    assert not ours.batch["pending_B"].any()
    assert ours.batch["window_T"].equal(ours.batch["mask_T"])
    assert ours.metrics["pool/pending"] == 0


def test_what_ends_leaves_its_group():
    """Of b's three answers none is asked for again once it has ended."""
    steps = Steps(ExtendAnswersByWindow(window=2))
    assert steps(Draw(A, 2), Draw(C, 2)).batch.size("B") == 4
    assert steps.next().batch["group_B"].tolist() == [0, 0]


def test_what_a_curation_asks_for_does_not_extend_the_pool_again():
    steps = Steps(ExtendAnswersByWindow(window=3))
    steps(Draw(C, 1))
    again = steps(Draw(B, 1), seed=1)
    assert again.batch["uid_P"].tolist() == [B]
    assert steps.next(seed=2).batch["length_B"].tolist() == [6, 5]


def test_places_of_what_is_pending_are_not_free():
    part, draws = FillFreePlaces(), (Draw(A, 1), Draw(B, 1), Draw(C, 1))
    assert part(draws, part.init()).value == draws
    state = part.observe(torch.tensor([True, False, True, True]), torch.tensor([0, 0, 0, 1]), {})
    assert part(draws, state).value == draws[:1]
    assert part(draws, state, num_wanted=3).value == draws


def test_the_policy_learns_from_the_window_and_the_critic_from_what_has_ended():
    """Two rollouts of three tokens, the last two of each of this step; the second goes on."""
    values, window = [0.3, 0.3, 0.2, 0.5, 0.3, 0.4], [False, True, True] * 2
    batch = flat_batch(
        [3, 3], value_T=values, reward_B=[1.0, 0.0], scored_B=[True, False],
        pending_B=[False, True], window_T=window,
    )  # fmt: skip
    algorithm = t_ppo_egae(lam=0.5)
    batch = stages(algorithm, batch)
    assert batch["return_T"][:3].tolist() == pytest.approx([1, 1, 1])
    # delta: 0, -0.1, 0.8;  -0.2, 0.1, 0
    assert batch["advantage_T"].tolist() == pytest.approx([0.15, 0.3, 0.8, -0.15, 0.1, 0])
    batch = batch.set(logp_T=batch["value_T"] - 1, logp_old_T=batch["value_T"] - 1,
                      value_old_T=batch["value_T"])  # fmt: skip
    _, found, _ = pushed(algorithm, batch)
    # d/dV of the mean over three tokens of 0.5 (V - 1)^2; the policy's mean is over four
    assert found["value_T"].tolist() == pytest.approx([-0.7 / 3, -0.7 / 3, -0.8 / 3, 0, 0, 0])
    assert found["logp_T"].tolist() == pytest.approx([0, -0.075, -0.2, 0, -0.025, 0])


def test_advantages_of_whole_answers_are_those_of_gae():
    batch = ragged_batch(4)
    batch = batch.set(pending_B=torch.zeros_like(batch["truncated_B"]), window_T=batch["mask_T"])
    found = stages(t_ppo_egae(lam=0.8), batch)
    plain = gae(lam=0.8)
    credit = stages(type(plain)(**{**vars(plain), "advantage": plain.advantage[:1]}), batch)
    assert found["advantage_T"].equal(credit["advantage_T"])


def test_a_run_with_windows_for_whole_answers_is_ppo_with_gae(tmp_path):
    """The numbers of the parent without whitening, bit for bit."""
    lab, lines = Lab.make(tmp_path), []
    for recipe in ("gae", "t_ppo_egae(window=0, lam=1)", "t_ppo_egae(window=6, lam=1)"):
        raw = lab.raw(recipe, "even")
        if recipe == "gae":
            raw["stages"] = {"advantage": "estimate_generalised_advantage"}
        Runner().whole(raw, tmp_path / recipe)
        lines.append(without_times(tmp_path / recipe))
    assert len(lines[0][0]) > 20
    for plain, *others in zip(*lines, strict=True):
        for line in others:
            assert {name: line[name] for name in plain} == plain
            assert line["pool/pending"] == 0


def test_a_run_that_is_killed_goes_on_with_its_pool(tmp_path):
    """Answers of up to six tokens in windows of two; what is pending is not given to the reward."""
    raw = Lab.make(tmp_path, layers=2).raw("t_ppo_egae(window=2)", "even", training={"steps": 6})
    raw["algorithm"] |= {"sampling.num_prompts": 6, "sampling.num_rollouts": 1}
    Runner().whole(raw, tmp_path / "whole")
    runner = Runner()
    raw["training"] |= {"steps": 3}
    runner.whole(raw, tmp_path / "parts")
    runner.go(runner.resume(tmp_path / "parts", training={"steps": 6}))
    lines = without_times(tmp_path / "whole")
    assert without_times(tmp_path / "parts") == lines
    assert {line["pool/answers"] for line in lines} == {6.0}
    assert all(line["pool/pending"] > 0 for line in lines[2:4])  # the checkpoint's pool too
    for line, after in itertools.pairwise(lines):
        assert after["pool/new_prompts"] == 6 - line["pool/pending"]
    assert max(line["pool/age_max"] for line in lines) == 2
    assert min(line["pool/window_share"] for line in lines) < 1
    assert lines[2]["exit/pending"] == lines[2]["pool/pending"] / 6
    assert {line["rewards/frac_unscored"] for line in lines} == {0.0}
    rows = [row for file in sorted((tmp_path / "whole").glob("rollouts/**/*.parquet"))
            for row in pq.read_table(file).to_pylist()]  # fmt: skip
    assert {row["scored"] for row in rows if row["exit"] == "pending"} == {False}
    assert {row["scored"] for row in rows if row["exit"] != "pending"} == {True}


def test_composes():
    check(t_ppo_egae(beta=0.1, gamma=0.9))
    with pytest.raises(UserError, match="window"):
        check(notation.recipe("t_ppo_egae(window=-1)"))
