"""The loss kernel: splits change nothing, and adjoints equal those of the plain formula."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import ragged_batch

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method import notation, reading
from strop.method.part import Result, Selected, Term, Use
from strop.parts.loss.average.average_by_constant_length import AverageByConstantLength
from strop.parts.loss.average.average_over_tokens import AverageOverTokens
from strop.parts.loss.average.average_per_sequence import AveragePerSequence
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.loss.correction.weigh_by_engine_ratio import WeighByEngineRatio
from strop.parts.loss.penalty.penalise_full_kl_to_reference import PenaliseFullKlToReference
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference
from strop.parts.loss.penalty.reward_entropy import RewardEntropy
from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.training.learner import kernel
from strop.training.learner.kernel import Tally, View

SEEDS = st.integers(0, 10_000)


def policy(**slots) -> Term:
    filled = {
        "objective": Use(ClipBothSides()),
        "average": Use(AveragePerSequence()),
        "ratio": Use(RatioPerToken()),
        **slots,
    }
    return Term("policy", **filled)


KL = Term("kl", Use(PenaliseKlToReference()), Use(AverageOverTokens()), coef=0.1)
ENTROPY = Term("entropy", Use(RewardEntropy()), Use(AverageOverTokens()), coef=0.01)
TOKEN_TERMS = (policy(correction=Use(WeighByEngineRatio())), KL, ENTROPY)
SEQUENCE_TERMS = (policy(ratio=Use(RatioPerSequence())), KL)


def current(batch: Batch, terms) -> dict[str, torch.Tensor]:
    return {name: batch[name] for name in kernel.current_columns(terms)}


def whole(terms, batch):
    """Loss, adjoints and metrics of one path over all rows."""
    prepared, tally = kernel.prepare(terms, batch), Tally()
    loss, found = kernel.adjoints(terms, View(prepared), current(prepared, terms), tally)
    return loss, found, tally


def close(one, other):
    return torch.allclose(one, other, rtol=0, atol=1e-12)


def sane(tally):
    assert all(weight > 0 for _, weight in tally.sums.values())
    return tally.means()


@given(SEEDS)
def test_adjoints_are_those_of_the_plain_formula(seed):
    batch = ragged_batch(seed)
    loss, found, tally = whole(TOKEN_TERMS, batch)
    logp = batch["logp_T"].clone().requires_grad_()
    entropy = batch["entropy_T"].clone().requires_grad_()
    gradient_T, counts_T = batch["gradient_T"], batch["denominator_T"]
    plain = torch.zeros((), dtype=torch.float64)
    counting = sum(bool(counts_T[batch["rollout_T"] == i].any()) for i in range(batch.size("B")))
    for t in range(batch.size("T")):
        if not gradient_T[t]:
            continue
        ratio = (logp[t] - batch["logp_old_T"][t]).exp()
        advantage = batch["advantage_T"][t]
        objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        engine = (batch["logp_old_T"][t] - batch["logp_behavior_T"][t]).exp().clamp(max=2)
        own = int((counts_T & (batch["rollout_T"] == batch["rollout_T"][t])).sum())
        plain = plain - engine * objective / (own * counting)
        d = logp[t] - batch["logp_ref_T"][t]
        plain = plain + 0.1 * ((-d).exp() + d - 1) / int(counts_T.sum())
        plain = plain - 0.01 * entropy[t] / int(counts_T.sum())
    if not gradient_T.any():
        assert float(loss) == 0
        return
    by_hand = torch.autograd.grad(plain, [logp, entropy])
    assert close(loss, plain.detach())
    assert close(found["logp_T"], by_hand[0])
    assert close(found["entropy_T"], by_hand[1])
    assert sum(tally.losses.values()) == pytest.approx(float(loss), abs=1e-12)


@given(SEEDS, st.integers(1, 40))
@pytest.mark.parametrize("terms", [TOKEN_TERMS, SEQUENCE_TERMS])
def test_micro_batches_sum_to_the_whole(terms, seed, budget):
    batch = ragged_batch(seed)
    loss, found, tally = whole(terms, batch)
    prepared, parts_tally = kernel.prepare(terms, batch), Tally()
    total = torch.zeros((), dtype=torch.float64)
    joined = {name: torch.zeros_like(value) for name, value in found.items()}
    for index_B in batch.split(budget):
        micro = prepared.take(index_B)
        part, some = kernel.adjoints(terms, View(micro), current(micro, terms), parts_tally)
        total = total + part
        rows = segments.rows_of(batch["rollout_T"], index_B, batch.size("B"))
        for name, value in some.items():
            joined[name][rows] = value
    assert close(total, loss)
    assert all(close(joined[name], value) for name, value in found.items())
    assert parts_tally.means() == pytest.approx(tally.means(), abs=1e-12)
    told = {name: float(loss) for name, loss in tally.losses.items()}
    assert {k: float(v) for k, v in parts_tally.losses.items()} == pytest.approx(told, abs=1e-12)


@given(SEEDS, st.integers(1, 9))
def test_chunks_of_tokens_sum_to_the_whole_in_token_scope(seed, size):
    assert kernel.scope_of(TOKEN_TERMS) == "token"
    batch = ragged_batch(seed)
    loss, found, tally = whole(TOKEN_TERMS, batch)
    prepared, parts_tally = kernel.prepare(TOKEN_TERMS, batch), Tally()
    total, chunks = torch.zeros((), dtype=torch.float64), []
    for start in range(0, batch.size("T"), size):
        rows = slice(start, start + size)
        columns = {name: c[rows] for name, c in current(prepared, TOKEN_TERMS).items()}
        part, some = kernel.adjoints(TOKEN_TERMS, View(prepared, rows), columns, parts_tally)
        total, chunks = total + part, [*chunks, some]
    assert close(total, loss)
    for name, value in found.items():
        assert close(torch.cat([chunk[name] for chunk in chunks]), value)
    assert parts_tally.means() == pytest.approx(tally.means(), abs=1e-12)


SHARES = {
    "average_over_tokens": lambda tokens: 1.0,
    "average_per_sequence": lambda tokens: 1.0,
    "average_by_constant_length(length=1, per_rollout=False)": sum,
    "average_by_constant_length(length=1)": lambda tokens: sum(tokens) / len(tokens),
    "average_by_constant_length": lambda tokens: sum(tokens) / len(tokens) / 8,
}


@given(SEEDS)
@pytest.mark.parametrize("name", SHARES)
def test_shares_sum_to_what_the_average_says(name, seed):
    batch = ragged_batch(seed)
    term = policy(average=reading.chain(name)[0])
    share_T = kernel.prepare([term], batch)["policy:share_T"]
    tokens = segments.count(batch["rollout_T"], batch.size("B"), batch["denominator_T"])
    counting = [n for n in tokens.tolist() if n]
    expected = SHARES[name](counting) if counting else 0.0
    assert float(share_T.sum()) == pytest.approx(expected)
    assert (share_T[~batch["denominator_T"]] == 0).all()


class OnlyFirst:
    """Rows of the first rollout."""

    def __call__(self, rollout_T):
        return rollout_T == 0


def test_a_narrowed_term_narrows_gradient_and_denominator():
    batch = ragged_batch(5, (2, 2))
    batch = batch.set(gradient_T=batch["mask_T"], denominator_T=batch["mask_T"])
    term = policy(on=Use(OnlyFirst()), average=Use(AverageOverTokens()))
    prepared = kernel.prepare([term], batch)
    first_T = (batch["rollout_T"] == 0) & batch["mask_T"]
    assert int(first_T.sum()) > 1
    assert prepared["policy:rows_T"].equal(first_T)
    assert prepared["policy:share_T"].equal(first_T / first_T.sum().double())
    _, found, _ = whole([term], batch)
    assert (found["logp_T"][~first_T] == 0).all()


def test_other_learners_start_from_the_mask():
    batch = ragged_batch(4)
    nothing = torch.zeros_like(batch["mask_T"])
    batch = batch.set(gradient_T=nothing, denominator_T=nothing)
    critic = Term("critic", Use(RewardEntropy()), Use(AverageOverTokens()), learner="critic")
    prepared = kernel.prepare([critic, ENTROPY], batch)
    assert prepared["critic:rows_T"].equal(batch["mask_T"])
    assert not prepared["entropy:rows_T"].any()


def test_scope_is_the_widest():
    assert kernel.scope_of([KL]) == "token"
    assert kernel.scope_of(SEQUENCE_TERMS) == "rollout"
    assert kernel.scope_of(notation.recipe("clip_cov").terms) == "update"


def test_current_columns_are_those_that_are_read():
    assert kernel.current_columns([policy()]) == ("logp_T",)
    assert kernel.current_columns([ENTROPY]) == ("logp_T", "entropy_T")


def test_view_hides_noise_and_slices():
    batch = ragged_batch(5)
    noisy = torch.where(batch["mask_T"], batch["logp_old_T"], float("nan"))
    view = View(batch.set(logp_old_T=noisy), slice(2, 6))
    assert view["logp_old_T"].equal((batch["logp_old_T"] * batch["mask_T"])[2:6])
    assert view["rollout_T"].equal(batch["rollout_T"][2:6])
    assert view["reward_B"].equal(batch["reward_B"])
    assert "logp_T" in view
    assert "nothing_T" not in view
    changed = view.with_columns(logp_old_T=torch.zeros(4, dtype=torch.float64))
    assert (changed["logp_old_T"] == 0).all()
    assert not (view["logp_old_T"] == 0).all()


class Reporting:
    """A number for all tokens beside a number for each."""

    def __call__(self, logp_T):
        return Result(logp_T, metrics={"number": 3, "each": (logp_T < -1).double()})


def test_metrics_are_numbers_or_one_per_token():
    batch = ragged_batch(6)
    batch = batch.set(gradient_T=batch["mask_T"], denominator_T=batch["mask_T"])
    _, _, tally = whole([Term("t", Use(Reporting()), Use(AverageOverTokens()))], batch)
    share = (batch["logp_T"][batch["mask_T"]] < -1).double().mean()
    assert sane(tally) == pytest.approx({"number": 3.0, "each": float(share)})


def test_an_empty_tally_has_mean_zero():
    tally = Tally()
    tally.add("x", 0.0, 0.0)
    assert tally.means() == {"x": 0.0}


@given(SEEDS, st.integers(1, 9))
def test_distribution_terms_through_the_head_equal_the_dense_ones(seed, size):
    """Chunk by chunk: adjoint times objective sums to the loss of the dense term."""
    batch = ragged_batch(seed)
    batch = batch.narrow(batch["mask_T"])
    rng = torch.Generator().manual_seed(seed)
    logq = {
        name: torch.log_softmax(
            torch.randn((batch.size("T"), 4), generator=rng, dtype=torch.float64), dim=-1
        )
        for name in ("logq_TV", "logq_ref_TV")
    }
    term = Term("kl", Use(PenaliseFullKlToReference()), Use(AverageOverTokens()), coef=0.3)
    assert kernel.is_distribution(term)
    prepared = kernel.prepare([term], batch)
    dense = kernel.term_loss(term, View(prepared, current=logq), Tally())
    total = torch.zeros((), dtype=torch.float64)
    told = {}
    asked = kernel.distributions([term], View(prepared), told)["distribution:kl"]
    assert asked.reads == ("logq_ref_TV",)
    for start in range(0, batch.size("T"), size):
        rows = slice(start, start + size)
        reference_TV = logq["logq_ref_TV"][rows]
        objective_T = asked.objective(rows, logq["logq_TV"][rows], logq_ref_TV=reference_TV)
        adjoint_T = kernel.distribution_adjoints([term], View(prepared, rows))["distribution:kl"]
        total = total + (adjoint_T * objective_T).sum()
    assert close(total, dense)
    values_T = PenaliseFullKlToReference()(**logq).metrics["kl"]
    torch.testing.assert_close(told["metric:kl:kl"], values_T)
    _, found = kernel.adjoints([term], View(prepared), current(prepared, [term]), Tally())
    assert (found["logp_T"] == 0).all()


class OnlyFirstLearns:
    """Gradient on the rows of the first rollout; all rows count."""

    def __call__(self, rollout_T, gradient_T):
        return Selected((rollout_T == 0) & gradient_T, gradient_T, "not_first")


def test_a_selection_part_narrows_one_term():
    batch = ragged_batch(5, (2, 2))
    batch = batch.set(gradient_T=batch["mask_T"], denominator_T=batch["mask_T"])
    narrow = policy(on=Use(OnlyFirstLearns()), average=Use(AverageOverTokens()))
    prepared = kernel.prepare([narrow, ENTROPY], batch)
    mask_T, first_T = batch["mask_T"], batch["rollout_T"] == 0
    assert prepared["policy:rows_T"].equal(first_T & mask_T)
    assert prepared["policy:share_T"].equal(mask_T / mask_T.sum().double())
    assert prepared["entropy:rows_T"].equal(mask_T)


def test_what_an_average_tells_is_logged():
    batch = ragged_batch(1)
    term = Term("policy", Use(FollowAdvantage()), Use(AverageByConstantLength(10)))
    tally = kernel.Tally()
    prepared = kernel.prepare([term], batch, tally=tally)
    total = float(prepared["policy:share_T"].sum())
    assert total > 0
    assert tally.means() == {"average/total": pytest.approx(total)}
