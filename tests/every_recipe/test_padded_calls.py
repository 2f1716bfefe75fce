"""Every recipe through padded calls: invariances and gradients."""

import functools
import re
from pathlib import Path

import pytest
import torch
from differences import slopes_by_differences
from every import every
from padded import inputs_for, names_of, padded, rows, with_noise

from strop import functional
from strop.batch.columns import has_gradient
from strop.catalogue import catalogue
from strop.method import notation
from strop.padded.names import learning_parts
from strop.training.learner import kernel

NAMES = [entry.name for entry in catalogue.recipes()]
# With the defaults, and with a penalty towards the reference where there is none by default.
WITH_PARAMS = [(name, {}) for name in NAMES] + [
    (entry.name, {"beta": 0.1})
    for entry in catalogue.recipes()
    if ("beta", "0.0") in {(field.name, field.default) for field in entry.fields}
]
PAGE = Path(__file__).parents[2] / "docs" / "PADDED.md"
every_recipe = every("recipe", NAMES)
FIRST_WITH: dict[object, tuple[str, dict[str, float]]] = {}  # the first method of some terms


@functools.cache
def plain(recipe):
    """The results of all calls, which several tests compare with those of changed inputs."""
    return call_all(recipe)


def call_all(recipe, change=lambda given: given):
    """The results of all calls, [B, T], on inputs that `change` has changed."""
    advantages = functional.advantages(recipe, **change(inputs_for(recipe, "advantages", 0)))
    chosen = functional.selection(recipe, **change(inputs_for(recipe, "selection", 0)))
    given = change(inputs_for(recipe, "policy_loss", 0))
    loss, metrics = functional.policy_loss(recipe, **given)
    weights = functional.token_weights(recipe, **given)
    assert all(isinstance(value, float) for value in metrics.values())
    return loss, metrics, [advantages, *chosen, weights]


def close(one, other):
    return torch.allclose(one.double(), other.double(), rtol=1e-9, atol=1e-12)


@every_recipe
def test_finite_float64_and_zero_outside_the_mask(recipe):
    loss, metrics, results = plain(recipe)
    assert loss.dtype == torch.float64
    assert loss.dim() == 0
    assert torch.isfinite(loss)
    assert sum(value for name, value in metrics.items() if name.startswith("loss/")) == (
        pytest.approx(float(loss), abs=1e-12)
    )
    masks = [inputs_for(recipe, call, 0)["mask"] for call in ("advantages", "selection")]
    loss_mask = inputs_for(recipe, "policy_loss", 0)["mask"]
    for result, mask in zip(results, [*masks, masks[1], loss_mask], strict=True):
        assert result.shape == mask.shape
        assert torch.isfinite(result.double()).all()
        assert not result[~mask].any()
    assert results[0].dtype == results[3].dtype == torch.float64


@every_recipe
def test_nothing_outside_the_mask_no_padding_and_no_order_of_rollouts_matters(recipe):
    """All three at once: NaN outside the mask, more positions, and the rollouts shuffled."""
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    loss, _, results = plain(recipe)
    other_loss, _, others = call_all(recipe, functools.partial(disturbed, order=order))
    assert close(other_loss, loss)
    for one, other in zip(others, results, strict=True):
        assert close(one[:, :-2], other[order])
        assert not one[:, -2:].any()


def disturbed(given, order):
    return rows(padded(with_noise(given), 2), order)


@every("method", WITH_PARAMS, lambda method: method[0] + "(beta=0.1)" * bool(method[1]))
def test_gradient_is_that_of_finite_differences(method):
    """In every tensor that carries gradient, with stopped gradients held; off its kinks.

    Once for all recipes that have the same loss.
    """
    recipe, params = method
    algorithm = notation.build_recipe(recipe, params).algorithms[-1]
    if FIRST_WITH.setdefault(algorithm.terms, method) is not method:
        return
    given = inputs_for(recipe, "policy_loss", 0, (3, 5), params)
    reads = algorithm.reads(("terms",)) | {"logp_T"}
    for term in algorithm.terms:
        reads -= getattr(term.objective.part, "detached", frozenset())
    names = names_of(recipe, params)
    current = set(filter(has_gradient, reads))
    of_tokens = any(not kernel.is_distribution(term) for term in algorithm.terms)
    for name in given:
        if not current & {*names.fills.get(name, ())}:
            continue
        if name == "logp" and not of_tokens:  # all of the loss goes through logits
            continue

        def loss(tensor, name=name):
            inputs = {**given, name: tensor, "params": params}
            return functional.policy_loss(recipe, **inputs)[0]

        analytic, found, numeric = slopes_by_differences(loss, given[name])
        assert torch.allclose(found, numeric, rtol=1e-5, atol=1e-8)
        if name in ("logp", "logits"):
            assert (analytic != 0).any()
        if name == "logp":
            weights = functional.token_weights(recipe, **given, params=params)
            assert weights.equal(-analytic)


@every_recipe
def test_missing_and_unknown_tensors_are_named(recipe):
    for call, function in (
        ("advantages", functional.advantages),
        ("selection", functional.selection),
        ("policy_loss", functional.policy_loss),
    ):
        given, fills = inputs_for(recipe, call, 0), names_of(recipe).fills
        with pytest.raises(functional.UserError, match=r"takes no logp_odl.*it takes .*mask"):
            function(recipe, **given, logp_odl=given["mask"])
        for name, must in functional.inputs(recipe, call).items():
            if must and name in given and name not in ("mask", "rewards", "groups", "advantages"):
                fewer = {k: v for k, v in given.items() if k != name}
                if name == "logp" or any({*fills[name]} & {*fills.get(k, ())} for k in fewer):
                    continue
                with pytest.raises(functional.UserError, match=f"needs .*{name}"):
                    function(recipe, **fewer)


ROWS = dict(
    re.findall(
        r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text().partition("next_state carries")[2], re.M
    )
)


@every_recipe
def test_next_state_serves_what_the_page_says(recipe):
    said, given, metrics = ROWS.get(recipe, ""), inputs_for(recipe, "next_state", 0), {}
    if "refused" in said:
        with pytest.raises(functional.UserError, match="which only a run has"):
            functional.next_state(recipe, **given)
        return
    if "`texts`" in said:
        with pytest.raises(functional.UserError, match="needs texts"):
            functional.next_state(recipe, **given)
        given["texts"] = [str(group) for group in given["groups"].tolist()]
    if "`state` with" in said:
        with pytest.raises(functional.UserError, match="give state="):
            functional.next_state(recipe, **given)
        path = next(path for path, _, _ in learning_parts(names_of(recipe).algorithm))
        given["state"] = {path: {"ranking": (3, 1, 2)}}
    for _ in range(4):  # metrics of the step that controls look for
        try:
            state = functional.next_state(recipe, **given, metrics=metrics)
        except functional.UserError as error:
            (wanted,) = re.findall(r"needs the metric (\S+):", str(error))
            metrics[wanted] = 0.3
    assert bool(set(state) - {"knobs"} or state["knobs"]) == bool(said)


def nobody(inputs):
    return rows(inputs, torch.tensor([], dtype=torch.int64))


def masked(inputs):
    return {**inputs, "mask": torch.zeros_like(inputs["mask"])}


def alone(inputs):
    return rows(inputs, torch.tensor([0]))


@every_recipe
def test_no_rollout_no_token_and_one_rollout(recipe):
    for change in (nobody, masked, alone):
        check_few(recipe, change)


def check_few(recipe, change):
    loss, metrics, results = call_all(recipe, change)
    assert torch.isfinite(loss)
    assert all(value == value for value in metrics.values())
    for result in results:
        assert torch.isfinite(result.double()).all()
    if change is not alone:
        assert float(loss) == 0
        assert not any(result.any() for result in results)
