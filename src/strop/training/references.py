"""The reference of a run: its starting weights, another model, or one behind a server."""

import copy
from typing import Any

from strop.batch.columns import OF_REFERENCE
from strop.method.algorithm import Method
from strop.method.cost import needs_of
from strop.support.errors import UserError
from strop.training.learner import prefix_sharing
from strop.training.learner.adapters import is_adapter
from strop.training.learner.models import Loaded, Remote
from strop.training.learner.policy import Policy
from strop.training.learner.served_reference import ServedReference, is_served
from strop.training.loading import load_model
from strop.training.settings.config import RunConfig
from strop.training.settings.players import RolesSettings


def reference_of(
    config: RunConfig, method: Method, policy: Policy, loaded: Loaded
) -> Policy | None:
    """The policy that reference terms compare with, if something reads it: `model.reference`, or
    the starting weights, as a frozen copy or as the same model with its adapters off. A reference
    that is renewed is always a copy.

    Raises UserError for a reference that is renewed and not read; for a `model.reference` that
    nothing reads, that would be renewed, or that has other tokens; and where the policy would learn
    from its own starting weights alone.
    """
    reads, renews = method.reads(), "moves_reference" in method.facts()
    if config.model.reference:
        _check_read(config, OF_REFERENCE & reads, renews)
        if is_served(config.model.reference):
            return None
        return _teacher(config, OF_REFERENCE & reads, policy, loaded)
    if not OF_REFERENCE & reads:
        if renews:
            raise UserError(
                "control: renew_reference has nothing to renew, no part reads a reference policy: "
                "leave it out, or add a penalty such as penalise_kl_to_reference"
            )
        return None
    if "teacher" in needs_of(method):
        raise UserError(
            "the method learns from its reference alone, and that is the model that the run begins "
            "with: name a teacher with model.reference=FOLDER"
        )
    if isinstance(loaded, Remote):
        return loaded.frozen()
    if loaded.adapter is not None and not renews:
        model, switch = loaded.model, loaded.without_adapter
        return Policy(model, policy.token_budget, policy.share, switch=switch, ranks=policy.ranks)
    frozen: Any = policy.ranks.shard(copy.deepcopy(policy.model).requires_grad_(False).eval())
    return Policy(frozen, policy.token_budget, policy.share, ranks=policy.ranks)


def _check_read(config: RunConfig, reads: frozenset[str], renews: bool) -> None:
    """Raise UserError for another model as the reference that nothing reads or that is renewed."""
    if not reads or renews:
        why = (
            "the method gives its reference the policy's weights (renew_reference)" if renews else
            "no part of the method reads a reference policy: take on_policy_distillation, or add a "
            "part such as credit_reference_likelihood"
        )  # fmt: skip
        raise UserError(f"model.reference={config.model.reference}: {why}")


def served_of(config: RunConfig, method: Method, loaded: Loaded) -> ServedReference | None:
    """The reference behind a server, where `model.reference` names one. Raises UserError for a
    method that reads more of it than the drawn tokens.
    """
    name = config.model.reference
    if not is_served(name):
        if config.model.reference_api_key_env:
            raise UserError(
                "model.reference_api_key_env: no server asks for it, since model.reference is no "
                "http:// address: leave it out"
            )
        return None
    wide = sorted(OF_REFERENCE & method.reads() - {"logp_ref_T"})
    if wide:
        raise UserError(
            f"model.reference={name}: the method reads {wide[0]}, of every token of the "
            "vocabulary, and a server gives the log-probability of the drawn token alone: name a "
            "folder, or take on_policy_distillation or opsd(sampled=True)"
        )
    for part in (algorithm.rollout.part for algorithm in method.algorithms):
        if part.temperature != 1 or part.renormalises:
            raise UserError(
                f"model.reference={name}: a server gives log-probabilities at temperature 1 over "
                "the whole vocabulary: name a folder, or leave rollout.temperature and "
                "rollout.sampling_mask=renormalise out"
            )
    return ServedReference(name, loaded.tokenizer, config.model.reference_api_key_env)


def _teacher(config: RunConfig, reads: frozenset[str], policy: Policy, loaded: Loaded) -> Policy:
    """Another model as the reference, of which these columns are read. Raises UserError."""
    name = config.model.reference
    own: dict[str, Any] = {"roles": RolesSettings()}  # it plays none of the run's
    if is_adapter(name):  # it belongs on the model that it was trained on
        own["model"] = config.model.model_copy(update={"name": name})
    other = load_model(config.model_copy(update=own), name, ranks=policy.ranks)
    theirs, ours = (set(each.tokenizer.get_vocab().items()) for each in (other, loaded))
    if differing := sorted(theirs ^ ours, key=lambda token: (token[1], token[0])):
        token, number = differing[0]
        raise UserError(
            f"model.reference={name} has other tokens than {loaded.source} ({len(theirs)} and "
            f"{len(ours)}, the first that differs is {token!r}, number {number}): probabilities of "
            "tokens can be compared between models of one tokenizer alone"
        )
    if isinstance(other, Remote):
        return other.frozen()
    model: Any = other.merged().model
    sizes = [len(each.get_output_embeddings().weight) for each in (model, loaded.model)]
    written = min(sizes[1], max(loaded.tokenizer.get_vocab().values()) + 1)
    if sizes[0] < written:
        raise UserError(
            f"model.reference={name} gives {sizes[0]} tokens a probability, and {loaded.source} "
            f"writes any of {written}: name a model that has them all"
        )
    if sizes[0] != sizes[1] and reads - {"logp_ref_T"}:
        raise UserError(
            f"model.reference={name} gives {sizes[0]} tokens a probability and {loaded.source} "
            f"{sizes[1]}, some of which no text has: their whole distributions cannot be compared, "
            "take a method that reads the drawn token alone, such as on_policy_distillation"
        )
    share = policy.share if not prefix_sharing.why_not(model) else "off"  # while it is whole
    frozen: Any = policy.ranks.shard(model.requires_grad_(False).eval())
    return Policy(frozen, policy.token_budget, share, ranks=policy.ranks)
