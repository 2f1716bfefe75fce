"""labs/flow.py: the worked examples of three methods, and the number of a net's calls."""

import re

import pytest
import torch
from opened import opened

from strop import functional as F

lab = opened("flow")
SCRIPT = {0: 2, 3: 2, 6: 2, 9: 2}  # the launch script's tree
ONE_GROUP = torch.zeros(4, dtype=torch.long)


def close(found, expected, tolerance=1e-4):
    torch.testing.assert_close(
        torch.as_tensor(found), torch.tensor(expected), rtol=0, atol=tolerance
    )


@pytest.fixture(scope="module")
def net():
    return lab.pretrained(1)


# ---- branch_grpo


def test_depths_of_a_tree_are_compared_by_themselves():
    # splits at steps 0 and 1 of 3: two nodes, then four, then four
    logps = [torch.zeros(1, 2), torch.zeros(1, 4), torch.zeros(1, 4)]
    values = lab.back_up(torch.tensor([[1.0, 0, 1, 1]]), logps)
    close(values[0], [[0.5, 1.0]])
    close(lab.compare_depth(values[0]), [[-0.7071, 0.7071]])
    for leaves in values[1:]:
        close(lab.compare_depth(leaves), [[0.5, -1.5, 0.5, 0.5]])
    assert lab.compare_depth(torch.tensor([[0.75]])).tolist() == [[0]]  # the root
    assert lab.compare_depth(torch.ones(1, 3)).tolist() == [[0, 0, 0]]


def test_children_weighted_by_density():
    logps = [torch.zeros(1, 2), torch.tensor([[-1.0, -1.2, 0, 0]])]
    close(lab.back_up(torch.tensor([[1.0, 0, 1, 1]]), logps, alpha=1.0)[0], [[0.5498, 1.0]])


def test_edges_of_the_scripts_tree():
    assert lab.count_edges(SCRIPT, 20) == 2 * 3 + 4 * 3 + 8 * 3 + 16 * 11 == 218
    assert lab.count_edges({0: 16}, 20) == 320
    late = torch.arange(20).repeat_interleave(16)[-11 * 16 :]  # half of those behind the last split
    edges = lab.Edges(late, *(torch.randn(len(late)) for _ in range(4)))
    kept = 218 - 10 * 16 + len(lab.prune_width(edges[late > 9], 9, 0.5))
    assert kept == 138  # 8.6 a leaf


def test_what_a_tree_costs_and_holds(net):
    net.calls = 0
    steps, rewards = lab.grow(net, torch.randn(3, 2), lab.SPLITS)
    assert net.calls == 3 * (1 + 2 + 2 + 4 + 4 + 8 + 8 + 8)  # a node that branches: one call
    edges = lab.edges_of(steps, [torch.zeros_like(logp) for _, _, logp in steps])
    assert len(edges) == 3 * lab.count_edges(lab.SPLITS, lab.STEPS - 1)
    assert rewards.shape == (3, 8)
    siblings = steps[0][0].view(3, 2, 2)  # that leave one node
    assert siblings[:, 0].equal(siblings[:, 1])
    assert not steps[0][1][:, 0].equal(steps[0][1][:, 1])


def test_one_split_at_the_start_is_grpo():
    rewards = torch.tensor([[0.3, 0.1, 0.9, 0.4]])
    values = lab.back_up(rewards, [torch.randn(1, 4) for _ in range(3)])
    own = F.advantages("grpo", rewards=rewards[0], groups=ONE_GROUP, params={"eps": 1e-8})
    for each in values:
        close(lab.compare_depth(each)[0], own.tolist())


def test_pruning():
    edges = lab.Edges(
        torch.tensor([0, 3, 3, 3, 3, 3]), *(torch.zeros(6) for _ in range(3)),
        torch.tensor([0.0, 0.1, -2.0, 3.0, -0.2, 1.0]),
    )  # fmt: skip
    assert lab.prune_width(edges, 0, 0.8).tolist() == [0, 3, 5, 4, 2]  # two best, two worst
    assert lab.prune_width(edges, 0, 0.6).tolist() == [0, 3, 4, 2]  # three: one and two
    assert lab.prune_width(edges, 0, 0.0).tolist() == [0, 3, 2]
    # a window of depths moves up by one each 30 steps, until its first stands at the last split
    assert lab.prune_depth([12, 14], 0, 30, 9) == {12, 14}
    assert lab.prune_depth([12, 14], 60, 30, 9) == {10, 12}
    assert lab.prune_depth([12, 14], 300, 30, 9) == {9, 11}


def test_a_step_by_hand():
    # x0 = 1 - 0.5 * 0.4 = 0.8; score = -(1 - 0.5 * 0.8) / 0.25 = -2.4
    x, v = torch.tensor([[1.0]]), torch.tensor([[0.4]])
    mean, std = lab.kernel(v, x, torch.tensor(0.5), torch.tensor(-0.1))
    close(mean, [[1 - 0.04 - 0.5 * 0.49 * 2.4 * 0.1]], 1e-6)
    assert float(std) == pytest.approx(0.7 * 0.1**0.5)
    point, middle = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0])
    deviation = torch.tensor(2.0)
    own = torch.distributions.Normal(middle, deviation).log_prob(point).mean()
    close(lab.log_density(point, middle, deviation), float(own), 1e-6)


# ---- turning_point_grpo


def test_a_prefix_ends_deterministically(net):
    start = torch.randn(5, 2)
    net.calls = 0
    whole = lab.finish(net, start)
    assert net.calls == 5 * lab.STEPS
    sigma = lab.levels()
    first = start + (sigma[1] - sigma[0]) * net(start, sigma[0])
    close(lab.finish(net, first.detach(), 1), whole.tolist(), 1e-5)


# ---- sol_rl_explore_then_train


def test_the_extremes_are_kept_and_compared():
    cheap = torch.tensor([[0.9, 0.1, 0.5, 0.7, 0.3, 0.6]])
    assert sorted(lab.best_worst(cheap, 4)[0].tolist()) == [0, 1, 3, 4]


def test_velocities_learn_towards_samples_of_positive_advantage():
    v_old = torch.tensor([[0.2, -0.1], [0.2, -0.1]])
    v, x = v_old.clone().requires_grad_(), torch.zeros(2, 2)
    x0 = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    loss = lab.nft_loss(v, v_old, x, torch.tensor(0.5), x0, torch.tensor([2.5, -2.5]))
    # both errors are those of v_old: miss (-1.1, -0.95), mean size 1.025
    assert loss.item() == pytest.approx(5 * (1.1**2 + 0.95**2) / 2 / 1.025, rel=1e-5)
    loss.backward()
    assert (v.grad[0] > 0).all()  # x0 = x - sigma v: a smaller v comes nearer
    close(v.grad[1], (-v.grad[0]).tolist(), 1e-6)


def test_rank_agreement_by_hand():
    one = torch.tensor([1.0, 2, 3, 4])
    close(lab.rank_agreement(one, one * 10), (1.0, 1.0))
    close(lab.rank_agreement(one, -one), (-1.0, -1.0))
    close(lab.rank_agreement(one, torch.tensor([2.0, 1, 3, 4])), (0.8, 4 / 6))


# ---- the program


def test_a_curve_at_equal_calls():
    curve = lab.Curve([0, 10, 20], [0, 100, 300], [0.0, 0.4, 0.8])
    assert curve.end() == pytest.approx(0.4)
    assert curve.at_calls(200) == pytest.approx(0.6)
    assert curve.at_calls(300) == pytest.approx(0.8)


@pytest.mark.parametrize("idea", lab.IDEAS)
def test_a_short_run(idea, capsys, tmp_path):
    words = f"--idea {idea} --seeds 2 --updates 1 --pretraining 2"
    lab.main([*words.split(), "--picture", str(tmp_path / "flow.svg")])
    said = capsys.readouterr().out
    arms = lab.arms_of(idea)
    for name in arms:
        assert re.search(rf"^  {re.escape(name)} +[\d,]+  \d\.\d\d\d \(", said, re.MULTILINE)
    assert said.count("  less ") == len(arms) - 1
    drawn = (tmp_path / "flow.svg").read_text()
    assert drawn.count('fill="none"') == 2 * len(arms)


def test_mistakes(tmp_path, refused):
    assert re.search("error: --updates must be at least 1", refused(lab.main, ["--updates", "0"]))
    assert re.search(
        "there is no such folder", refused(lab.main, ["--picture", str(tmp_path / "not/there.svg")])
    )
