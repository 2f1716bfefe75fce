"""Rollouts of the task `worked_countdown`, and the role of each token in an answer.

The programs beside this file share it: it opens a model with a method, draws a step's batch, and
finds the role and the line of every token.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from strop.api.options import settings_of
from strop.batch.batch import Batch
from strop.environments.worked_countdown import AGAIN, ANSWER, STEP
from strop.method.algorithm import Algorithm, wanted_columns
from strop.method.chains import Chains, generators, learnable
from strop.training.collect.here import collector_of
from strop.training.learner.step_metrics import Clock
from strop.training.learner.step_models import refresh
from strop.training.loading import load_model
from strop.training.setup import load_prompts, make_world
from strop.training.world import World

SEED = 1000  # of the first batch; runs, and critics that are trained here, have smaller seeds

FIRST = "first of a line"
LEFT, SYMBOL, RIGHT = "left number, further digits", "symbol", "right number"
EQUALS, RESULT = "equals sign", "result"
EXPRESSION, BREAK, END, OTHER = "answer", "line break", "end", "other"
ROLES = (FIRST, LEFT, SYMBOL, RIGHT, EQUALS, RESULT, BREAK, EXPRESSION, END, OTHER)


class Answer(NamedTuple):
    """A sampled answer: its row, the rows and the texts of its tokens, and its text."""

    rollout: int
    row_N: Tensor
    pieces: list[str]  # empty for special tokens
    text: str


def open_world(
    words: Sequence[str], model: str, sizes: Sequence[str], task: str = "worked_countdown"
) -> tuple[World, Algorithm]:
    """The model with a task's prompts and a method (a recipe followed by options), without
    curation, so that no rollout is dropped. Of a method in phases, the last. `sizes` are options.
    """
    sections: dict[str, Any] = {"model": {"name": model}}
    if task:
        sections["data"] = {"task": task}
    settings: Any = settings_of([*words, *sizes], sections, None)
    algorithm = replace(settings.build().algorithms[-1], curation=())
    prompts = load_prompts(settings.data, settings.reward)
    return make_world(settings, algorithm, load_model(settings), prompts), algorithm


def draw(world: World, algorithm: Algorithm, number: int, pool: Sequence[int] = ()) -> Batch:
    """A batch of rollouts; pool: uids of prompts in place of the training ones."""
    chains = Chains(generators(SEED + number, 1), world.services, {})
    fed = replace(world, pool=tuple(pool) or world.pool)
    batch = collector_of(fed, algorithm, 1, chains, Clock()).collect(algorithm)
    return batch.to(world.policy.device)


def credit(world: World, algorithm: Algorithm, batch: Batch, number: int) -> Batch:
    """The batch after stages 5 to 7 of the step: with advantages and the tokens that learn."""
    models = world.act(algorithm)
    chains = Chains(generators(SEED + number, 1), world.services, {})
    batch = refresh(batch, wanted_columns(algorithm), models)
    batch = chains.write("probes", algorithm.probes, batch)
    batch = chains.credit(algorithm.advantage, batch)
    return chains.select(algorithm.selection, learnable(batch))


def answers(world: World, batch: Batch) -> list[Answer]:
    """The answers of a batch, in order."""
    texts, found = world.services.texts, []
    row_N = batch["mask_T"].nonzero().squeeze(1)
    rows = row_N.split(batch["length_B"].tolist())
    for rollout, (own_N, text) in enumerate(zip(rows, texts.decoded(batch)[1], strict=True)):
        ids = batch["id_T"][own_N].tolist()
        shown = [id for id in ids if id not in texts.special_ids]
        told = iter(texts.pieces(shown))
        pieces = ["" if id in texts.special_ids else next(told) for id in ids]
        found.append(Answer(rollout, own_N, pieces, text))
    return found


def lines_of(pieces: Sequence[str]) -> list[int]:
    """The line of each token, from 0; a line break belongs to the line that it ends."""
    found, line = [], 0
    for piece in pieces:
        found.append(line)
        line += piece.count(STEP)
    return found


def roles_of(pieces: Sequence[str]) -> list[str]:
    """The role of each token of an answer, by its first character; an empty piece is the end.

    The first token of a line shows the kind of line: a step (its first digit), a new beginning, or
    the answer.
    """
    found, state = [], FIRST
    for piece in pieces:
        role = OTHER if piece else END
        for place, letter in enumerate(piece):
            now, state = _read(state, letter)
            role = role if place else now
        found.append(role)
    return found


def _read(state: str, letter: str) -> tuple[str, str]:
    """(role of a character, next state); a state is the role that a digit would have."""
    if state == FIRST:
        behind = {STEP: FIRST, AGAIN: OTHER, ANSWER: EXPRESSION}
        return FIRST, behind.get(letter, LEFT if _is_digit(letter) else OTHER)
    if letter == STEP:
        return BREAK, FIRST
    if state in (EXPRESSION, OTHER):
        return state, state
    if _is_digit(letter):
        return _DIGIT[state], _DIGIT[state]
    if state == LEFT and letter in "+-*/":
        return SYMBOL, SYMBOL
    if state == RIGHT and letter == ANSWER:
        return EQUALS, EQUALS
    return OTHER, OTHER


_DIGIT = {LEFT: LEFT, SYMBOL: RIGHT, RIGHT: RIGHT, EQUALS: RESULT, RESULT: RESULT}


def _is_digit(letter: str) -> bool:
    return "0" <= letter <= "9"
