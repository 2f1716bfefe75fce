import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeServices, FakeTexts, rolled_out

from strop.method.part import Draw
from strop.parts.rollout import substitutes
from strop.parts.rollout.read_answers import ReadAnswers
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError

PROMPTS = {7: (1, 2), 9: (3,), 0: (3,)}
ANSWERS = {(7, "chosen"): (4, 0), (7, "rejected"): (5, 6, 0), (9, "chosen"): (8, 0),
           (9, "rejected"): (), (0, "chosen"): (8, 0), (0, "rejected"): (4, 0)}  # fmt: skip
SERVICES = FakeServices(FakeTexts(PROMPTS, answers=ANSWERS))
PAIR = ReadAnswers(answers=("chosen", "rejected"))


def read(part, *draws):
    batch, state, *_ = rolled_out(
        part, draws, TableEngine(by_last_token({})), SERVICES, torch.Generator()
    )
    assert state is None
    return batch


def test_a_rollout_for_each_answer_after_its_prompt():
    batch = read(PAIR, Draw(7, 2))
    assert batch["id_T"].tolist() == [1, 2, 4, 0, 1, 2, 5, 6, 0]
    assert batch["mask_T"].tolist() == [False, False, True, True, False, False, True, True, True]
    assert batch["origin_T"].tolist() == [1, 1, 2, 2, 1, 1, 2, 2, 2]
    assert batch["group_B"].tolist() == [0, 0]
    assert batch["uid_P"].tolist() == [7]
    assert batch["preferred_B"].tolist() == [1, -1]
    assert not batch["truncated_B"].any()
    # of no rollout that is sampled: their names are seeds, which are at least 0
    uids = [uid for n in (7, 0) for uid in read(PAIR, Draw(n, 2))["rollout_uid_B"].tolist()]
    assert len(set(uids)) == 4
    assert max(uids) < 0


def test_what_only_an_engine_knows_is_void():
    batch = read(ReadAnswers(answers=("chosen",)), Draw(9, 1), Draw(7, 1))
    mask_T = batch["mask_T"]
    for name in ("logp_behavior_T", "logp_sampler_T", "entropy_behavior_T"):
        assert batch[name][mask_T].isnan().all()
        assert (batch[name][~mask_T] == 0).all()
    assert (batch["version_T"][mask_T] == -1).all()
    assert batch["uid_P"].tolist() == [9, 7]
    assert batch["preferred_B"].tolist() == [1, 1]


def test_the_policy_itself_is_scored_by_sampling():
    part = ReadAnswers(max_tokens=5, temperature=0.7, top_k=3)
    assert substitutes.plain(part) == SampleIndependently(5, 0.7, top_k=3)


def test_an_environment_leaves_them_as_they_are():
    assert substitutes.playing(PAIR) is PAIR


def test_refuses_missing_answers_other_numbers_and_columns():
    with pytest.raises(UserError, match="row of prompt 9 has no rejected"):
        read(PAIR, Draw(9, 2))
    with pytest.raises(UserError, match=r"set sampling\.num_rollouts=2"):
        read(PAIR, Draw(7, 4))
    for columns in ((), ("chosen", "chosen")):
        with pytest.raises(UserError, match="distinct columns"):
            ReadAnswers(answers=columns)
