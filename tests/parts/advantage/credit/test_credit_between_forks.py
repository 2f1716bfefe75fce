import itertools
from bisect import bisect_right

import pytest
import torch
from builders import flat_batch, ragged_batch, run
from hypothesis import given
from hypothesis import strategies as st

from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.credit_between_forks import CreditBetweenForks
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly


def forked(seed, sizes=(5, 1, 4)):
    """A batch of trees, and each rollout's tokens as the numbers of the draws they came from."""
    rng = torch.Generator().manual_seed(seed)

    def integer(high):
        return int(torch.randint(0, high, (), generator=rng))

    paths, groups, parents, forks, drawn = [], [], [], [], 0
    for group, size in enumerate(sizes):
        first = len(paths)
        for number in range(size):
            parent = first + integer(number) if number and integer(4) else -1
            at = integer(len(paths[parent])) if parent >= 0 else -1
            new = 1 + integer(5)
            paths.append([*(paths[parent][:at] if parent >= 0 else ()), *range(drawn, drawn + new)])
            drawn += new
            groups.append(group)
            parents.append(parent)
            forks.append(at)
    rewards = torch.randint(0, 3, (len(paths),), generator=rng).double()
    batch = flat_batch(
        [len(path) for path in paths], groups, reward_B=rewards, parent_B=parents, fork_at_B=forks
    )
    return batch, paths


def shared(one, other):
    equal = [a == b for a, b in zip(one, other, strict=False)]
    return equal.index(False) if False in equal else len(equal)


def slow(batch, paths):
    """Node values by comparing which draws the answers are made of."""
    expected = []
    group, reward = batch["group_B"].tolist(), batch["reward_B"].tolist()
    scored = batch["scored_B"].tolist()
    for i, path in enumerate(paths):
        peers = [j for j in range(len(paths)) if group[j] == group[i] and scored[j]]
        nodes = sorted({0, len(path), *(shared(path, paths[j]) for j in peers)})

        def value(b, path=path, peers=peers):
            through = [reward[j] for j in peers if shared(path, paths[j]) >= b]
            return sum(through) / len(through)

        for low, high in itertools.pairwise(nodes):
            step = value(high) - value(low) if scored[i] else 0.0
            expected += [step] * (high - low)
    return expected


@given(seed=st.integers(0, 10_000))
def test_matches_slow_loop_over_random_trees(seed):
    batch, paths = forked(seed)
    found = run(CreditBetweenForks(), batch)
    assert found.value.tolist() == pytest.approx(slow(batch, paths), abs=1e-12)
    parents, forks = batch["parent_B"].tolist(), batch["fork_at_B"].tolist()
    copied = sum(fork for parent, fork in zip(parents, forks, strict=True) if parent >= 0)
    assert found.metrics["tree/frac_tokens_shared"] == pytest.approx(copied / batch.size("T"))


@given(seed=st.integers(0, 10_000), data=st.data())
def test_order_of_rollouts_does_not_matter_and_unscored_ones_take_no_part(seed, data):
    batch, paths = forked(seed)
    scored_B = torch.rand(len(paths), generator=torch.Generator().manual_seed(seed)) < 0.7
    batch = batch.set(scored_B=scored_B)
    found_T = run(CreditBetweenForks(), batch).value
    assert found_T.tolist() == pytest.approx(slow(batch, paths), abs=1e-12)
    order = torch.tensor(data.draw(st.permutations(range(len(paths)))))
    moved = batch.set(found_T=found_T).take(order)
    torch.testing.assert_close(run(CreditBetweenForks(), moved).value, moved["found_T"])


@given(seed=st.integers(0, 10_000))
def test_an_answers_length_may_differ_from_its_policy_tokens(seed):
    batch, paths = forked(seed)
    rng = torch.Generator().manual_seed(seed)
    mask_T = torch.rand(batch.size("T"), generator=rng) < 0.7
    changed_B = batch["length_B"] + torch.randint(-2, 3, (len(paths),), generator=rng)
    length_B = changed_B.clamp(min=1)
    scored_B = torch.rand(len(paths), generator=rng) < 0.8
    batch = batch.set(mask_T=mask_T, length_B=length_B, scored_B=scored_B)
    lengths, tokens = length_B.tolist(), torch.split(mask_T, [len(path) for path in paths])
    scored, group, reward = (batch[c].tolist() for c in ("scored_B", "group_B", "reward_B"))
    cut = [path[:length] for path, length in zip(paths, lengths, strict=True)]
    expected = []
    for i in range(len(paths)):
        peers = [j for j in range(len(paths)) if group[j] == group[i] and scored[j]]
        common = {j: lengths[i] if j == i else shared(cut[i], cut[j]) for j in peers}
        places = sorted(common.values())

        def value(place, common=common):
            through = [reward[j] for j, n in common.items() if n >= place]
            return sum(through) / len(through)

        position = 0
        for counts in tokens[i].tolist():
            step = 0.0
            if counts and scored[i]:
                end = min(bisect_right(places, position), len(places) - 1)
                step = value(places[end]) - value(places[max(end - 1, 0)])
            expected.append(step)
            position += counts
    found = run(CreditBetweenForks(), batch)
    assert found.value.tolist() == pytest.approx(expected, abs=1e-12)


def test_worked_example():
    batch = flat_batch(
        (10, 12, 8, 14), reward_B=[1.0, 0, 1, 1], parent_B=[-1, 0, -1, 0], fork_at_B=[-1, 4, -1, 6]
    )
    # V(0) = 3/4, V(4) = 2/3, V(6) = 1
    first = [2 / 3 - 3 / 4] * 4
    expected = [
        *first, *[1 / 3] * 2, *[0] * 4, *first, *[-2 / 3] * 8, *[0.25] * 8,
        *first, *[1 / 3] * 2, *[0] * 8,
    ]  # fmt: skip
    found = run(CreditBetweenForks(), batch)
    assert found.value.tolist() == pytest.approx(expected, abs=1e-12)
    assert found.metrics["tree/frac_tokens_shared"] == pytest.approx((4 + 6) / 44)


def test_two_branches_at_one_position_are_two_nodes():
    # 1 forks from 0 at 2, 3 from 2 at 2: by position alone V(2) would be 1/2 on both.
    batch = flat_batch(
        (4, 4, 4, 4), reward_B=[1.0, 1, 0, 0], parent_B=[-1, 0, -1, 2], fork_at_B=[-1, 2, -1, 2]
    )
    half = [0.5, 0.5, 0, 0]
    expected = [*half, *half, *(-x for x in half), *(-x for x in half)]
    assert run(CreditBetweenForks(), batch).value.tolist() == pytest.approx(expected, abs=1e-12)


def test_equals_spread_evenly_after_the_group_mean_when_nothing_forks():
    batch = ragged_batch(3)
    centred = batch.set(advantage_B=run(SubtractGroupMean(), batch.set(
        advantage_B=batch["reward_B"])).value)  # fmt: skip
    expected = run(SpreadEvenly(), centred).value
    scored_T = batch["scored_B"][batch["rollout_T"]]
    groups = torch.bincount(batch["group_B"][batch["scored_B"]])[batch["group_B"]]
    alone_T = (groups == 1)[batch["rollout_T"]]  # a group of one keeps its reward there
    found = run(CreditBetweenForks(), batch).value
    both = scored_T & ~alone_T
    torch.testing.assert_close(found[both], expected[both], atol=1e-12, rtol=0)
    assert not found[alone_T].any()
    assert both.sum() > 20


def test_edges():
    batch, _ = forked(5)
    same = run(CreditBetweenForks(), batch.set(reward_B=torch.full((10,), 0.3)))
    assert not same.value.any()
    nobody = batch.set(scored_B=torch.zeros(10, dtype=torch.bool))
    assert not run(CreditBetweenForks(), nobody).value.any()
    with pytest.raises(ValueError, match="descends from itself"):
        run(CreditBetweenForks(), batch.set(parent_B=batch["index_B"]))
    other = batch.set(parent_B=torch.tensor([-1, 9] + [-1] * 8), fork_at_B=torch.zeros(10).long())
    with pytest.raises(ValueError, match="another group"):
        run(CreditBetweenForks(), other)
