"""Draws: the hash, the distribution, the recorded numbers."""

import math

import numpy as np
import pytest
import torch

from strop.engines.base import Request
from strop.engines.rules import BanTokens, TopK, TopP
from strop.engines.sampling import ENTROPY, LOGP, LOGP_MODEL, TOP, draw, make_plan, mix, uniforms
from strop.support.errors import UserError

LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()


def sample(request: Request, number: int, logits: torch.Tensor = LOGITS):
    seeds = np.arange(number, dtype=np.uint64)
    uniform = torch.from_numpy(uniforms(seeds, np.full(number, 7, np.uint64)))
    plan = make_plan([request] * number, logits.shape[1], torch.device("cpu"))
    return draw(logits.expand(number, -1), plan, uniform)[:2]


def chi_square(token: torch.Tensor, probabilities: list[float]) -> float:
    count = torch.bincount(token, minlength=len(probabilities)).double()
    expected = torch.tensor(probabilities, dtype=torch.float64) * len(token)
    keep = expected > 0
    assert count[~keep].sum() == 0
    return float(((count - expected)[keep] ** 2 / expected[keep]).sum())


def test_hash_is_splitmix64():
    # first output of splitmix64 seeded with 0 (its state after one step is the golden constant)
    golden = np.array([0x9E3779B97F4A7C15], np.uint64)
    assert int(mix(golden)[0]) == 0xE220A8397B1DCDAF


def test_uniforms_are_uniform_and_uncorrelated():
    n = 20000
    zeros, counts = np.zeros(n, np.uint64), np.arange(n, dtype=np.uint64)
    for u in (uniforms(zeros, counts), uniforms(counts, zeros), uniforms(counts, counts)):
        assert 0 <= u.min() < u.max() < 1
        bins = np.bincount((u * 20).astype(int), minlength=20)
        assert ((bins - n / 20) ** 2 / (n / 20)).sum() < 43.8  # 0.1% point of chi-square, 19
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request((0,), 1), [0.5, 0.3, 0.15, 0.05]),
        (Request((0,), 1, temperature=0.5), [0.25, 0.09, 0.0225, 0.0025]),  # squares, over .365
        (Request((0,), 1, rules=(TopK(2),)), [0.5, 0.3, 0, 0]),
        (Request((0,), 1, rules=(BanTokens((0,)), TopP(0.9))), [0, 0.3, 0.15, 0]),
    ],
)
def test_frequencies_and_logp(request_, expected):
    probabilities = [x / sum(expected) for x in expected]
    token, record = sample(request_, 20000)
    assert chi_square(token, probabilities) < 16.3  # 0.1% point, 3 degrees of freedom
    for id, probability in enumerate(probabilities):
        logp = record[token == id, LOGP]
        assert (
            len(logp) == 0
            if probability == 0
            else torch.allclose(logp.exp(), 0 * logp + probability)
        )
    seen = {int(t): float(p) for t, p in zip(token, record[:, LOGP], strict=True)}
    assert sum(map(math.exp, seen.values())) == pytest.approx(1.0, abs=1e-12)


def test_statistics():
    want = frozenset({"entropy", "logp_model", "top"})
    request = Request((0,), 1, temperature=0.5, rules=(TopK(1),), num_top=2, want=want)
    token, record = sample(request, 1)
    # squares .25 .09 .0225 .0025, sum .365
    p = [x / 0.365 for x in (0.25, 0.09, 0.0225, 0.0025)]
    assert int(token) == 0
    assert float(record[0, LOGP]) == 0.0
    assert float(record[0, LOGP_MODEL]) == pytest.approx(math.log(p[0]))
    assert float(record[0, ENTROPY]) == pytest.approx(-sum(x * math.log(x) for x in p))
    # before temperature and rules: token 0 with .5, token 1 with .3
    assert record[0, TOP:].tolist() == pytest.approx([0, math.log(0.5), 1, math.log(0.3)])


def test_greedy_is_the_most_likely_allowed_token():
    token, record = sample(Request((0,), 1, temperature=0.0, want=frozenset({"logp_model"})), 50)
    assert set(token.tolist()) == {0}
    assert set(record[:, LOGP].tolist()) == {0.0}
    assert record[0, LOGP_MODEL].exp() == pytest.approx(0.5)
    token, _ = sample(Request((0,), 1, temperature=0.0, rules=(BanTokens((0,)),)), 50)
    assert set(token.tolist()) == {1}
    token, _ = sample(Request((0,), 1, temperature=0.0), 3, torch.zeros(1, 4))
    assert set(token.tolist()) == {0}


def test_mixed_rows_do_what_each_alone_does():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 9, generator=generator, dtype=torch.float64)
    requests = [
        Request((0,), 1),
        Request((0,), 1, rules=(TopK(2),), want=frozenset({"entropy"})),
        Request((0,), 1, temperature=0.0, num_top=3),
        Request((0,), 1, temperature=0.7, rules=(TopK(2),), want=frozenset({"logp_model"})),
        Request((0,), 1, temperature=2.0, num_top=1),
    ]
    uniform = torch.rand(5, generator=generator, dtype=torch.float64)
    device = torch.device("cpu")
    token, record, _ = draw(logits, make_plan(requests, 9, device), uniform)
    for i, request in enumerate(requests):
        alone, alone_record, _ = draw(
            logits[i : i + 1], make_plan([request], 9, device), uniform[i : i + 1]
        )
        assert int(alone) == int(token[i])
        wanted = ~alone_record[0].isnan()
        width = alone_record.shape[1]
        assert torch.allclose(record[i, :width][wanted], alone_record[0][wanted], atol=1e-12)


def test_nothing_wanted_means_two_columns():
    _, record = sample(Request((0,), 1), 3)
    assert record.shape == (3, 2)


def test_wrong_shape_from_a_rule():
    with pytest.raises(UserError, match="same shape"):
        sample(Request((0,), 1, rules=(lambda logits: logits[:, :2],)), 2)


@pytest.mark.parametrize("size", [1024, 1025, 2048, 4100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_vocabulary_is_drawn_from_by_blocks(size, dtype):
    """The token is that of the running sum over all, and never one of no weight."""
    torch.manual_seed(size)
    logits = (4 * torch.randn(300, size)).to(dtype)
    logits[torch.rand(300, size) < 0.7] = -torch.inf
    logits[:100, -200:] = -torch.inf  # whole blocks, the last one among them
    uniform = torch.rand(300, dtype=torch.float64)
    uniform[:60], uniform[60:120] = 0.0, 1 - 2.0**-52
    plan = make_plan([Request((0,), 1, want=frozenset({"entropy"}))] * 300, size,
                     torch.device("cpu"))  # fmt: skip
    token, record, _ = draw(logits, plan, uniform)
    weight = logits.double().softmax(-1)
    ends = weight.cumsum(-1)
    below = ends.gather(1, token[:, None])[:, 0] - weight.gather(1, token[:, None])[:, 0]
    assert (weight.gather(1, token[:, None]) > 0).all()
    # within the rounding of sums of float32
    aim, rounding = uniform * ends[:, -1], 1e-6
    assert (below - rounding <= aim).all()
    assert (aim <= below + weight.gather(1, token[:, None])[:, 0] + rounding).all()
    wanted = logits.double().log_softmax(-1)
    assert torch.allclose(record[:, LOGP_MODEL], wanted.gather(1, token[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(record[:, ENTROPY], torch.special.entr(weight).sum(-1), atol=1e-5)
