import math

import pytest
import torch
from builders import answers, stages
from fakes.engine import TableEngine
from fakes.services import over_table, rolled_out
from short_runs import steps_from_a_shell

from strop.engines.base import CAPABILITIES
from strop.method import notation
from strop.method import part as parts
from strop.method.part import Draw
from strop.parts.rollout.fork_at_entropy_peaks import ForkAtEntropyPeaks
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.recipes.ettrl_etmr import ettrl_etmr
from strop.support.errors import UserError

DRAWS = (Draw(5, 3), Draw(9, 2))
PROMPTS = {5: (1,), 9: (3, 2)}


def chances(tokens):
    """0 ends; how open the next token is depends on the last two."""
    weights = [0.4 if len(tokens) > 3 else 0.0, 1.0, 1.0, 1.0]
    weights[1 + sum(tokens[-2:]) % 3] *= 1 + (3 * tokens[-1] + len(tokens)) % 7
    return [w / sum(weights) for w in weights]


def rolled(part, probabilities=chances, draws=DRAWS, outcome=lambda ids: 0.0, **options):
    engine = TableEngine(probabilities, **options)
    pieces = {id: str(id) for id in range(4)}
    services = over_table(engine, PROMPTS, outcome, pieces, answer_tokens=8)
    found = rolled_out(part, draws, engine, services, torch.Generator().manual_seed(3))
    assert engine.rows == {}
    return found, engine, services


def entropy(probabilities):
    return -sum(p * math.log(p) for p in probabilities if p)


@pytest.mark.parametrize(("places", "branches"), [(2, 2), (3, 1), (1, 3), (50, 1)])
def test_leaves_fork_at_the_largest_entropies_of_their_trunk(places, branches):
    found, engine, _ = rolled(ForkAtEntropyPeaks(num_places=places, num_branches=branches))
    batch = found.batch
    texts, logp = answers(batch), answers(batch, "logp_behavior_T")
    assert answers(batch, "logp_sampler_T") == logp  # the engine is asked for it as ever
    uid = batch["uid_P"][batch["group_B"]].tolist()
    row, shared = 0, 0
    for draw in DRAWS:
        for _ in range(draw.num_rollouts):
            assert (int(batch["parent_B"][row]), int(batch["fork_at_B"][row])) == (-1, -1)
            trunk, prompt = texts[row], PROMPTS[draw.uid]
            peaks = [entropy(chances((*prompt, *trunk[:k]))) for k in range(len(trunk))]
            order = sorted(range(len(trunk)), key=lambda k: -round(peaks[k], 9))[:places]
            for number, place in enumerate(p for p in order for _ in range(branches)):
                leaf = row + 1 + number
                assert int(batch["parent_B"][leaf]) == row
                at = int(batch["fork_at_B"][leaf])
                assert peaks[at] == pytest.approx(peaks[place])
                assert texts[leaf][:at] == trunk[:at]
                shared += at
            row += 1 + len(order) * branches
    assert row == batch.size("B")
    for text, told, each in zip(texts, logp, uid, strict=True):
        known = [math.log(chances((*PROMPTS[each], *text[:k]))[id]) for k, id in enumerate(text)]
        assert told == pytest.approx(known, abs=1e-5)
        assert len(text) <= 8
    assert batch["truncated_B"].tolist() == [text[-1] != 0 for text in texts]
    assert engine.num_tokens == sum(map(len, texts)) - shared
    assert (found.metrics, found.num_discarded) == ({"rollout/tokens_shared": shared}, 0)
    assert batch["rollout_uid_B"].unique().numel() == batch.size("B")


@pytest.mark.parametrize(
    ("places", "branches", "peaks", "share"), [(3, 2, (2, 4, 6), 0.5714), (2, 2, (2, 6), 0.6)]
)
def test_worked_example_of_the_cost(places, branches, peaks, share):
    """Answers of 8 tokens that fork in the middle on average: (1 + BN/2) / (1 + BN)."""

    def table(tokens):
        return [0, 0.5, 0.5, 0] if len(tokens) - 1 in peaks else [0, 0.9, 0.1, 0]

    part = ForkAtEntropyPeaks(num_places=places, num_branches=branches)
    found, engine, _ = rolled(part, table, (Draw(5, 12),))
    assert found.batch.size("B") == 12 * (1 + places * branches)
    assert engine.num_tokens / (8 * found.batch.size("B")) == pytest.approx(share, abs=5e-5)
    assert set(found.batch["fork_at_B"].tolist()) == {-1, *peaks}


@pytest.mark.parametrize("none", [{"num_places": 0}, {"num_branches": 0}])
def test_equals_plain_samples_without_forks(none):
    part = ForkAtEntropyPeaks(**none)
    ours = rolled(part)[0].batch
    theirs = rolled(SampleIndependently())[0].batch
    for name, column in theirs.columns.items():
        assert ours[name].equal(column), name


def test_all_leaves_vote_and_are_compared():
    """The text is the answer; rewards and advantages are those of the whole group of leaves."""
    algorithm = ettrl_etmr(M=3, std="biased", eps=0.0)
    part = algorithm.rollout.part
    found, _, services = rolled(part, lambda tokens: [0.5, 0.3, 0.2, 0], (Draw(5, 3), Draw(9, 3)))
    batch = found.batch.set(
        outcome_B=torch.zeros(found.batch.size("B")),
        scored_B=torch.ones(found.batch.size("B"), dtype=torch.bool),
    )
    use = algorithm.reward[-1]
    batch = parts.write(batch, use, parts.call(use, batch, services=services))
    texts, group = answers(batch), batch["group_B"].tolist()
    batch = batch.set(advantage_B=batch["reward_B"])
    given = stages(algorithm, batch)["advantage_T"]
    for number in (0, 1):
        own = [tuple(t) for t, g in zip(texts, group, strict=True) if g == number]
        major = max(own, key=own.count)  # of equally frequent ones the first
        reward = [float(text == major) for text in own]
        mine = [r for r, g in zip(batch["reward_B"].tolist(), group, strict=True) if g == number]
        assert mine == reward
        assert len(own) == sum(g == number for g in group) > 3
        mean = sum(reward) / len(reward)
        spread = math.sqrt(sum((r - mean) ** 2 for r in reward) / len(reward))
        rows = [row for row, g in enumerate(group) if g == number]
        for row, r in zip(rows, reward, strict=True):
            learnt = given[(batch["rollout_T"] == row) & batch["mask_T"]]
            assert learnt.tolist() == pytest.approx([(r - mean) / spread] * len(learnt))


def test_composes_and_mistakes_are_refused():
    algorithm = ettrl_etmr()
    assert algorithm.sampling[0].part.num_rollouts == 12
    part = algorithm.rollout.part
    assert 12 * (1 + part.num_places * part.num_branches) == 60
    for wrong in ("N=-1", "B=-2", "M=0"):
        with pytest.raises(UserError):
            notation.recipe(f"ettrl_etmr({wrong})")
    with pytest.raises(UserError, match="entropy"):
        rolled(ForkAtEntropyPeaks(), capabilities=CAPABILITIES - {"entropy"})


def test_twenty_steps_from_the_command_line(tmp_path, strop):
    lines = steps_from_a_shell(strop, tmp_path, "ettrl_etmr(N=1)", 20)
    assert {line["num_rollouts"] for line in lines} == {2 * 4 * 3}
    share = [line["majority/share"] for line in lines]
    assert sum(share[-5:]) > sum(share[:5])  # they come to agree
