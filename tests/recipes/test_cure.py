import json
import math

import pytest
import torch
from builders import answers, flat_batch, run, stages
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, FakeScoring, FakeServices, FakeTexts, rolled_out
from models import Lab
from runs import Runner

from strop.method import notation
from strop.method.algorithm import Until
from strop.method.part import Draw
from strop.parts.rollout.branch_at_critical_tokens import BranchAtCriticalTokens
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.selection.drop_reused_prefixes import DropReusedPrefixes
from strop.recipes.cure import cure
from strop.recipes.dapo import dapo
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics

# Token 0 ends; after 1 the policy is almost sure, after 2 undecided.
TABLE = {
    0: (1, 0, 0, 0), 1: (0.02, 0, 0.88, 0.1), 2: (0.1, 0.4, 0.1, 0.4), 3: (0.1, 0.5, 0.3, 0.1),
}  # fmt: skip
PIECES = {0: "<e>", 1: "one", 2: " x ", 3: "tri"}
DRAWS = (Draw(5, 8), Draw(9, 4), Draw(5, 6, draw=1))


def entropy_of(last):
    return -sum(p * math.log(p) for p in TABLE[last] if p)


def columns(batch, names):
    """The entropy at each token: of the table's row of the token before."""
    assert names == ("entropy_T",)
    before_T = batch["id_T"].roll(1)
    values = torch.tensor([entropy_of(last) for last in before_T.tolist()])
    return {"entropy_T": torch.where(batch["mask_T"], values, 0)}


TEXTS = FakeTexts({5: (1,), 9: (3, 1)}, pieces=PIECES, special_ids=(0,))


def grown(part, draws=DRAWS, seed=0, engine=None):
    services = FakeServices(TEXTS, sampling=FakeSampling(answer_tokens=9),
                            scoring=FakeScoring(columns))  # fmt: skip
    engine = engine or TableEngine(by_last_token(TABLE))
    return (
        rolled_out(part, draws, engine, services, torch.Generator().manual_seed(seed)),
        services,
        engine,
    )


@pytest.mark.parametrize("candidates", [1, 2, 20])
def test_every_branch_leaves_its_answer_at_one_of_the_most_uncertain_tokens(candidates):
    found, services, engine = grown(BranchAtCriticalTokens(candidates=candidates, min_letters=2))
    batch = found.batch
    texts, logp = answers(batch), answers(batch, "logp_behavior_T")
    parent, at = batch["parent_B"].tolist(), batch["fork_at_B"].tolist()
    # 8 are 2 whole ones and 3 branches of each, 4 are 1 and 3, 6 are 2 and 4 in turn
    assert parent == [-1, -1, 0, 1, 0, 1, 0, 1, -1, 8, 8, 8, -1, -1, 12, 13, 12, 13]
    assert services.scoring.scored == [(5, "current")]
    places = set()
    for row, (origin, cut) in enumerate(zip(parent, at, strict=True)):
        if origin < 0:
            assert cut == -1
        else:
            whole = texts[origin]
            before = [1, *whole[:-1]]  # both prompts end with token 1
            # token 2 reads "x" alone and token 0 is special
            usable = [p for p in range(1, len(whole)) if whole[p] in (1, 3)]
            usable.sort(key=lambda p: -entropy_of(before[p]))
            assert cut in (usable[:candidates] or [0])
            assert texts[row][:cut] == whole[:cut]
            assert logp[row][:cut] == logp[origin][:cut]
            places.add(cut)
        drawn = zip([1, *texts[row][:-1]], texts[row], logp[row], strict=True)
        assert all(p == pytest.approx(math.log(TABLE[a][b]), abs=1e-5) for a, b, p in drawn)
    assert len(places) > 1
    assert max(map(len, texts)) <= 9
    assert len(set(batch["rollout_uid_B"].tolist())) == 18
    # what is shared was drawn once, and nothing was discarded
    reused = sum(max(cut, 0) for cut in at)
    assert engine.num_tokens == sum(map(len, texts)) - reused
    assert found.num_discarded == 0
    assert found.metrics == {"rollout/tokens_shared": reused}


def test_all_branches_of_an_answer_leave_it_at_one_place():
    batch = grown(BranchAtCriticalTokens(min_letters=0))[0].batch
    for origin in set(batch["parent_B"].tolist()) - {-1}:
        assert batch["fork_at_B"][batch["parent_B"] == origin].unique().numel() == 1


def test_branches_of_an_answer_that_failed_begin_anew():
    # after token 3 no token can be drawn
    engine = TableEngine(by_last_token({**TABLE, 3: (0, 0, 0, 0)}))
    batch = grown(BranchAtCriticalTokens(min_letters=0), seed=4, engine=engine)[0].batch
    parent, texts = batch["parent_B"].tolist(), answers(batch)
    origins = [-1, -1, 0, 1, 0, 1, 0, 1, -1, 8, 8, 8, -1, -1, 12, 13, 12, 13]
    failed = {row for row in (0, 1, 8, 12, 13) if texts[row][-1] == 3}
    assert 0 < len(failed) < 5
    assert parent == [-1 if origin in failed else origin for origin in origins]
    assert [at >= 0 for at in batch["fork_at_B"].tolist()] == [origin >= 0 for origin in parent]


def test_the_place_is_drawn_evenly_among_the_candidates():
    part, ids = BranchAtCriticalTokens(candidates=2, min_letters=1), [3, 1, 2, 3, 0]
    entropy = torch.tensor([9.0, 0.3, 0.5, 0.4, 8.0])  # the first token and the end are none
    rng = torch.Generator().manual_seed(1)
    cuts = [part.cut(ids, entropy, TEXTS, rng) for _ in range(400)]
    assert set(cuts) == {2, 3}
    assert 150 < cuts.count(2) < 250
    anywhere = BranchAtCriticalTokens(candidates=0)
    assert {anywhere.cut(ids, entropy, TEXTS, rng) for _ in range(100)} == {1, 2, 3, 4}
    assert part.cut([3], entropy[:1], TEXTS, rng) == 0
    assert part.cut([3, 0, 0], entropy[:3], TEXTS, rng) == 0


def test_without_branches_it_samples_plainly():
    plain, services, _ = grown(BranchAtCriticalTokens(branches=0))
    theirs = grown(SampleIndependently())[0].batch
    for name in theirs.columns:
        assert plain.batch[name].equal(theirs[name]), name
    assert services.scoring.scored == []


def test_worked_example():
    # one of 4 whole answers and 5 of 12 branches are right: mean 6/16, unbiased deviation 1/2
    rewards = [1.0, 0, 0, 0] + [1.0] * 5 + [0.0] * 7
    batch = flat_batch([1] * 16, reward_B=torch.tensor(rewards))
    batch = batch.set(fork_at_B=torch.full((16,), -1))
    for algorithm in cure().algorithms:
        found = stages(algorithm, batch)["advantage_T"]
        wanted = [1.25 if r else -0.75 for r in rewards]
        assert found.unique(sorted=True).tolist() == pytest.approx([-0.75, 1.25], abs=1e-5)
        assert found.tolist() == pytest.approx(wanted, abs=1e-5)


def test_a_reused_prefix_neither_learns_nor_counts():
    batch = flat_batch([3, 4]).set(fork_at_B=torch.tensor([-1, 2]))
    kept = run(DropReusedPrefixes(), batch).value
    mask_T, rollout_T = batch["mask_T"], batch["rollout_T"]
    for masked_T in (kept.gradient_T, kept.denominator_T):
        assert masked_T[mask_T & (rollout_T == 0)].tolist() == [True] * 3
        assert masked_T[mask_T & (rollout_T == 1)].tolist() == [False, False, True, True]
        assert not masked_T[~mask_T].any()


def test_the_phases_and_their_parameters():
    method = cure(until="entropy < 0.4", branches=2, num_prompts=4)
    assert method.names == ("explore", "sharpen")
    assert method.phases[0].until == Until(0, "entropy", True, 0.4)
    assert method.algorithms[1] == dapo(num_prompts=4, dual_clip_c=10.0)
    assert method.algorithms[0].rollout.part.branches == 2
    assert method.algorithms[0].terms == method.algorithms[1].terms
    assert cure().phases[0].until == Until(0.5)
    assert notation.recipe("cure(until=300)").phases[0].until == Until(300)
    with pytest.raises(UserError, match="phase sharpen would begin after step 300"):
        cure(until=300).check_steps(200)


def test_a_run_branches_and_then_does_not(tmp_path):
    lab = Lab.make(tmp_path / "lab")
    raw = lab.raw("cure(min_letters=1, max_rounds=2)", reward="even", training={"steps": 4})
    folder = tmp_path / "run"
    Runner().whole(raw, folder)
    lines = [line for line in read_metrics(folder) if line["step"]]
    assert [line["phase"] for line in lines] == [1, 1, 2, 2]
    dropped = [line.get("selection/dropped/reused_prefix") for line in lines]
    assert all(share is not None and 0 < share < 1 for share in dropped[:2])
    assert dropped[2:] == [None, None]
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 4
