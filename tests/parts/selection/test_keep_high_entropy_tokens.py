import pytest
import torch
from builders import flat_batch, ragged_batch, run
from hypothesis import given
from hypothesis import strategies as st

from strop.parts.selection.keep_high_entropy_tokens import KeepHighEntropyTokens
from strop.support.errors import UserError

ENTROPIES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0]


def _kept(part, batch):
    return run(part, batch).value.gradient_T.nonzero().squeeze(1).tolist()


def test_worked_example():
    # the 0.8-quantile lies 0.2 of the way from .8 to 1.2: .88
    batch = flat_batch((4, 6), entropy_old_T=ENTROPIES)
    found = run(KeepHighEntropyTokens(), batch)
    assert found.value.gradient_T.tolist() == [False] * 8 + [True] * 2
    assert found.value.denominator_T.equal(found.value.gradient_T)
    assert found.metrics["entropy_control/threshold"] == 1.2
    full = run(KeepHighEntropyTokens(normaliser="full"), batch).value
    assert full.gradient_T.equal(found.value.gradient_T)
    assert full.denominator_T.all()


@given(seed=st.integers(0, 1000), share=st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 0.7, 1.0]))
def test_is_torchs_quantile_over_tokens_with_gradient(seed, share):
    batch = ragged_batch(seed)
    rows_T = batch["gradient_T"]
    entropy_N = batch["entropy_old_T"][rows_T]
    threshold = torch.quantile(entropy_N, 1 - share) - 1e-12
    expected_T = rows_T & (batch["entropy_old_T"] >= threshold)
    assert run(KeepHighEntropyTokens(share), batch).value.gradient_T.equal(expected_T)


def test_topk_keeps_an_exact_number():
    batch = flat_batch((10,), entropy_old_T=[0.5] * 10)
    assert len(_kept(KeepHighEntropyTokens(0.35, "topk"), batch)) == 3
    assert len(_kept(KeepHighEntropyTokens(0.35), batch)) == 10  # ties all reach the threshold
    batch = flat_batch((4, 6), entropy_old_T=ENTROPIES)
    assert _kept(KeepHighEntropyTokens(0.01, "topk"), batch) == [9]
    assert _kept(KeepHighEntropyTokens(0.5, "topk"), batch) == [5, 6, 7, 8, 9]


@given(seed=st.integers(0, 1000), share=st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_others_is_the_complement_among_tokens_with_gradient(seed, share):
    batch = ragged_batch(seed)
    kept = run(KeepHighEntropyTokens(share), batch).value
    rest = run(KeepHighEntropyTokens(share, others=True), batch).value
    assert not (kept.gradient_T & rest.gradient_T).any()
    assert (kept.gradient_T | rest.gradient_T).equal(batch["gradient_T"])
    assert rest.denominator_T.equal(rest.gradient_T)


def test_edges():
    batch = flat_batch((4, 6), entropy_old_T=ENTROPIES)
    assert _kept(KeepHighEntropyTokens(1.0), batch) == list(range(10))
    assert _kept(KeepHighEntropyTokens(0.0), batch) == [9]
    none = batch.set(gradient_T=torch.zeros(10, dtype=torch.bool))
    for method in ("quantile", "topk"):
        assert _kept(KeepHighEntropyTokens(method=method), none) == []
    some = batch.set(gradient_T=torch.arange(10) < 5)
    assert _kept(KeepHighEntropyTokens(), some) == [4]
    for field, value in (("share", 1.1), ("method", "top"), ("normaliser", "none")):
        with pytest.raises(UserError, match=field):
            KeepHighEntropyTokens(**{field: value})
