"""labs/masked_diffusion.py: schedules, likelihoods of ways of unmasking, and worked examples."""

import copy
import itertools
import re

import pytest
import torch
from opened import opened

lab = opened("masked_diffusion")


# ---- eoser_decoding and ascending_step_size


def test_factors_of_a_proposed_end():
    linear = [lab.eoser_factor(i, 5) for i in range(5)]
    assert linear == pytest.approx([0.40, 0.55, 0.70, 0.85, 1.0])
    rising = [lab.eoser_factor(i, 3, 0.01, ascending=True) for i in range(3)]
    assert rising == pytest.approx([0.13375, 0.38125, 0.87625])
    assert lab.eoser_factor(0, 1) == 1.0
    assert lab.eoser_factor(2, 5, 1.0) == 1.0  # plain low-confidence remasking


def test_ascending_sizes():
    assert lab.ascending_sizes(8) == [1, 2, 5]
    assert lab.ascending_sizes(128) == [1, 2, 4, 8, 16, 32, 65]
    assert lab.ascending_sizes(256)[-2:] == [64, 129]


# ---- cj_grpo


def test_a_step_counts_as_a_step():
    # advantage 0.5; step 1 unmasks one token of ratio 1.2, step 2 two of 0.9 and 1.1
    logp = torch.tensor([[1.2, 0.9, 1.1]]).log()
    unmasked = torch.tensor([[[1, 0, 0]], [[0, 1, 1]]], dtype=torch.bool)
    loss = lab.step_mean_loss(logp, torch.zeros(1, 3), torch.tensor([0.5]), unmasked)
    assert loss.item() == pytest.approx(-0.55)
    loss = lab.step_mean_loss(
        (2 * logp.exp()).log(), torch.zeros(1, 3), torch.tensor([0.5]), unmasked
    )
    assert loss.item() == pytest.approx(-0.5 * 1.5)  # all beyond the clip


def gradients(sizes, order, *, shared=False, seed=0):
    length = sum(sizes)
    features = lab.features_of(length, 2, shared=shared)
    rng = torch.Generator().manual_seed(seed)
    weights = torch.randn(features.shape[1], length, 2, generator=rng, dtype=torch.float64)
    answers = list(itertools.product(range(2), repeat=length))
    rewards = dict(zip(answers, torch.rand(len(answers), generator=rng).tolist(), strict=True))

    def expected(weights):
        logp = torch.einsum("sf,fpt->spt", features, weights).log_softmax(-1)
        return float(sum(w.p * rewards[w.answer] for w in lab.ways(lab.Table(logp), sizes, order)))

    return lab.gradients(weights, features, rewards, sizes, order), weights, expected


@pytest.mark.parametrize("order", ["random", "confident"])
def test_the_exact_gradient_is_that_of_differences(order):
    found, weights, expected = gradients((1, 1), order, shared=True)
    for at in [(0, 0, 0), (2, 1, 1), (5, 0, 1)]:
        step = torch.zeros_like(weights)
        step[at] = 1e-6
        slope = (expected(weights + step) - expected(weights - step)) / 2e-6
        assert float(found["exact"][at]) == pytest.approx(slope, abs=1e-8)


def test_a_random_order_leaves_the_trajectory_exact():
    found, _, _ = gradients((1, 1), "random")
    # the mean over two steps is half of the sum
    torch.testing.assert_close(2 * found["trajectory"], found["exact"], rtol=0, atol=1e-12)
    assert lab.compared(found["one step"], found["exact"]).cosine < 0.9


def test_confidence_is_a_choice_that_the_likelihood_leaves_out():
    found, _, _ = gradients((1, 1), "confident", seed=3)
    own = lab.compared(found["trajectory"], found["exact"])
    other = lab.compared(found["one step"], found["exact"])
    assert 0.01 < own.rest < other.rest
    assert other.cosine < own.cosine < 0.999


def test_unequal_steps_weigh_tokens_unequally():
    found, _, _ = gradients((1, 2), "random")
    own = lab.compared(found["trajectory"], found["exact"])
    assert 0.5 < own.cosine < 0.999  # a token of the second step has half of its weight


def test_what_decoding_makes_of_an_exact_model():
    joint = torch.tensor([[0.5, 0.1], [0.1, 0.3]], dtype=torch.float64)
    table = lab.exact_model(joint)
    assert lab.total_variation(lab.decoded(table, [1, 1], "random"), joint) < 1e-12
    # at once: the product of the marginals (0.6, 0.4), 0.14 too little on both diagonals
    assert lab.total_variation(lab.decoded(table, [2], "random"), joint) == pytest.approx(0.28)
    for order in ("random", "confident"):
        assert float(lab.decoded(table, [1, 1], order).sum()) == pytest.approx(1)
    # confident: 0 is likelier than 1 at either position, so 1 comes first where both drew it; of
    # equals the first position is taken
    first = lab.moves(table, (-1, -1), 1, "confident")
    expected = {((0, 0),): 0.36 + 0.24, ((1, 0),): 0.24, ((0, 1),): 0.16}
    assert {move: float(p) for move, p in first.items()} == pytest.approx(expected)


# ---- the model


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return lab.Masked(16, 1)


def test_a_way_is_kept_with_its_contexts(model):
    prompts = torch.tensor(
        [lab.encoded(text, lab.PROMPT, left=True) for text in ("3,5:8=", "2,4:8=")]
    )
    decoding = lab.Decoding((1, 2, 5))
    drawn = lab.decode(model, prompts, decoding)
    assert drawn.unmasked.sum(2).tolist() == [[1, 1], [2, 2], [5, 5]]
    assert (drawn.unmasked.sum(0) == 1).all()
    assert (drawn.states[0] == lab.HOLE).all()
    assert (drawn.answers < lab.HOLE).all()
    second = torch.where(drawn.unmasked[0], drawn.answers, lab.HOLE)
    assert drawn.states[1].equal(second)
    logp = lab.trajectory_logp(model, prompts, drawn)
    at = drawn.unmasked[1, 0].nonzero()[0].item()  # a token of the second step
    own = model(prompts[:1], second[:1]).log_softmax(-1)[0, at, drawn.answers[0, at]]
    assert float(logp[0, at].detach()) == pytest.approx(float(own.detach()), abs=1e-5)
    one = lab.one_step_logp(model, prompts, drawn)
    first = drawn.unmasked[0]
    torch.testing.assert_close(one[first], logp[first], atol=1e-5, rtol=0)  # the same context


def test_ends_are_damped(model):
    prompts = torch.tensor([lab.encoded("3,5:8=", lab.PROMPT, left=True)] * 64)
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.head.bias[lab.END] += 3
    plain = lab.decode(model, prompts, lab.Decoding((1,) * 8, 1.0))
    damped = lab.decode(model, prompts, lab.Decoding((1,) * 8, 0.0))
    ends = [(d.answers == lab.END)[d.unmasked[0]].sum() for d in (plain, damped)]
    assert ends[0] > ends[1] == 0


def test_rewards_are_those_of_the_task():
    puzzles = lab.Puzzles.of("train").first(2)
    right = [lab.encoded(row["completion"], lab.ANSWER, left=False) for row in puzzles.rows]
    assert lab.text_of(right[0]) == puzzles.rows[0]["completion"]
    answers = torch.tensor([right[0], right[0], right[1]])
    assert puzzles.rewards([0, 1, 1], answers).tolist() == [1, 0, 1]


def test_a_short_run(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "CASES", lab.CASES[:1])
    real = lab.Puzzles.of
    monkeypatch.setattr(lab.Puzzles, "of", lambda split: real(split).first(50))
    words = "--seeds 2 --policies 1 --imitation 2 --updates 1 --held-out 4"
    lab.main([*words.split(), "--picture", str(tmp_path / "masked.svg")])
    said = capsys.readouterr().out
    assert re.search(r"^2 \(1, 1\) +confident free +0\.\d+ \(", said, re.MULTILINE)
    assert len(re.findall(r"random 0\.\d{3}   confident 0\.\d{3}", said)) == 4
    assert "  trajectory less one step" in said
    assert (tmp_path / "masked.svg").read_text().count('fill="none"') == 4


def test_mistakes(tmp_path, refused):
    assert re.search("error: --policies must be at least 1", refused(lab.main, ["--policies", "0"]))
    assert re.search(
        "give seeds, and a folder",
        refused(lab.main, ["--seeds", "0", "--picture", str(tmp_path / "masked.svg")]),
    )
