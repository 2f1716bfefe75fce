"""Parameters that a recipe inherits from its parent."""

import inspect

import pytest

from strop.catalogue import catalogue
from strop.catalogue.entries import Field
from strop.method import notation
from strop.method.algorithm import Algorithm
from strop.recipes._base import CLIP, ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


@inherits(grpo, without=(*ESTIMATOR, *CLIP, "beta"), num_rollouts=8)
def narrow(*, width: float = 0.3, num_prompts: int = 4, **parent):
    """A docstring."""
    assert sorted(parent) == ["aggregation", "num_minibatches", "num_rollouts"]
    return grpo(clip_high=width, num_prompts=num_prompts + 1, **parent)


@inherits(narrow, without=("width",), aggregation="token-sum")
def narrower(**parent):
    return narrow(width=0.1, **parent)


def parameters(recipe):
    return {p.name: p.default for p in inspect.signature(recipe).parameters.values()}


def test_signature_has_own_parameters_first_then_the_parents_with_changed_defaults():
    assert list(parameters(narrow).items()) == [
        ("width", 0.3),
        ("num_prompts", 4),
        ("aggregation", "seq-mean-token-mean"),
        ("num_rollouts", 8),
        ("num_minibatches", 1),
    ]
    assert parameters(narrower) == {
        "num_prompts": 4, "aggregation": "token-sum", "num_rollouts": 8, "num_minibatches": 1,
    }  # fmt: skip
    signature = inspect.signature(narrow)
    assert signature.return_annotation is Algorithm
    assert signature.parameters["num_rollouts"].annotation is int
    assert {p.kind for p in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert (narrow.__name__, narrow.__doc__) == ("narrow", "A docstring.")


def test_defaults_and_given_values_reach_the_parent():
    assert narrow() == grpo(clip_high=0.3, num_prompts=5, num_rollouts=8)
    assert narrow(num_rollouts=3, num_prompts=1, aggregation="token-mean") == grpo(
        clip_high=0.3, num_prompts=2, num_rollouts=3, aggregation="token-mean"
    )
    assert narrower(num_rollouts=2) == grpo(
        clip_high=0.1, num_prompts=5, num_rollouts=2, aggregation="token-sum"
    )
    assert grpo() == grpo(num_rollouts=16)


@pytest.mark.parametrize("unknown", ["beta", "eps", "clip_high", "num_rollout", "parent"])
def test_what_is_left_out_or_unknown_is_refused_as_python_does(unknown):
    message = rf"narrow\(\) got an unexpected keyword argument '{unknown}'"
    with pytest.raises(TypeError, match=message):
        narrow(**{unknown: 1})
    with pytest.raises(TypeError, match=r"takes .*positional argument"):
        narrow(0.3)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"without": ("bta",)}, "bta"),
        ({"bta": 0.1}, "bta"),
        ({"width": 0.1}, "width"),
        ({"without": ("beta",), "beta": 0.1}, "beta"),
    ],
)
def test_only_what_the_parent_has_can_be_left_out_or_changed(options, name):
    with pytest.raises(UserError, match=f"child inherits no {name} from grpo"):

        @inherits(grpo, **options)
        def child(*, width: float = 0.3, **parent):
            return grpo(**parent)


def test_a_parameter_of_its_own_replaces_the_parents():
    """`without` may name it too, as a group of names does."""
    for without in (ESTIMATOR, tuple(name for name in ESTIMATOR if name != "eps")):

        @inherits(grpo, without=without)
        def child(*, eps: float = 0.5, **parent):
            return grpo(eps=2 * eps, **parent)

        assert next(iter(parameters(child))) == "eps"
        assert "std" not in parameters(child)
        assert child() == grpo(eps=1.0)


RECIPES = '''
from typing import Any

from strop.method.algorithm import Algorithm
from strop.recipes._base import CLIP as BAND
from strop.recipes._inherit import inherits
from strop.recipes.reinforce_plus_plus import reinforce_plus_plus as root

MORE = ("num_prompts", *BAND)


@inherits(root, without=(*MORE, "beta"), whiten_eps=1e-3)
def child(
    *,
    # Of its own.
    width: float = 0.3,
    **parent: Any,
) -> Algorithm:
    """A title."""
    return root(**parent)


@inherits(child, without=("gamma",))
def grandchild(*, num_rollouts: int = 4, **parent: Any) -> Algorithm:
    """Another title."""
    return child(num_rollouts=num_rollouts, **parent)
'''


def test_the_catalogue_follows_to_the_parent_without_importing(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "child.py").write_text(RECIPES)
    monkeypatch.setattr(catalogue, "SOURCE", tmp_path)
    child, grandchild = catalogue.recipes.__wrapped__()
    assert child.fields[0] == Field("width", "float", "0.3", "Of its own.")
    named = {field.name: field for field in child.fields}
    assert list(named) == [
        "width", "gamma", "whiten_eps", "aggregation", "num_rollouts", "num_minibatches",
    ]  # fmt: skip
    gamma = "Discount of a token; 1: the outcome reaches all tokens alike."
    assert named["gamma"] == Field("gamma", "float", "1.0", gamma)
    assert named["whiten_eps"].default == "0.001"
    assert named["whiten_eps"].comment == "Added to the variance of the whitening."
    assert named["aggregation"].default == "'seq-mean-token-mean'"
    assert [(f.name, f.default) for f in grandchild.fields] == [
        ("num_rollouts", "4"),
        ("width", "0.3"),
        ("whiten_eps", "0.001"),
        ("aggregation", "'seq-mean-token-mean'"),
        ("num_minibatches", "1"),
    ]


def test_a_users_recipe_inherits_too(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(RECIPES)
    name = f"{file}:grandchild"
    built = notation.build_recipe(name, {"whiten_eps": 0.5})
    assert built.paths()["advantage.whiten_over_batch_tokens.eps"] == 0.5
    assert built.sampling[0].part.num_rollouts == 4
    message = (
        "has no parameter num_rollout, did you mean num_rollouts.*it has num_rollouts, width, "
        "whiten_eps, aggregation"
    )
    with pytest.raises(UserError, match=message):
        notation.build_recipe(name, {"num_rollout": 3})
