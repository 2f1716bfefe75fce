import math

import pytest
import torch
from builders import (
    NAN,
    assert_same_push,
    flat_batch,
    learning,
    members_of,
    ragged_batch,
    run,
    stages,
    tokens_of,
)
from hypothesis import example as example_of
from hypothesis import given, settings
from hypothesis import strategies as st

from strop import functional
from strop.method.check import check
from strop.parts.advantage.scale.charge_entropy import ChargeEntropy
from strop.parts.advantage.weight.protect_shared_tokens import ProtectSharedTokens
from strop.parts.selection.drop_unsure_rollouts import DropUnsureRollouts
from strop.recipes.gpg import gpg
from strop.recipes.gtpo_conflict import gtpo_conflict

TOKENS = torch.tensor([[5, 6, 7, 9], [5, 6, 8, 9], [5, 4, 8, 9]])
REWARD = [1.0, 0.0, 0.0]
LAMBDA = [[2, 2, 1, 2], [0, 0, 1, 0], [0, 1, 1, 0]]


def example(**columns):
    given = {"reward_B": REWARD, "advantage_T": [1.0] * 12, "id_T": TOKENS.flatten()}
    return flat_batch((4, 4, 4), **{**given, **columns})


def factors(batch, **fields):
    return run(ProtectSharedTokens(**fields), batch).value.view(3, 4).tolist()


def test_worked_example():
    assert factors(example()) == LAMBDA
    # tokens in conflict: 3, 3, 2
    shared = factors(example(), share_out=True)
    for row, expected, count in zip(shared, LAMBDA, (3, 3, 2), strict=True):
        assert row == pytest.approx([x / count for x in expected])
    assert factors(example(), weight=1.0)[0] == [1, 1, 1, 1]


def test_worked_example_through_the_padded_call():
    # A = 2/3, -1/3, -1/3 less 0.1 * 0.5 nats
    found = functional.advantages(
        "gtpo_conflict", rewards=torch.tensor(REWARD).double(), groups=torch.zeros(3).long(),
        mask=torch.ones(3, 4).bool(), entropy=torch.full((3, 4), 0.5).double(),
        **{name: TOKENS for name in functional.inputs("gtpo_conflict", "advantages")
           if name in ("id", "token_ids")},
    )  # fmt: skip
    expected = torch.tensor([[2 / 3], [-1 / 3], [-1 / 3]]).double() - 0.05
    torch.testing.assert_close(found, expected * torch.tensor(LAMBDA))


def test_one_run_through_everything():
    """Equal answers of unlike reward: the good one counts four times, the bad one not at all."""
    same = example(id_T=TOKENS[[0, 0, 1]].flatten())
    assert factors(same)[:2] == [[4] * 4, [0] * 4]


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), num_ids=st.integers(1, 3))
@example_of(seed=1, num_ids=2)
def test_matches_slow_loop(seed, num_ids):
    batch = ragged_batch(seed, groups=(5, 4), num_turns=(1, 3))
    batch = batch.set(id_T=batch["id_T"] % num_ids)  # many shared tokens
    found = run(ProtectSharedTokens(), batch.set(advantage_T=torch.ones_like(batch["logp_T"])))
    seen = set()
    for group in range(2):
        members = members_of(batch, group)
        mean = sum(batch["reward_B"][i].item() for i in members) / len(members)
        sign = {i: 1 if batch["reward_B"][i] > mean else -1 for i in members}
        texts = {i: batch["id_T"][tokens_of(batch, i)].tolist() for i in members}
        for i in members:
            expected = [1.0] * len(texts[i])
            for flip in (1, -1):
                own = texts[i][::flip]
                for t in range(len(own)):
                    same = {
                        sign[j] for j in members
                        if len(texts[j]) > t and texts[j][::flip][t] == own[t]
                    }  # fmt: skip
                    if same != {1, -1}:
                        break
                    place = t if flip == 1 else len(own) - 1 - t
                    expected[place] *= 2 if sign[i] > 0 else 0
            assert found.value[tokens_of(batch, i)].tolist() == expected
            seen |= set(expected)
    assert (seed, num_ids) != (1, 2) or {0.0, 1.0, 2.0} <= seen


def test_edges():
    assert factors(example(reward_B=[1.0, 1.0, 1.0])) == [[1] * 4] * 3
    unscored = example(reward_B=[1.0, 0.0, NAN], scored_B=torch.tensor([True, True, False]))
    assert factors(unscored) == [[2, 2, 1, 2], [0, 0, 1, 0], [0] * 4]
    # reward at the mean: in no conflict, and none through it
    middle = example(reward_B=[1.0, 0.5, 0.0])
    assert factors(middle) == [[2, 1, 1, 2], [1] * 4, [0, 1, 1, 0]]
    charged = flat_batch((2, 1), advantage_B=[1.0, 0.0], entropy_old_T=[0.1, 0.3, 0.5])
    assert run(ChargeEntropy(2.0), charged).value.tolist() == pytest.approx([0.6, -1.0])


def test_unsure_rollouts_are_left_out_but_counted():
    batch = flat_batch((2, 2), entropy_old_T=[0.6, 0.7, 0.7, 0.75])
    chosen = run(DropUnsureRollouts(initial=0.5), batch).value
    assert chosen.gradient_T.tolist() == [True, True, False, False]
    assert chosen.denominator_T.all()
    assert run(DropUnsureRollouts(initial=0.8), batch).value.gradient_T.all()
    # not known yet: the mean of the step is 0.6875 < ln 2
    assert run(DropUnsureRollouts(), batch).value.gradient_T.tolist() == [True, True, False, False]
    wide = batch.set(entropy_old_T=batch["entropy_old_T"] + 0.1)
    assert run(DropUnsureRollouts(), wide).value.gradient_T.all()
    # what nobody scored is not part of that mean: with it 0.85, above ln 2
    more = flat_batch((2, 2, 1), entropy_old_T=[0.6, 0.7, 0.7, 0.75, 1.5])
    more = more.set(scored_B=torch.tensor([True, True, False]))
    assert run(DropUnsureRollouts(), more).value.gradient_T.tolist() == [True] * 2 + [False] * 3


def test_gradient_is_that_of_the_published_loss():
    algorithm = gtpo_conflict(threshold=1.0, variant="code")
    batch = stages(algorithm, ragged_batch(2, num_turns=(1, 1)))
    rows, everything = learning(batch), batch["denominator_T"]
    count = len({int(i) for i in batch["rollout_T"][everything]})
    assert 0 < len(rows) < count

    def loss_of(logp_T):
        per_rollout = [(batch["advantage_T"][own] * logp_T[own]).mean() for _, own in rows]
        return -sum(per_rollout) / count

    assert_same_push(algorithm, batch, loss_of)


def test_is_the_plain_policy_gradient_with_everything_off():
    ours = gtpo_conflict(gamma=0.0, threshold=math.inf, weight=2.0, num_rollouts=16)
    batch = ragged_batch(3)
    batch = batch.set(id_T=torch.arange(batch.size("T")))  # nothing is shared
    mine, plain = stages(ours, batch), stages(gpg(f_norm=1.0), batch)
    singles = batch["group_B"] == 1
    where_T = ~singles[batch["rollout_T"]]
    centred = mine["advantage_T"][where_T]
    assert centred.abs().sum() > 0
    assert ours.terms[0].objective == plain_objective()
    for i in members_of(batch, 0):
        mean = sum(batch["reward_B"][j] for j in members_of(batch, 0)) / 3
        got = mine["advantage_T"][tokens_of(batch, i)]
        assert got.tolist() == pytest.approx([(batch["reward_B"][i] - mean).item()] * len(got))
    assert plain["gradient_T"].equal(mine["gradient_T"])


def plain_objective():
    return gpg().terms[0].objective


def test_composes():
    check(gtpo_conflict(variant="code"))
    assert gtpo_conflict().control[0].part.path in gtpo_conflict().paths()


def test_the_share_of_shared_tokens_is_logged():
    batch = flat_batch((3, 3), advantage_T=[1.0] * 3 + [-1.0] * 3, reward_B=[1.0, 0.0],
                       id_T=[1, 2, 3, 1, 5, 3])  # fmt: skip
    told = run(ProtectSharedTokens(), batch).metrics  # the first and the last of each
    assert told == {"shared_tokens/frac": pytest.approx(2 / 3)}
