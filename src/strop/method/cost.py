"""What a step of a method costs beside sampling its rollouts and one update on them."""

from strop.batch.columns import REFRESHED, is_current
from strop.method import part as parts
from strop.method.algorithm import Algorithm, Method, wanted_columns

# Facts of probes that keep the engine or the policy busy once more.
ASKING = {
    "samples_again": "further answers",
    "scores_again": "forward passes over further texts",
}


# What a run of a method may need beside prompts and rewards; `strop recipes --needs` takes these.
NEEDS = ("critic", "reference", "environment")


def needs_of(method: Method) -> frozenset[str]:
    """Those of NEEDS that the method has, for the parameters that its algorithms have."""
    has = {
        "critic": bool(method.value_columns()),
        "reference": bool({"logp_ref_T", "logq_ref_TV"} & method.reads()),
        "environment": any(each.rollout.part.needs_environment for each in method.algorithms),
    }
    return frozenset(name for name in NEEDS if has[name])


def costs(method: Method) -> tuple[str, ...]:
    """The extra work of a step, one phrase each, in the order of a step; empty when there is none.

    It follows from the columns that the parts read and from what they state about themselves, for
    the parameters that the algorithm has. What only some phases cost says which.
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
    """Of one algorithm."""
    found = []
    for path, use in algorithm.uses():
        if path.startswith("curation.") and getattr(use.part, "max_rounds", 1) != 1:
            found.append("further prompts until the batch is full")
        found += [text for fact, text in ASKING.items() if fact in parts.facts(use)]
    wanted = wanted_columns(algorithm)
    read = {r.column for term in algorithm.terms for _, u in term.uses() for r in parts.reads(u)}
    if wanted & REFRESHED - {"logp_ref_T"}:
        found.append("a forward pass of the policy")
    if "logp_ref_T" in wanted or "logq_ref_TV" in read:
        found.append("a reference policy and its forward pass")
    if values := algorithm.value_columns():
        found.append("a critic" if len(values) == 1 else f"a critic with {len(values)} heads")
    if any((is_current(name) or name == "logq_TV") and name != "logp_T" for name in read):
        found.append("the head's whole distribution in the update")
    if algorithm.plan is not None:
        updates = getattr(algorithm.plan.part, "num_updates", "several")
        found += [f"{updates} updates"] if updates != 1 else []
    return tuple(dict.fromkeys(found))
