"""Draw the prompts whose success, predicted from a few that were measured, is near a target."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from strop.method.part import Result, require
from strop.method.services import Grading, Sampling, Scoring, Texts
from strop.parts.sampling._chosen import ChosenPrompts, draw_by_weight
from strop.parts.sampling._presampled import success_of
from strop.parts.sampling._prompts import each_prompt, prompt_batch

EPS = 1e-4


@dataclass(frozen=True)
class DrawNearTargetSuccess(ChosenPrompts):
    """A few prompts are measured, and all prompts are judged by their measured neighbours.

        every `every` steps: d_j of `references` prompts drawn evenly, num_rollouts answers each
        a_j = softmax_j(z . z_j / sqrt(F));  base = sum_j a_j d_j;  d = slope base + shift
        P ~ exp(-|d - target| / tau) without replacement, as many as the steps until the next
        prediction need
        step: num_prompts * share prompts; all num_prompts in the first `every` steps

    z: mean over the prompt's tokens of the last hidden states of the first policy, standardised
    over the prompts, then scaled to mean 0 and deviation 1. slope, shift: least squares over the
    references, each predicted from the others. Metrics: draw/success (mean d of the prompts drawn),
    reference/success (mean d_j), reference/error (mean |predicted - d_j|).

    Reads: pool, texts, grading, sampling, scoring, rng, state, num_wanted.   Writes: draws.
    Source: arXiv 2506.05316; code ASTRAL-Group/data-efficient-llm-rl.
    Differs from the source: its adapter on another model's embeddings, and its calibration, were
    trained on answers of several models; here neither is trained.
    Nearest part: draw_uncertain_prompts, which only knows prompts that it drew.
    Edges: references 0 -> half of num_prompts, at least 2; references of equal success, or fewer
    than two scored -> equal chances; embeddings and predictions are in the checkpoint.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"samples_again", "scores_again"})
    # Steps between two predictions. Default: released code (2).
    every: int = 2
    # Prompts that are measured. Default: released code (256 of 512, so half of num_prompts).
    references: int = 0
    # The target success. Default: paper (1/2).
    target: float = 0.5
    # Distance from it at which a prompt is e times less likely. Default: released code (1e-3).
    tau: float = 1e-3
    # Share of num_prompts that a step draws after the first steps. Default: released code (1/2).
    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "every", low=1)
        require(self, "references", low=0)
        require(self, "target", low=0.0, high=1.0)
        require(self, "tau", low=1e-9)
        require(self, "share", low=EPS, high=1.0)

    def init(self) -> dict[str, Any]:
        """The initial state: nothing is embedded or predicted."""
        return {**super().init(), "steps": 0, "z_NF": None, "success": {}, "ranked": (),
                "used": (), "told": {}}  # fmt: skip

    def __call__(
        self, pool: tuple[int, ...], texts: Texts, grading: Grading, sampling: Sampling,
        scoring: Scoring, rng: torch.Generator, state: dict[str, Any],
        num_wanted: int | None = None,
    ) -> Result:  # fmt: skip
        is_step = num_wanted is None
        if not state["ranked"] or (is_step and state["steps"] % self.every == 0):
            z_NF = embedded(pool, texts, scoring) if state["z_NF"] is None else state["z_NF"]
            rows = torch.randperm(len(pool), generator=rng).tolist()
            tried = [pool[row] for row in rows[: self.references or max(self.num_prompts // 2, 2)]]
            rates = success_of(texts, grading, sampling, tried, self.num_rollouts, 1.0, rng)
            measured = {row: rates[uid] for row, uid in enumerate(pool) if uid in rates}
            success_N, fit = predict(z_NF, measured)
            order = draw_by_weight(-(success_N - self.target).abs() / self.tau, len(pool), rng)
            state = {
                **state, "z_NF": z_NF, "told": fit, "used": (),
                "success": dict(zip(pool, success_N.tolist(), strict=True)),
                "ranked": tuple(pool[row] for row in order),
            }  # fmt: skip
        used, success = set(state["used"]), state["success"]
        left = [uid for uid in state["ranked"] if uid not in used] or state["ranked"]
        fewer = max(round(self.num_prompts * self.share), 1)
        draws, state = self.chosen(
            left, state, num_wanted, lambda uid: f"success predicted {success[uid]:.2f}",
            self.num_prompts if state["steps"] < self.every else fewer,
        )  # fmt: skip
        used_now = (*state["used"], *(draw.uid for draw in draws))
        mean = sum(success[draw.uid] for draw in draws) / len(draws)
        state = {**state, "used": used_now, "steps": state["steps"] + is_step}
        return Result(draws, state, {"draw/success": mean, **state["told"]})


def embedded(pool: tuple[int, ...], texts: Texts, scoring: Scoring) -> Tensor:
    """z [N, F] float32 of every prompt."""
    mean_NF = each_prompt(prompt_batch(pool, texts), scoring, lambda _, state_TF: state_TF.mean(0))
    centred_NF = mean_NF - mean_NF.mean(0)
    deviation_F = centred_NF.square().mean(0).sqrt().clamp(min=EPS)
    return layer_norm(centred_NF / deviation_F, mean_NF.shape[1:]).float()


def attended(z_NF: Tensor, known_KF: Tensor, success_K: Tensor, *, apart: bool = False) -> Tensor:
    """base [N] of every row; apart: the rows are the known ones, each predicted from the others."""
    alike_NK = (z_NF.double() @ known_KF.double().T) / z_NF.shape[1] ** 0.5
    if apart:
        alike_NK = alike_NK.fill_diagonal_(-torch.inf)
    base_N: Tensor = alike_NK.softmax(dim=1) @ success_K
    return base_N


def calibrated(base: Tensor, temperature: float = 1.0, bias: float = 0.0) -> Tensor:
    """sigmoid(logit(base) / temperature + bias), base clamped to 1e-4 and 1 - 1e-4."""
    return torch.sigmoid(base.clamp(EPS, 1 - EPS).logit() / temperature + bias)


def predict(z_NF: Tensor, known: dict[int, float]) -> tuple[Tensor, dict[str, float]]:
    """d [N] of every row from the measured success of some, and its metrics."""
    rows = torch.tensor(list(known), dtype=torch.int64)
    success_K = torch.tensor(list(known.values()), dtype=torch.float64)
    mean = float(success_K.mean()) if known else 0.0
    if len(known) < 2:
        fit = {"reference/success": mean, "reference/error": 0.0}
        return torch.full((len(z_NF),), mean, dtype=torch.float64), fit
    known_KF = z_NF[rows]
    seen_K = calibrated(attended(known_KF, known_KF, success_K, apart=True))
    centred_K = seen_K - seen_K.mean()
    spread = float(centred_K.square().sum())
    slope = float((centred_K * success_K).sum()) / spread if spread > EPS**2 else 0.0
    shift = mean - slope * float(seen_K.mean())
    error = float((slope * seen_K + shift - success_K).abs().mean())
    base_N = calibrated(attended(z_NF, known_KF, success_K))
    return slope * base_N + shift, {"reference/success": mean, "reference/error": error}
