"""Classifies turns as good or bad by how much closer they came to the end.

Source: arXiv 2602.09021 (stage advantage); code OpenDriveLab/kai0. There the rows are frames of a
robot's demonstrations; here they are turns of a language agent. All tensors are [N], one entry per
turn, the turns of an episode together and in order. A small network estimates how far one turn is
ahead of another, from the policy's states after both.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from strop.batch import segments
from strop.method.services import Scoring, Texts
from strop.parts.sampling._prompts import each_prompt, prompt_batch
from strop.support.errors import UserError

WIDTH = 64  # hidden units
PAIRS = 256  # of a step
LR = 1e-3
Estimator = Callable[[Tensor, Tensor], Tensor]  # rows (from, to) -> progress between them


def in_order(pool: tuple[int, ...], texts: Texts) -> tuple[list[int], Tensor, Tensor]:
    """Prompts sorted by episode and turn, their episodes (from 0) and stages. Raises UserError."""
    found = []
    for uid in sorted(pool):
        row = texts.row(uid)
        missing = [name for name in ("episode", "stage") if row.get(name) is None]
        if missing:
            raise UserError(
                f"label_by_progress: the row of prompt {uid} has no {missing[0]}: each turn needs "
                "the columns episode and stage (from 0), and turn where rows are not in order"
            )
        if not isinstance(row["stage"], int) or row["stage"] < 0:
            raise UserError(
                f"label_by_progress: the stage of prompt {uid} is {row['stage']!r}: make it a "
                "whole number from 0"
            )
        found.append((str(row["episode"]), row.get("turn"), uid, row["stage"]))
    turns = [turn for _, turn, _, _ in found]
    if any(turn is not None for turn in turns):
        for _, turn, uid, _ in found:
            if type(turn) is not int:
                raise UserError(
                    f"label_by_progress: the turn of prompt {uid} is {turn!r}: make it a whole "
                    "number in every row, or leave the column out where rows are in order"
                )
    found.sort(key=lambda each: (each[0], each[1] or 0, each[2]))
    number = {name: n for n, name in enumerate(dict.fromkeys(each[0] for each in found))}
    episode_N = torch.tensor([number[each[0]] for each in found])
    return [each[2] for each in found], episode_N, torch.tensor([each[3] for each in found])


def features(uids: list[int], texts: Texts, scoring: Scoring) -> Tensor:
    """The policy's last hidden states [N, F] after each prompt."""
    batch = prompt_batch(uids, texts)
    last_T = segments.ends(batch["rollout_T"])
    return each_prompt(batch.set(mask_T=last_T), scoring, lambda _, state_TF: state_TF[-1])


def stage_progress(stage_N: Tensor, episode_N: Tensor, num_stages: int) -> Tensor:
    """What an estimator learns: (stage + place within the stage) / num_stages, in [0, 1).

    stage_N counts from 0; the place is the turn's share of the stage's turns in its episode.
    """
    key_N, num = segments.key_of(episode_N, stage_N)
    place_N = segments.order_within(key_N, num).double()
    share_N = place_N / segments.count(key_N, num)[key_N]
    return (stage_N + share_N) / num_stages


def look_ahead(episode_N: Tensor, horizon: int, progress: Estimator) -> Tensor:
    """Progress over the next `horizon` turns, or to the last one, in [-1, 1].

    With fewer turns left than the horizon it is scaled up; with none it is 0.
    """
    key_N, num = segments.key_of(episode_N)
    left_N = (segments.count(key_N, num) - 1)[key_N] - segments.order_within(key_N, num)
    gap_N = left_N.clamp(max=horizon)
    row_N = torch.arange(key_N.shape[0], device=key_N.device)
    scaled_N = progress(row_N, row_N + gap_N).double() * horizon / gap_N.clamp(min=1)
    return torch.where(gap_N > 0, scaled_N, 0).clamp(-1, 1)


def top_share(advantage_N: Tensor, percent: float, stage_N: Tensor | None = None) -> Tensor:
    """Whether a turn [N] bool is among the top `percent` percent, of all or of its stage's turns.

    Of n turns the round(n percent / 100) with the largest advantages are; ties go to the first.
    """
    key_N = segments.one_key(advantage_N) if stage_N is None else stage_N
    key_N, num = segments.key_of(key_N)
    taken = (segments.count(key_N, num) * percent / 100).round()
    return segments.rank(-advantage_N, key_N, num) < taken[key_N]


def slices(advantage_N: Tensor, num_slices: int) -> Tensor:
    """Which of `num_slices` equally large bins [N] int a turn is in, 0 the worst."""
    one_N = segments.one_key(advantage_N)
    place_N = segments.rank(advantage_N, one_N, 1)
    return place_N * num_slices // max(advantage_N.shape[0], 1)


@dataclass(frozen=True)
class ProgressEstimator:
    """f(a, b) of two frames' features [N, F]: predicted progress of b minus that of a.

    f(a, b) = w2 . gelu(W1 [z_a; z_b] + b1) + b2, z the standardised features
    """

    mean_F: Tensor
    std_F: Tensor
    weights: tuple[Tensor, ...]  # W1, b1, w2, b2

    def __call__(self, from_NF: Tensor, to_NF: Tensor) -> Tensor:
        both = torch.cat([(x - self.mean_F) / self.std_F for x in (from_NF, to_NF)], dim=-1)
        inner, inner_bias, outer, outer_bias = self.weights
        return gelu(both @ inner + inner_bias) @ outer + outer_bias


def fit(
    feature_NF: Tensor, progress_N: Tensor, episode_N: Tensor, num_steps: int, rng: torch.Generator
) -> tuple[ProgressEstimator, float]:
    """An estimator trained on random pairs of frames of one episode, and its mean square error.

    Adam fits f(a, b) to progress_b - progress_a by least squares, in `num_steps` steps of 256 pairs
    of different frames; the error is measured on 256 fresh pairs.
    """
    size = feature_NF.shape[1]
    drawn = torch.randn(2 * size, WIDTH, generator=rng, dtype=torch.float64)
    weights = (
        nn.Parameter(drawn / (2 * size) ** 0.5),
        nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64)),
        nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64)),
        nn.Parameter(torch.zeros((), dtype=torch.float64)),
    )
    std_F = feature_NF.std(0, correction=0)
    std_F = torch.where(std_F > 0, std_F, torch.ones_like(std_F))
    model = ProgressEstimator(feature_NF.mean(0), std_F, weights)
    optimiser = torch.optim.Adam(weights, lr=LR)

    draw = pairs(episode_N)

    def error() -> Tensor:
        a, b = draw(PAIRS, rng)
        wanted = progress_N[b] - progress_N[a]
        return (model(feature_NF[a], feature_NF[b]) - wanted).square().mean()

    with torch.enable_grad():
        for _ in range(num_steps):
            optimiser.zero_grad()
            torch.autograd.backward(error())
            optimiser.step()
    frozen = tuple(weight.detach() for weight in weights)
    model = ProgressEstimator(model.mean_F, std_F, frozen)
    return model, float(error())


def pairs(episode_N: Tensor) -> Callable[[int, torch.Generator], tuple[Tensor, Tensor]]:
    """A function that draws frames, each with another one of its episode; lone frames are left out.

    Raises ValueError where every episode has one frame only.
    """
    key_N, count = segments.key_of(episode_N)
    size_P = segments.count(key_N, count)
    size_N = size_P[key_N]
    able = (size_N > 1).nonzero().squeeze(1)
    if not able.numel():
        raise ValueError("every episode has one frame only")
    order = torch.argsort(key_N, stable=True)
    start_N = torch.cumsum(size_P, 0)[key_N] - size_N
    place_N = segments.order_within(key_N, count)

    def draw(num: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        first = able[torch.randint(able.numel(), (num,), generator=rng)]
        size = size_N[first]
        # A place other than its own, uniformly: one of the size - 1 that follow it in a circle.
        ahead = 1 + (torch.rand(num, generator=rng) * (size - 1)).long()
        place = (place_N[first] + torch.minimum(ahead, size - 1)) % size
        return first, order[start_N[first] + place]

    return draw
