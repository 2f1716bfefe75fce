"""What parts ask a run for, from what the caller has: prompts' texts, preferences of a judge."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from strop import part as parts
from strop._padded_chains import asks, learning
from strop._padded_given import of_dtype
from strop._padded_names import Names
from strop._padded_tournament import check_alone
from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.chains import Chains
from strop.errors import UserError
from strop.part import Draw, Use
from strop.training import pack

TEXTS = "texts"
INSIDE = "answers while they are being drawn, which only a run has"


def readers(algorithm: Algorithm) -> list[Use]:
    """The samplers that learn from prompts' texts and ask for nothing else."""
    found = [use for path, use, _ in learning(algorithm) if path.startswith("sampling.")]
    return [use for use in found if asks(use) == {TEXTS}]


def with_texts(
    call: str, name: str, names: Names, given: dict[str, Any], state: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`given` with what samplers foresee of prompts with these texts, and their state.

    The state is that of samplers that have seen the prompts and not yet how they went. Raises
    UserError for texts that nothing reads and those that do not fit the groups.
    """
    rest = dict(given)
    texts, uses = rest.pop(TEXTS), readers(names.algorithm)
    if not uses:
        raise UserError(f"{call}({name!r}) takes no texts: none of its parts reads prompts")
    uids, prompts = _prompts(texts, rest.get("groups"))
    services: Any = SimpleNamespace(texts=SimpleNamespace(prompt_text=prompts.__getitem__))
    chains = Chains(lambda part, number: torch.Generator(), services, dict(state or {}))
    nothing = pack.from_padded({}, torch.zeros(0, 1, dtype=torch.bool))
    draws = tuple(Draw(uid, 1) for uid in prompts)
    for use in uses:
        told = {d.uid: d.columns for d in chains.call("sampling", use, nothing, draws=draws).value}
        for column in parts.writes(use):
            usual = names.of(column)[0]
            if usual in names.inputs(call) and rest.get(usual) is None:
                rest[usual] = torch.tensor([told[uid][column] for uid in uids]).double()
    return rest, chains.state


def _prompts(texts: Any, groups: Any) -> tuple[list[int], dict[int, str]]:
    """The prompt of each row, and every prompt's text."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise UserError("texts must be a list of the prompts' texts, one a row")
    if groups is None:
        raise UserError("texts need groups [B]: which rows are of one prompt")
    group_B = of_dtype("groups", groups, "int")
    if group_B.dim() != 1 or len(group_B) != len(texts):
        raise UserError(f"texts has {len(texts)} rows, groups is {[*group_B.shape]}")
    uids, prompts = group_B.tolist(), dict[int, str]()
    for uid, text in zip(uids, texts, strict=True):
        if not isinstance(text, str):
            raise UserError(f"texts must hold texts, there is a {type(text).__name__}")
        if prompts.setdefault(uid, text) != text:
            raise UserError(f"texts: the rows of group {uid} have different prompts")
    return uids, prompts


def services_for(call: str, name: str, uses: Sequence[Use], batch: Batch) -> Any:
    """A run's grading and log for the part that learns rewards' weights, None where none asks.

    `preference` [B] is what was logged; `reward_components` [B, M] are rewards that weigh 1 each.
    Raises UserError for parts that ask for more.
    """
    learns = [use for use in uses if parts.name_of(use.part) == "learn_reward_weights"]
    check_alone(call, name, [use for use in uses if use not in learns])
    for use in learns:
        if not {"preference_B", "reward_BM", "rollout_uid_B"} <= batch.columns.keys():
            raise UserError(
                f"{call}({name!r}): {use.label} needs preference [B], reward_components [B, M] "
                "and rollout_uid [B], in place of a run's grading and log"
            )
        names = tuple(f"reward_{m}" for m in range(batch["reward_BM"].shape[1]))
        uids, liked = batch["rollout_uid_B"].tolist(), batch["preference_B"].tolist()
        logged = {use.part.preference: dict(zip(uids, liked, strict=True))}
        grading = SimpleNamespace(reward_names=names, reward_weights=(1.0,) * len(names))
        return SimpleNamespace(grading=grading, log=SimpleNamespace(logged=logged))
    return None


def begun_state(
    name: str, algorithm: Algorithm, state: Mapping[str, Any], has_texts: bool
) -> dict[str, Any]:
    """The state that a step goes on from.

    Raises UserError for a part that learns what a run alone has, and one that lacks what it goes
    on from.
    """
    begun = dict(state)
    for path, use, hook in learning(algorithm):
        if path.startswith("rollout.") and hook == "observe":
            raise UserError(f"next_state({name!r}): {use.label} learns from {INSIDE}")
        asked = asks(use) if path.startswith("sampling.") else frozenset()
        if asked == {TEXTS} and not has_texts:
            raise UserError(
                f"next_state({name!r}) needs texts, the prompt of each row: {use.label} learns "
                "from them"
            )
        if asked - {TEXTS}:
            begun[path] = {**use.part.init(), **_given_state(name, path, use, state)}
    return begun


def _given_state(name: str, path: str, use: Use, state: Mapping[str, Any]) -> Mapping[str, Any]:
    found = state.get(path)
    if not isinstance(found, Mapping):
        made = ", ".join(use.part.init())
        raise UserError(
            f"next_state({name!r}): {parts.name_of(use.part)} goes on from what it has made of all "
            f"prompts beforehand: give state={{{path!r}: ...}} ({made})"
        )
    return found
