"""Tinker's API without the package: what is known before any request to a server."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import flat_batch
from models import Lab

from strop.integrations.tinker import Sequences, _fixed
from strop.method import notation
from strop.support.errors import UserError
from strop.training.learner import kernel
from strop.training.learner.kernel import Tally, View
from strop.training.loading import load_model
from strop.training.settings import config

NUM = 6


def weights(recipe: str, **old: Any) -> torch.Tensor | None:
    """The weights of six tokens in an update, where they do not depend on the policy of now."""
    terms = list(notation.recipe(recipe).algorithms[0].terms)
    masks = dict.fromkeys(("gradient_T", "denominator_T"), torch.ones(NUM, dtype=torch.bool))
    batch = flat_batch((3, 3), advantage_T=[1.0, 1.0, 1.0, -2.0, -2.0, -2.0]).set(**masks, **old)
    prepared = kernel.prepare(terms, batch, torch.Generator(), Tally())

    def adjoints_of(rows: slice, columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        fresh = {} if old else {"logp_old_T": columns["logp_T"].detach()}
        view = View(prepared, rows, fresh)
        return kernel.adjoints(terms, view, columns, Tally(), rng=torch.Generator())[1]

    return _fixed(adjoints_of, NUM)


def test_an_on_policy_gradient_is_known_without_the_policy() -> None:
    """grpo, one update: advantage / (2 answers of 3 tokens); a ratio to older ones is not known."""
    known = weights("grpo")
    assert known is not None
    assert known.tolist() == pytest.approx([1 / 6] * 3 + [-1 / 3] * 3)
    old = {"logp_old_T": torch.full((NUM,), -1.0)}
    assert weights("grpo", **old) is None
    assert weights("gspo", **old) is None


def test_sequences_have_weights_behind_their_tokens() -> None:
    """Two contexts of which one has tokens of the policy: a weight stands before its token."""
    batch = flat_batch((4, 2), id_T=[5, 6, 7, 8, 9, 4])
    mask_T = torch.tensor([0, 0, 1, 1, 0, 0]).bool()
    found = Sequences.of(batch.set(mask_T=mask_T))
    assert [ids.tolist() for ids in found.ids] == [[5, 6, 7, 8]]
    assert found.spread([torch.tensor([-0.1, -0.2, -0.3])]).tolist() == pytest.approx(
        [0, 0, -0.2, -0.3, 0, 0]
    )
    with pytest.raises(UserError, match="an answer without a prompt"):
        Sequences.of(batch.set(mask_T=torch.ones(6, dtype=torch.bool)))


def test_the_package_is_named_where_it_is_not_there(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tinker", None)
    settings = config.make(lab.raw(engine={"kind": "tinker"}))
    with pytest.raises(UserError, match=r"needs the package tinker .*'strop\[tinker\]'"):
        load_model(settings)
    several: Any = SimpleNamespace(alone=False)
    with pytest.raises(UserError, match="has the model elsewhere, for one process"):
        load_model(settings, ranks=several)
