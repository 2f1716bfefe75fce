import torch
from builders import answers
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, FakeServices, FakeTexts, rolled_out

from strop.method.part import Draw
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.rollout.sample_with_greedy import SampleWithGreedy

# Token 0 ends; 1 is usually followed by 2, 2 by 1, each sometimes by the end.
CHAIN = by_last_token({0: (1, 0, 0), 1: (0.3, 0.1, 0.6), 2: (0.2, 0.7, 0.1)})


PROMPTS = {5: (1,), 9: (2, 2)}
DRAWS = (Draw(5, 3), Draw(9, 2), Draw(5, 1))


def _batch(part):
    rng = torch.Generator().manual_seed(3)
    services = FakeServices(FakeTexts(PROMPTS), sampling=FakeSampling(answer_tokens=7))
    batch, state, *_ = rolled_out(part, DRAWS, TableEngine(CHAIN), services, rng)
    assert state is None
    return batch


def test_one_greedy_rollout_a_draw_beside_the_samples():
    batch = _batch(SampleWithGreedy(top_k=2))
    assert batch["stage_B"].tolist() == [0, 0, 0, 1, 0, 0, 1, 0, 1]
    assert batch["group_B"].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2]
    greedy = batch.keep(batch["stage_B"] == 1)
    assert answers(greedy) == [[2, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2, 1, 2, 1], [2, 1, 2, 1, 2, 1, 2]]
    assert len(set(batch["rollout_uid_B"].tolist())) == 9


def test_the_samples_are_those_of_plain_sampling():
    ours = _batch(SampleWithGreedy(top_p=0.9))
    ours = ours.keep(ours["stage_B"] == 0)
    theirs = _batch(SampleIndependently(top_p=0.9))
    for name in theirs.columns:
        assert ours[name].equal(theirs[name]), name
