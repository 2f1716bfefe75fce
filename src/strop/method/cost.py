"""Lists the costs of a method's step, beyond sampling its rollouts and one update on them."""

from strop.batch.columns import OF_REFERENCE, REFRESHED, is_current
from strop.method import part as parts
from strop.method.algorithm import Algorithm, Method, around_refresh, wanted_columns

# Facts of probes that use the engine or the policy once more.
ASKING = {"samples_again": "further answers", "scores_again": "forward passes over further texts"}


# The needs of a run beside prompts; `strop recipes --needs` takes these words.
NEEDS = ("reward", "critic", "reference", "teacher", "environment")


def needs_of(method: Method) -> frozenset[str]:
    """The NEEDS of the method, with the current parameters of its algorithms."""
    plain = [each for each in method.algorithms if not each.rollout.part.needs_environment]
    has = {
        "reward": any(each.needs_scores() and not each.rollout.part.given for each in plain),
        "critic": bool(method.value_columns()),
        "reference": bool(OF_REFERENCE & method.reads()),
        "teacher": all(_is_taught(each) for each in method.algorithms),
        "environment": any(each.rollout.part.needs_environment for each in method.algorithms),
    }
    return frozenset(name for name in NEEDS if has[name])


def _is_taught(algorithm: Algorithm) -> bool:
    """Whether the algorithm learns from its reference alone. The reference then has to be another
    model, unless it reads other prompts.
    """
    refreshed, learns = around_refresh(algorithm)[0], algorithm.reads(("advantage", "terms"))
    return bool(OF_REFERENCE & learns) and not refreshed and not algorithm.reward_columns()


def costs(method: Method) -> tuple[str, ...]:
    """The extra work of a step, one phrase each, in the order of a step; empty when there is none.

    It follows from the columns that the parts read and from the facts that they state, with the
    algorithm's current parameters. A cost of only some phases names them.
    """
    if isinstance(method, Algorithm):
        return _costs(method)
    by_phase = {phase.name: _costs(phase.algorithm) for phase in method.phases}
    found = []
    for text in dict.fromkeys(text for texts in by_phase.values() for text in texts):
        names = [name for name, texts in by_phase.items() if text in texts]
        found.append(text if len(names) == len(by_phase) else f"{text} ({', '.join(names)})")
    return tuple(found)


def _costs(algorithm: Algorithm) -> tuple[str, ...]:
    """The costs of one algorithm."""
    found = []
    for path, use in algorithm.uses():
        if path.startswith("curation.") and getattr(use.part, "max_rounds", 1) != 1:
            found.append("further prompts until the batch is full")
        found += [text for fact, text in ASKING.items() if fact in parts.facts(use)]
    wanted = wanted_columns(algorithm)
    read = {r.column for term in algorithm.terms for _, u in term.uses() for r in parts.reads(u)}
    if wanted & (REFRESHED - OF_REFERENCE | {"kl_ref_old_T"}):
        found.append("a forward pass of the policy")
    if OF_REFERENCE & (wanted | read):
        found.append("a reference policy and its forward pass")
    if values := algorithm.value_columns():
        found.append("a critic" if len(values) == 1 else f"a critic with {len(values)} heads")
    if any((is_current(name) or name == "logq_TV") and name != "logp_T" for name in read):
        found.append("the head's whole distribution in the update")
    if algorithm.plan is not None:
        updates = getattr(algorithm.plan.part, "num_updates", None) or "several"
        found += [f"{updates} updates"] if updates != 1 else []
    return tuple(dict.fromkeys(found))
