"""Every recipe logs something that shows its own parts at work."""

from collections import Counter

from strop.catalogue import catalogue
from strop.method import notation
from strop.method.own import logged_at, metrics_of, own_metrics, own_uses, terms_at
from strop.method.part import Use, name_of
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.selection.keep_marked_tokens import KeepMarkedTokens
from strop.recipes.dr_grpo import dr_grpo
from strop.recipes.grpo import grpo
from strop.recipes.gspo import gspo
from strop.recipes.gspo_token import gspo_token
from strop.recipes.gvpo import gvpo
from strop.recipes.rloo import rloo

METHODS = {entry.name: notation.recipe(entry.name) for entry in catalogue.recipes()}
PARENTS = {e.name: METHODS.get(e.line("Parent")) for e in catalogue.recipes()}
# Parts that more recipes use are common, such as averages and the penalty on the reference.
FEW = 12
# Recipes whose own parts log nothing, and the metrics that show the recipe at work nevertheless.
SHOWN_BY = {
    "dro": "kl, of a penalty that many have: it has no ratio and no clip",
    "reinforce_plus_plus_baseline": "advantage/batch_std, as in its parent: its baseline is grpo's",
    "sft": "policy_loss, which is the negative log-likelihood",
}


def shows(name, users):
    """Whether a part that few have logs something, or any of its own where it has none of these."""
    own = own_uses(METHODS[name], PARENTS[name])
    few = {path: use for path, use in own.items() if users[name_of(use.part)] <= FEW} or own
    told = [metrics_of(term) for term in terms_at(METHODS[name], few)]
    return any(told) or any(logged_at(path, use) for path, use in few.items())


def test_every_recipe_shows_a_part_of_its_own_at_work():
    users = Counter()
    for method in METHODS.values():
        users.update({name_of(use.part) for _, use in method.uses()})
    assert {name for name in METHODS if not shows(name, users)} == SHOWN_BY.keys()


def test_own_parts_are_those_that_the_parent_has_nowhere():
    assert own_uses(dr_grpo(), grpo()).keys() == {"terms.policy.average"}
    assert own_uses(grpo(clip_high=0.3), grpo(clip_high=0.3)) == {}
    assert own_uses(grpo(clip_high=0.3), grpo()).keys() == {"terms.policy.objective"}
    assert own_uses(grpo(), None) == dict(grpo().uses())


def test_own_metrics_are_those_of_own_parts_and_terms_that_the_parent_lacks():
    assert own_metrics(gspo(), grpo()) == ("ratio/token_distance_mean",)
    # the part of the parent with another field: what that logs
    names = ("ratio/log_abs_mean", "ratio/token_distance_mean")
    assert own_metrics(gspo_token(), gspo()) == names
    assert own_metrics(gvpo(), rloo()) == ("answers/variance_mean", "loss/spring")
    assert own_metrics(grpo(), grpo()) == ()


def test_what_a_part_does_not_log_as_its_fields_stand():
    path, shift = "advantage.subtract_group_mean", "advantage/baseline_shift"
    assert logged_at(path, Use(SubtractGroupMean())) == frozenset()
    assert logged_at(path, Use(SubtractGroupMean(leave_one_out=True))) == {shift}
    assert own_metrics(rloo(), grpo()) == ("advantage/baseline_shift", "average/total")


def test_a_selection_of_a_term_takes_nothing_from_the_step():
    use = Use(KeepMarkedTokens())
    assert logged_at("selection.keep", use) == {"selection/dropped/unmarked_token"}
    assert logged_at("terms.policy.on", use) == frozenset()
