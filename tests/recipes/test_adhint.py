import json

import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeGrading, FakeSampling, FakeServices, FakeTexts, rolled_out
from models import Lab
from runs import Runner

from strop import functional
from strop.engines.asynchronous import asynchronous
from strop.method.part import Draw
from strop.method.services import Graded
from strop.parts.advantage.scale.weigh_by_help import WeighByHelp
from strop.parts.advantage.weight.temper_hint_tokens import TemperHintTokens
from strop.parts.rollout.sample_with_hints import SampleWithHints
from strop.recipes.adhint import adhint
from strop.recipes.grpo import grpo
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics

# Token 0 ends; 1 is usually followed by 2, 2 by 1, each sometimes by the end.
CHAIN = by_last_token({0: (1, 0, 0), 1: (0.3, 0.1, 0.6), 2: (0.2, 0.7, 0.1)})


class Grading(FakeGrading):
    """Prompt 9 is always solved, the others never."""

    def grade(self, batch):
        self.graded.append(batch.size("B"))
        solved_B = (batch["uid_P"][batch["group_B"]] == 9).float()
        return Graded(solved_B[:, None], solved_B, solved_B > -1, {}, batch["group_B"] * 0)


class GradingSome(Grading):
    """The first answer to every prompt has no score."""

    def grade(self, batch):
        graded, group_B = super().grade(batch), batch["group_B"]
        first_B = torch.cat([torch.tensor([True]), group_B[1:] != group_B[:-1]])
        outcome_B = torch.where(first_B, 0, graded.outcome_B)
        return graded._replace(outcome_B=outcome_B, scored_B=~first_B)


PROMPTS = {5: (1,), 7: (2, 2), 9: (2, 2)}
SOLUTION = (1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 0)  # of all prompts but 7
TEXTS = FakeTexts(PROMPTS, answers={(uid, "completion"): SOLUTION for uid in (5, 9)})
DRAWS = (Draw(5, 4), Draw(9, 3), Draw(7, 2))


def sampled(part, answer_tokens=12, grading=Grading):
    services = FakeServices(TEXTS, grading(), FakeSampling(answer_tokens=answer_tokens))
    batch, state, *_ = rolled_out(
        part, DRAWS, TableEngine(CHAIN), services, torch.Generator().manual_seed(3)
    )
    assert state is None
    return batch, services.grading


def test_shares_of_the_worked_example():
    rng = torch.Generator().manual_seed(0)
    difficulty = torch.tensor([0.0, 0.5, 1.0])
    shares = SampleWithHints().shares(difficulty, rng)
    assert shares.tolist() == pytest.approx([0.1, 0.5, 0.9])
    noisy = SampleWithHints(noise=5.0).shares(torch.full((400,), 0.5), rng)
    assert 0 <= float(noisy.min()) < 0.01
    assert 0.99 < float(noisy.max()) <= 1


def test_hints_follow_the_prompt_and_are_marked():
    batch, grading = sampled(SampleWithHints())
    assert grading.graded == [2 + 2 + 1]  # the plain ones
    assert batch["group_B"].tolist() == [0] * 4 + [1] * 3 + [2] * 2
    assert batch["stage_B"].tolist() == [0, 0, 1, 1, 0, 0, 1, 0, 1]
    hint_T = batch["origin_T"] == 3
    per_rollout = torch.zeros(9).index_add(0, batch["rollout_T"], hint_T.float()).tolist()
    # never solved: 0.9 of 10 tokens; always solved: 0.1; without a demonstration: none
    assert per_rollout == [0, 0, 9, 9, 0, 0, 1, 0, 0]
    for i, tokens in ((2, (1, 1, 2, 1, 2, 1, 2, 1, 2, 1)), (6, (2, 2, 1))):
        ids = batch["id_T"][batch["rollout_T"] == i].tolist()
        assert tuple(ids[: len(tokens)]) == tokens
    assert batch["mask_T"][hint_T].all()
    assert (batch["version_T"][hint_T] == -1).all()
    for name in ("logp_behavior_T", "logp_sampler_T", "entropy_behavior_T"):
        assert batch[name].isnan().equal(hint_T)
    own_T = batch["mask_T"] & ~hint_T
    assert (batch["origin_T"][own_T] == 0).all()
    assert (batch["logp_behavior_T"][own_T] < 0).any()
    assert int(batch["length_B"].max()) <= 12  # hint and answer share the limit
    assert len(set(batch["rollout_uid_B"].tolist())) == 9


def test_answers_without_a_score_do_not_make_a_prompt_harder():
    whole, some = sampled(SampleWithHints())[0], sampled(SampleWithHints(), grading=GradingSome)[0]
    assert whole["id_T"].equal(some["id_T"])
    assert whole["origin_T"].equal(some["origin_T"])


@pytest.mark.parametrize("limit", [12, 9])
def test_hint_and_answer_share_the_limit_and_the_last_token_is_not_told(limit):
    batch, _ = sampled(SampleWithHints(ratios=(0.1, 1.0)), limit)
    hints = {2: (9, (1,)), 3: (9, (1,)), 6: (1, (2, 2)), 8: (0, (2, 2))}  # all of 10 but the last
    for row, (size, prompt) in hints.items():
        begin = (*prompt, *SOLUTION[:size])
        # a token at least, also where the hint takes all of the limit
        seed, left = int(batch["rollout_uid_B"][row]), max(limit - size, 1)
        engine = asynchronous(TableEngine(CHAIN))
        (told,) = engine.sample([FakeSampling().request(begin, left, seed)])
        assert batch["id_T"][batch["rollout_T"] == row].tolist() == list(told.sequence)


def test_without_hinted_rollouts_it_is_plain_sampling():
    batch, _ = sampled(SampleWithHints(hinted=0.0))
    assert not (batch["origin_T"] == 3).any()
    assert batch["stage_B"].tolist() == [0] * 9
    everything, grading = sampled(SampleWithHints(hinted=1.0))
    assert grading.graded == []  # nothing plain: taken as never solved
    assert everything["stage_B"].tolist() == [1] * 9


def test_bad_rollouts_do_not_unlearn_their_hint():
    hint = torch.tensor([[True, True, False, False]] * 2)
    mask = torch.ones(2, 4, dtype=torch.bool)
    batch = flat_batch(
        (4, 4), advantage_T=[-0.8] * 4 + [0.8] * 4, entropy_old_T=[0.2, 0.4, 0.3, 0.5] * 2,
        origin_T=torch.where(hint, 3, 0).flatten(),
    )  # fmt: skip
    found = run(TemperHintTokens(), batch).value.tolist()
    expected = [0, 0, -0.8, -0.8, 0.8 * 0.5, 0.8, 0.8, 0.8]
    assert found == pytest.approx(expected)
    plain = run(TemperHintTokens(by_entropy=False, never_unlearn=False), batch).value
    assert plain.equal(batch["advantage_T"])
    rewards, groups = torch.tensor([0.0, 1.0]), torch.tensor([0, 0])
    through = functional.advantages(
        "adhint", rewards=rewards, groups=groups, mask=mask, hint_mask=hint,
        entropy=batch["entropy_old_T"].reshape(2, 4).float(), stage=torch.tensor([1, 1]),
    )  # fmt: skip
    assert (through == 0).tolist() == [[True, True, False, False], [False] * 4]


def test_hints_are_not_tempered_where_there_is_nothing_to_compare_with():
    # a rollout that is all hint; one without any uncertainty
    batch = flat_batch((2, 2), advantage_T=[0.8] * 4, entropy_old_T=[0.2, 0.4, 0.0, 0.0],
                       origin_T=[3, 3, 3, 0])  # fmt: skip
    assert run(TemperHintTokens(), batch).value.tolist() == [0.8] * 4


def test_help_decides_what_a_result_means():
    batch = flat_batch(
        (1,) * 8, groups=(0,) * 4 + (1,) * 4, stage_B=[0, 0, 1, 1, 0, 0, 0, 0],
        advantage_B=[1.0, -1, 1, -1, 1, -1, 1, -1], outcome_B=[1.0, 0, 1, 0, 1, 0, 1, 0],
    )  # fmt: skip
    found = run(WeighByHelp(), batch).value.tolist()
    assert found == [1.5, -1, 1, -1.5, 1, -1, 1, -1]
    assert run(WeighByHelp(strength=0.0), batch).value.equal(batch["advantage_B"])


def test_reduces_to_grpo():
    batch = ragged_batch(4, groups=(3, 4))
    batch = batch.set(stage_B=torch.zeros(7, dtype=torch.int64))
    ours, theirs = stages(adhint(), batch), stages(grpo(), batch)
    torch.testing.assert_close(ours["advantage_T"].nan_to_num(), theirs["advantage_T"].nan_to_num())
    assert adhint().terms == grpo().terms


def test_a_run_learns_from_hints(tmp_path):
    lab = Lab.make(tmp_path / "lab")
    rows = [{"prompt": f"{n}+1:", "completion": f"={n}*12"} for n in range(8)]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    training = {"steps": 2, "save_every": 0, "rollouts_every": 0}
    seen, runner = [], Runner()
    run = runner.start(lab.raw("adhint", reward="even", training=training), tmp_path / "run")
    runner.go(run, lambda now: seen.append(now.done))
    assert seen == [1, 2]
    assert all(line["grad_norm"] >= 0 for line in read_metrics(tmp_path / "run")[1:])


@pytest.mark.parametrize("ratios", [(0.1,), (0.1, 1.2), (-0.1, 0.5)])
def test_ratios_are_two_shares(ratios):
    with pytest.raises(UserError, match="two shares"):
        SampleWithHints(ratios=ratios)


def test_what_hints_are_and_do_is_logged():
    outcomes = [1.0, 0, 1, 1, 1, 0, 1, 0]
    batch = flat_batch(
        (1,) * 8, groups=(0,) * 4 + (1,) * 4, stage_B=[0, 0, 1, 1, 0, 0, 0, 0],
        advantage_B=[1.0, -1, 1, -1, 1, -1, 1, -1], outcome_B=outcomes,
    )  # fmt: skip
    assert run(WeighByHelp(), batch).metrics == {"hints/help": 0.5}  # 1 with, 1/2 without
    hinted = flat_batch((4,), advantage_T=[0.8] * 4, entropy_old_T=[0.2, 0.4, 0.3, 0.5],
                        origin_T=[3, 3, 0, 0])  # fmt: skip
    assert run(TemperHintTokens(), hinted).metrics == {"hints/token_factor": pytest.approx(0.75)}
    services = FakeServices(TEXTS, Grading(), FakeSampling(answer_tokens=12))
    rolled = rolled_out(
        SampleWithHints(), DRAWS, TableEngine(CHAIN), services, torch.Generator().manual_seed(3)
    )
    # prompts 5 and 7 are never solved, 9 always
    assert rolled.metrics == {"hints/share": pytest.approx((0.9 + 0.1 + 0.9) / 3)}
