import pytest
import torch
from builders import run
from fakes.services import FakeGrading, FakeServices, FakeTexts
from ragged import ragged_batch

from strop.parts.curation._demonstrations import demonstration_rows
from strop.parts.curation.replace_failed_with_demonstrations import ReplaceFailedWithDemonstrations
from strop.support.errors import UserError

PROMPTS = {31: (7, 8), 32: (9,), 33: (6,), 34: (5,)}
# prompt 33 has no demonstration
ANSWERS = {(31, "completion"): (3, 4, 1), (32, "completion"): (2, 1), (34, "completion"): (4, 1),
           (31, "rewrite"): (2, 2, 1)}  # fmt: skip


def curated(outcome, scored=None, **fields):
    """Two rollouts each of prompts 31 to 34; the rows to add are graded 0.5 and counted."""
    batch = ragged_batch(1, (2, 2, 2, 2))
    batch = batch.take(torch.argsort(batch["group_B"], stable=True))
    batch = batch.set(
        uid_P=torch.tensor([31, 32, 33, 34]), outcome_B=torch.tensor(outcome).double(),
        scored_B=torch.tensor(scored or [True] * 8), reward_BM=torch.zeros(8, 1).double(),
    )  # fmt: skip
    grading = FakeGrading(lambda ids: 0.5)
    services = FakeServices(FakeTexts(PROMPTS, answers=ANSWERS), grading)
    outcome = run(ReplaceFailedWithDemonstrations(**fields), batch, services=services)
    return batch, outcome.value, outcome.metrics, grading


def test_a_prompt_without_a_right_answer_gets_its_demonstration():
    batch, found, metrics, grading = curated([0, 0, 0, 1, 0, 0, 1, 1])
    assert found.keep_B.tolist() == [False, False, True, True, True, True, True, True]
    assert metrics == {"demonstrations/prompts": 1.0, "demonstrations/missing": 1.0}
    assert grading.graded == [[3, 4, 1]]
    added = found.add
    assert added["id_T"].tolist() == [7, 8, 3, 4, 1]
    assert added["mask_T"].tolist() == [False, False, True, True, True]
    assert added["origin_T"].tolist() == [1, 1, 2, 2, 2]
    assert added["version_T"].tolist() == [-1] * 5
    assert added["uid_P"].tolist() == [31]
    assert added["rollout_uid_B"].tolist() == [-32]
    assert added["outcome_B"].tolist() == added["reward_B"].tolist() == [0.5]
    assert added["logp_behavior_T"].isnan().all()
    joined = batch.keep(found.keep_B).join(added)
    assert joined.size("B") == 7
    assert sorted(joined["uid_P"].tolist()) == [31, 32, 33, 34]


def test_no_expert_is_known_to_have_drawn_a_demonstration():
    """Expert 0 is one of them: replaying routers would send all of its tokens there."""
    batch = ragged_batch(1, (2,)).set(uid_P=torch.tensor([31]))
    tokens = torch.tensor([[2, 5]], dtype=torch.int16)
    batch = batch.set(experts_behavior_T=tokens.repeat(batch.size("T"), 1))
    added = demonstration_rows(batch, torch.tensor([0]), [(7, 8)], [(3, 4, 1)])
    assert added["experts_behavior_T"].tolist() == [[-1, -1]] * 5
    assert added["experts_behavior_T"].dtype == torch.int16


def test_gate_success_and_what_stays():
    # one right answer is a failure too: 31, 32 and 33, of which one has no demonstration
    _, found, metrics, _ = curated([0, 0, 0, 1, 1, 0, 1, 1], gate=1)
    assert found.keep_B.tolist() == [False] * 4 + [True] * 4
    assert metrics == {"demonstrations/prompts": 2.0, "demonstrations/missing": 1.0}
    assert found.add.size("B") == 2
    _, found, _, _ = curated([0.6, 0, 0, 0.5, 1, 1, 1, 1], success=0.6)
    assert found.keep_B.tolist() == [True, True, False, False] + [True] * 4
    _, beside, _, _ = curated([0, 0, 1, 1, 1, 1, 1, 1], replaces=False)
    assert beside.keep_B.all()
    assert beside.add["uid_P"].tolist() == [31]


def test_answers_of_another_column_are_rollouts_apart():
    _, found, _, _ = curated([0, 0, 1, 1, 1, 1, 1, 1], column="rewrite")
    assert found.add["id_T"].tolist() == [7, 8, 2, 2, 1]
    _, again, _, _ = curated([0, 0, 1, 1, 1, 1, 1, 1])
    uid, usual = int(found.add["rollout_uid_B"]), int(again.add["rollout_uid_B"])
    assert usual == -32
    assert uid < -(2**40)


def test_edges():
    _, never, metrics, _ = curated([0] * 8, gate=-1)
    assert never.keep_B.all()
    assert never.add is None
    assert metrics["demonstrations/prompts"] == 0
    # of group 31 nothing has a score, of group 32 only a right one
    scored = [False, False, True, False, True, True, True, True]
    _, found, _, _ = curated([0, 0, 1, 0, 1, 1, 1, 1], scored)
    assert found.keep_B.all()
    assert found.add is None
    with pytest.raises(UserError, match="gate"):
        ReplaceFailedWithDemonstrations(gate=-2)
