"""Replaces a run's services in padded calls: texts of prompts, scores of a judge, a log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch, from_padded
from strop.method import part as parts
from strop.method.algorithm import Algorithm
from strop.method.chains import Chains
from strop.method.part import Draw, Use
from strop.method.services import Graded
from strop.padded.given import PaddedCall, of_dtype
from strop.padded.names import PAIR_SCORES, Names, has_tournament, learning_parts, services_asked
from strop.support.errors import UserError

TEXTS = "texts"
INSIDE = "answers while they are being drawn, which only a run has"


def readers_of_texts(algorithm: Algorithm) -> list[Use]:
    """Returns the samplers that learn from prompts' texts and need no other service."""
    found = [use for path, use, _ in learning_parts(algorithm) if path.startswith("sampling.")]
    return [use for use in found if services_asked(use) == {TEXTS}]


def with_texts(call: PaddedCall, names: Names) -> PaddedCall:
    """Adds the samplers' predictions for prompts with these texts, and the samplers' state.

    These samplers have read the prompts, but not yet the rewards of the answers. Raises
    UserError for texts that nothing reads and texts that do not fit the groups.
    """
    rest = dict(call.tensors)
    texts, uses = rest.pop(TEXTS), readers_of_texts(names.algorithm)
    if not uses:
        raise UserError(f"{call} takes no texts: none of its parts reads prompts")
    uids, prompts = _prompts(texts, rest.get("groups"))
    services: Any = SimpleNamespace(texts=SimpleNamespace(prompt_text=prompts.__getitem__))
    chains = Chains(lambda part, number: torch.Generator(), services, dict(call.state))
    nothing = from_padded({}, torch.zeros(0, 1, dtype=torch.bool))
    draws = tuple(Draw(uid, 1) for uid in prompts)
    for use in uses:
        columns_of = {
            d.uid: d.columns for d in chains.call("sampling", use, nothing, draws=draws).value
        }
        for column in parts.writes(use):
            usual = names.of(column)[0]
            if usual in names.inputs(call.call) and rest.get(usual) is None:
                rest[usual] = torch.tensor([columns_of[uid][column] for uid in uids]).double()
    return replace(call, tensors=rest, state=chains.state)


def _prompts(texts: Any, groups: Any) -> tuple[list[int], dict[int, str]]:
    """Returns the prompt of each row, and every prompt's text."""
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


def services_for(call: PaddedCall, uses: Sequence[Use], batch: Batch) -> Any:
    """Returns grading and log for the part that learns rewards' weights; None without that part.

    `preference` [B] is the logged column; `reward_components` [B, M] are rewards of weight 1 each.
    Raises UserError for parts that need other services.
    """
    learns = [use for use in uses if parts.name_of(use.part) == "learn_reward_weights"]
    _check_alone(call, [use for use in uses if use not in learns])
    for use in learns:
        if not {"preference_B", "reward_BM", "rollout_uid_B"} <= batch.columns.keys():
            raise UserError(
                f"{call}: {use.label} needs preference [B], reward_components [B, M] "
                "and rollout_uid [B], in place of a run's grading and log"
            )
        names = tuple(f"reward_{m}" for m in range(batch["reward_BM"].shape[1]))
        uids, liked = batch["rollout_uid_B"].tolist(), batch["preference_B"].tolist()
        logged = {use.part.preference: dict(zip(uids, liked, strict=True))}
        grading = SimpleNamespace(reward_names=names, reward_weights=(1.0,) * len(names))
        return SimpleNamespace(grading=grading, log=SimpleNamespace(logged=logged))
    return None


def starting_state(call: PaddedCall, algorithm: Algorithm) -> dict[str, Any]:
    """Returns the state at the start of a step.

    Raises UserError for a part that learns from data that only a run has, and for a part whose
    state must be given and is missing.
    """
    started = dict(call.state)
    for path, use, hook in learning_parts(algorithm):
        if path.startswith("rollout.") and hook == "observe":
            raise UserError(f"{call}: {use.label} learns from {INSIDE}")
        asked = services_asked(use) if path.startswith("sampling.") else frozenset()
        if asked == {TEXTS} and not call.has(TEXTS):
            raise UserError(
                f"{call} needs texts, the prompt of each row: {use.label} learns from them"
            )
        if asked - {TEXTS}:
            started[path] = {**use.part.init(), **_state_made_before(call, path, use)}
    return started


def _state_made_before(call: PaddedCall, path: str, use: Use) -> Mapping[str, Any]:
    found = call.state.get(path)
    if not isinstance(found, Mapping):
        made = ", ".join(use.part.init())
        raise UserError(
            f"{call}: {parts.name_of(use.part)} needs the state that it has made of all "
            f"prompts beforehand: give state={{{path!r}: ...}} ({made})"
        )
    return found


@dataclass(frozen=True)
class Judge:
    """Replaces texts and grading: an answer's text is its row, its score is in a table.

    pair_scores: [B, B], the score of row i in its match with row j; NaN: no score.
    """

    reward_names: ClassVar[tuple[str, ...]] = (PAIR_SCORES,)
    pair_scores: Tensor

    def services(self) -> Any:
        return SimpleNamespace(texts=self, grading=self)

    def decoded(self, batch: Batch) -> tuple[list[Any], list[str]]:
        rows = [str(row) for row in batch["index_B"].tolist()]
        return rows, rows

    def grade_beside(self, batch: Batch, opponents: Sequence[str]) -> Graded:
        other_B = torch.tensor([int(row) for row in opponents])
        score_B = self.pair_scores[batch["row_B"].cpu(), other_B]
        scored_B = ~score_B.isnan()
        exit_B = torch.zeros_like(scored_B, dtype=torch.int64)
        return Graded(score_B[:, None], score_B.nan_to_num(), scored_B, {}, exit_B)


def judge_of(call: PaddedCall) -> tuple[Judge | None, PaddedCall]:
    """Returns a judge of `pair_scores`, and the call with rewards of 0; None without pair scores.

    Raises UserError for a table that is not square, and for rewards beside it.
    """
    if not call.has(PAIR_SCORES):
        return None, call
    scores = of_dtype(PAIR_SCORES, call.tensors[PAIR_SCORES], "float").detach().cpu()
    if scores.dim() != 2 or scores.shape[0] != scores.shape[1]:
        raise UserError(f"{PAIR_SCORES} must be [B, B], a row an answer; it is {[*scores.shape]}")
    if call.has("rewards"):
        raise UserError(f"give rewards or {PAIR_SCORES}, not both")
    num = scores.shape[0]
    groups = call.tensors["groups"] if call.has("groups") else torch.zeros(num, dtype=torch.int64)
    return Judge(scores), call.but(PAIR_SCORES).having(rewards=scores.new_zeros(num), groups=groups)


def check_table(call: PaddedCall, algorithm: Algorithm, judge: Judge | None, num: int) -> None:
    """Raises UserError where a table of scores is missing or does not fit."""
    if judge is not None and not has_tournament(algorithm):
        raise UserError(f"{call} takes no {PAIR_SCORES}: no tournament is played")
    if judge is None and has_tournament(algorithm):
        raise UserError(f"{call} needs {PAIR_SCORES} [B, B]")
    if judge is not None and len(judge.pair_scores) != num:
        raise UserError(f"{PAIR_SCORES} is of {len(judge.pair_scores)} answers, there are {num}")


def _check_alone(call: PaddedCall, uses: Sequence[Use]) -> None:
    """Raises UserError where rewards depend on more than tensors."""
    for use in uses:
        if asked := sorted(services_asked(use)):
            raise UserError(
                f"{call}: {use.label} needs a run's {' and '.join(asked)}, which "
                "tensors do not hold"
            )
