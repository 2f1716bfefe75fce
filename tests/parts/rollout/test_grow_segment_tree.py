import itertools

import pytest
import torch
from builders import answers
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, FakeServices, FakeTexts, rolled_out

from strop.method.part import Draw
from strop.parts.rollout.grow_segment_tree import GrowSegmentTree
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError

CHAIN = by_last_token({0: (1, 0, 0), 1: (0.1, 0.3, 0.6), 2: (0.1, 0.7, 0.2)})
ENDLESS = by_last_token({1: (0, 0.4, 0.6), 2: (0, 0.7, 0.3)})


def services_of(context=100):
    texts = FakeTexts({5: (1,), 9: (2, 2)})
    return FakeServices(texts, sampling=FakeSampling(answer_tokens=7, context_tokens=context))


DRAWS = (Draw(5, 3), Draw(9, 2))


def grown(part, table=CHAIN, seed=0, draws=DRAWS, context=100):
    rng = torch.Generator().manual_seed(seed)
    engine = TableEngine(table, context_length=context)
    services = services_of(context)
    batch, state, *_ = rolled_out(part, draws, engine, services, rng)
    assert state is None
    return batch, engine


def turns(batch):
    """Per rollout, its turns as (state, tokens)."""
    found = [[] for _ in range(batch.size("B"))]
    for k, (state, rollout) in enumerate(
        zip(batch["state_K"].tolist(), batch["rollout_K"].tolist(), strict=True)
    ):
        here = (batch["turn_T"] == k) & batch["mask_T"]
        found[rollout].append((state, tuple(batch["id_T"][here].tolist())))
    return found


def test_a_full_tree_has_every_path_and_segments_of_the_given_size():
    batch, engine = grown(GrowSegmentTree(branching=(2, 3, 2), segment_tokens=2), ENDLESS)
    assert batch["group_B"].tolist() == [0] * 12 + [1] * 12
    assert batch["truncated_B"].all()
    for path in turns(batch):
        assert [len(tokens) for _, tokens in path] == [2, 2, 3]  # 7 tokens at most
        assert path[0][0] == 0
    for group in (0, 12):
        paths = turns(batch)[group : group + 12]
        for depth, width in ((1, 2), (2, 6)):
            states = [path[depth][0] for path in paths]
            assert len(set(states)) == width
            assert states == [s for s, same in itertools.groupby(states) for _ in same]
            for state in set(states):  # equal states, equal beginnings
                texts = {tuple(t for _, t in p[:depth]) for p in paths if p[depth][0] == state}
                assert len(texts) == 1
    # every segment is drawn once: 2 + 6 + 12 segments of a tree
    assert engine.num_tokens == 2 * (2 * 2 + 6 * 2 + 12 * 3)


def test_forks_say_which_tokens_are_a_rollouts_own():
    batch, engine = grown(GrowSegmentTree(branching=(3, 3, 2), segment_tokens=2), seed=3)
    text, logp = answers(batch), answers(batch, "logp_behavior_T")
    parents, forks = batch["parent_B"].tolist(), batch["fork_at_B"].tolist()
    own = 0
    for row, (parent, at) in enumerate(zip(parents, forks, strict=True)):
        assert (parent < 0) == (at < 0)
        own += len(text[row]) - max(at, 0)
        if parent >= 0:
            assert 0 < at < len(text[row])
            assert parent < row
            assert text[row][:at] == text[parent][:at]
            assert logp[row][:at] == logp[parent][:at]
    assert own == engine.num_tokens
    assert len(set(batch["rollout_uid_B"].tolist())) == batch.size("B")
    ended = [answer[-1] == 0 for answer in text]
    assert batch["truncated_B"].tolist() == [not done for done in ended]
    assert any(ended)
    assert any(0 in answer[:2] for answer in text)  # a leaf before the last level


def test_equals_plain_samples_with_one_level():
    batch, _ = grown(GrowSegmentTree(branching=(400,)), draws=(Draw(5, 1),))
    rng = torch.Generator().manual_seed(1)
    plain, _, *_ = rolled_out(
        SampleIndependently(), (Draw(5, 400),), TableEngine(CHAIN), services_of(), rng
    )
    assert (batch["parent_B"] == -1).all()
    mean, other = (b["length_B"].double().mean().item() for b in (batch, plain))
    assert mean == pytest.approx(other, abs=0.35)  # deviation of a mean: about 0.12
    assert (batch["index_K"] == 0).all()


def test_ends_of_the_context_and_of_the_limit_are_leaves():
    batch, _ = grown(GrowSegmentTree(branching=(2, 2, 2), segment_tokens=2), ENDLESS, context=5)
    assert batch["size_B"].tolist() == [5] * batch.size("B")
    assert batch["truncated_B"].all()
    batch, _ = grown(GrowSegmentTree(branching=(2, 2, 2), segment_tokens=9), ENDLESS)
    assert batch["length_B"].tolist() == [7] * 4


def test_what_it_asks_of_an_engine():
    assert GrowSegmentTree().needs == frozenset()
    assert GrowSegmentTree(top_k=2).needs == {"rules"}


def test_fields_are_checked():
    for wrong in ((), (3, 0)):
        with pytest.raises(UserError, match="branching"):
            GrowSegmentTree(branching=wrong)
    with pytest.raises(UserError, match="segment_tokens"):
        GrowSegmentTree(segment_tokens=0)
