import math

import pytest
import torch
from builders import answers
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, FakeScoring, FakeServices, FakeTexts, rolled_out

from strop.engines.base import CAPABILITIES, Answer, Event, Request
from strop.method.part import Draw
from strop.parts.rollout.branch_at_uncertainty import (
    BranchAtUncertainty,
    _Answer,
    _Pool,
    branching_metric,
)
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError

# Token 0 ends; after 1 the policy is almost sure, after 2 undecided between tokens 1 and 3.
TABLE = {
    0: (1, 0, 0, 0), 1: (0.02, 0, 0.98, 0), 2: (0.2, 0.4, 0, 0.4), 3: (0.1, 0.3, 0.3, 0.3),
}  # fmt: skip
EMBEDDINGS = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 1], [0, -1, 0]])


SERVICES = FakeServices(
    FakeTexts({5: (1,), 9: (3, 1)}),
    sampling=FakeSampling(answer_tokens=9),
    scoring=FakeScoring(table_VD=EMBEDDINGS),
)
DRAWS = (Draw(5, 6), Draw(9, 4), Draw(5, 1, draw=1))


def grown(part, seed=0, draws=DRAWS, engine=None):
    rng = torch.Generator().manual_seed(seed)
    engine = engine or TableEngine(by_last_token(TABLE))
    batch, state, *_ = rolled_out(part, draws, engine, SERVICES, rng)
    assert state is None
    return batch, engine


def slow_metric(batch, measure):
    """The metric at each token of each answer, by loops over pairs of tokens."""
    found = []
    for row, answer in enumerate(answers(batch)):
        start = batch["rollout_T"].tolist().index(row)
        prompt = batch["id_T"][start : start + 5][~batch["mask_T"][start : start + 5]].tolist()
        before = [*prompt, *answer][len(prompt) - 1 : -1]
        values = []
        for last in before:
            p = TABLE[last]
            entropy = -sum(x * math.log(x) for x in p if x)
            spread = 0.0
            for a in range(4):
                for b in range(4):
                    cosine = float(torch.cosine_similarity(EMBEDDINGS[a], EMBEDDINGS[b], dim=0))
                    weight = {
                        "dissimilarity": 1 - cosine,
                        "similarity": -cosine,
                        "off_diagonal": -cosine * (a != b),
                        "entropy": 0.0,
                    }[measure]
                    spread += p[a] * p[b] * weight
            values.append(entropy * (1.0 if measure == "entropy" else spread))
        found.append(values)
    return found


@pytest.mark.parametrize("measure", ["dissimilarity", "similarity", "off_diagonal", "entropy"])
def test_every_fork_is_at_the_largest_metric_so_far(measure):
    batch, _ = grown(BranchAtUncertainty(explore=0.3, measure=measure), seed=1)
    metric = slow_metric(batch, measure)
    parent, fork_at = batch["parent_B"].tolist(), batch["fork_at_B"].tolist()
    text, group = answers(batch), batch["group_B"].tolist()
    logp = answers(batch, "logp_behavior_T")
    forks = 0
    for row, (origin, at) in enumerate(zip(parent, fork_at, strict=True)):
        earlier = [r for r in range(row) if group[r] == group[row]]
        if origin < 0:
            assert at == -1
            continue
        forks += 1
        assert origin in earlier
        best = max(max(metric[r]) for r in earlier)
        assert metric[origin][at] == pytest.approx(best, rel=1e-5, abs=1e-9)
        assert text[row][:at] == text[origin][:at]
        assert logp[row][:at] == logp[origin][:at]
        before = [1, *text[row][:-1]]  # both prompts end with token 1
        expected = [math.log(TABLE[a][b]) for a, b in zip(before, text[row], strict=True)]
        assert logp[row] == pytest.approx(expected, abs=1e-5)
    assert forks >= 3
    assert set(parent) - {-1, 0, 6}  # some leave another answer than the first of their group
    assert [parent[r] for r in (0, 6, 10)] == [-1, -1, -1]


@pytest.mark.parametrize(
    ("texts", "metrics", "place"),
    [
        (((1, 0), (3, 0)), ([0.5, 0.1], [0.2, 0.3]), (0, 0)),
        (((1, 0), (3, 0)), ([0.5, 0.1], [0.2, 0.6]), (1, 1)),
        (((1,), (3,)), ([0.5], [0.5]), (0, 0)),
        (((1, 0), (1, 3)), ([0.2, 0.6], [0.2, 0.6 + 1e-9]), (0, 1)),  # alike up to there: rounding
        (((), (3, 0)), ([], [-0.1, -0.4]), (1, 0)),  # the first failed before its first token
        (((), ()), ([], []), (-1, -1)),
    ],
)
def test_the_place_is_that_of_the_largest_metric_of_all_answers(texts, metrics, place):
    events = [tuple(Event(0, (token,), (0.0,), 0) for token in text) for text in texts]
    answers = [
        _Answer(Answer(Request((1,), 9), own), torch.tensor(each, dtype=torch.float64))
        for own, each in zip(events, metrics, strict=True)
    ]
    assert _Pool(Draw(5, 2), [], 0, answers).best_place() == place


def test_metric_by_hand():
    # p = (1/2, 1/4) of opposite tokens 1 and 3: H = ln 2, all pairs 1/16, off the diagonal -1/4
    top = {1: math.log(0.5), 3: math.log(0.25)}
    events = [Event(0, (1,), (0.0,), 0, top=(top,)), Event(0, (), (), 0, ended="stop")]
    entropy = 0.5 * math.log(2) + 0.25 * math.log(4)
    for measure, spread in (
        ("dissimilarity", 0.5), ("similarity", -0.0625), ("off_diagonal", 0.25), ("entropy", 1.0),
    ):  # fmt: skip
        found = branching_metric(events, EMBEDDINGS, measure)
        assert found.tolist() == pytest.approx([spread * entropy])


def test_answers_keep_the_limit_and_prefixes_are_not_drawn_again():
    batch, engine = grown(BranchAtUncertainty(explore=0.0), seed=4)
    assert int(batch["length_B"].max()) <= 9
    truncated = batch["truncated_B"]
    assert (batch["length_B"][truncated] == 9).all()
    new = batch["length_B"] - batch["fork_at_B"].clamp(min=0)
    assert engine.num_tokens == int(new.sum())
    assert len(set(batch["rollout_uid_B"].tolist())) == 11
    assert batch["draw_P"].tolist() == [0, 0, 1]


def test_equals_plain_samples_when_it_always_explores():
    ours, _ = grown(BranchAtUncertainty(explore=1.0, top_k=2))
    rng = torch.Generator().manual_seed(0)
    theirs, _, *_ = rolled_out(
        SampleIndependently(top_k=2), DRAWS, TableEngine(by_last_token(TABLE)), SERVICES, rng
    )
    for name in theirs.columns:
        assert ours[name].equal(theirs[name]), name


def test_fields_are_checked():
    with pytest.raises(UserError, match="explore"):
        BranchAtUncertainty(explore=1.5)
    with pytest.raises(UserError, match="measure"):
        BranchAtUncertainty(measure="cosine")
    engine = TableEngine(by_last_token(TABLE), capabilities=CAPABILITIES - {"top"})
    with pytest.raises(UserError, match="top"):
        grown(BranchAtUncertainty(explore=0.0), engine=engine)
