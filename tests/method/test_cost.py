import pytest

from strop.method import notation
from strop.method.cost import costs, needs_of

ROUNDS = "further prompts until the batch is full"
POLICY = "a forward pass of the policy"
REFERENCE = "a reference policy and its forward pass"
HEAD = "the head's whole distribution in the update"


@pytest.mark.parametrize(
    ("recipe", "wanted"),
    [
        ("grpo", ()),
        ("grpo(beta=0.04)", (REFERENCE,)),
        ("dapo", (ROUNDS,)),
        ("dapo(max_rounds=1)", ()),
        ("gae", ("a critic",)),
        ("mc_grpo(num_epochs=3)", (POLICY, REFERENCE, "3 updates")),
        ("mc_grpo(num_epochs=1, beta=0)", ()),
        ("adaptive_entropy_coef", (HEAD,)),
        ("spo_chain(beta=0, num_minibatches=1)", ("further answers",)),
        ("igpo", ("forward passes over further texts",)),
        ("loop", (POLICY, "several updates")),
    ],
)
def test_work_beside_the_rollouts_and_one_update(recipe, wanted):
    assert costs(notation.recipe(recipe)) == wanted


@pytest.mark.parametrize(
    ("recipe", "taught"), [("sft", False), ("grpo(beta=0.04)", False), ("gkd", True)]
)
def test_a_teacher_is_needed_where_nothing_else_is_learned_from(recipe, taught):
    assert ("teacher" in needs_of(notation.recipe(recipe))) == taught
