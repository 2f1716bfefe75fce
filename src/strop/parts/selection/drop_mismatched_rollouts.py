"""Do not learn where engine and trainer disagree about probabilities."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, Selected, require, require_one_of
from strop.support.errors import UserError

CLAMP_NATS = 20.0
MEASURES = tuple(
    f"{unit}_{estimate}"
    for unit in ("token", "turn_sum", "turn_mean", "turn_max", "seq_sum", "seq_mean", "seq_max")
    for estimate in ("k1", "k2", "k3")
)


@dataclass(frozen=True)
class DropMismatchedRollouts:
    """Tokens, turns or rollouts that engine and trainer disagree about are left out whole.

        x_t = logp_old_t - logp_sampler_t;   k1 = x, k2 = x^2 / 2, k3 = exp(x) - 1 - x
        s = the measure: k of the token, or its sum, mean or largest value in the turn or rollout
        stays if lowest <= exp(clamp(s, -20, 20)) <= highest for k1, if s <= highest for k2, k3
        of what stays, a turn goes if one of its tokens has exp(x_t) < veto

    The bounds of k1 are on trainer / engine (verl's are on its inverse). Both log-probabilities are
    at the temperature, without the sampler's cuts. Metrics: mismatch/dropped_fraction (of the
    units with a known token), /vetoed_fraction (of the turns).

    Reads: logp_old_T, logp_sampler_T [T] float, mask_T [T] bool, rollout_T, turn_T [T] int,
    num_rollouts, num_turns int.   Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2602.05885 (geometric rejection and veto); code hkust-nlp/KernelGYM; measures of
    verl-project/verl:verl/trainer/ppo/rollout_corr_helper.py (rollout_rs).
    Differs from the source: a token without the engine's log-probability (NaN) counts nowhere.
    Nearest part: weigh_by_engine_ratio, which weighs instead of dropping.
    Edges: no known token -> stays; (0, inf) and veto 0 -> keeps everything; lowest above highest ->
    UserError for k1.
    """

    # Smallest ratio that stays (k1). Default: paper (0.999).
    lowest: float = 0.999
    # Largest ratio (k1) or divergence in nats (k2, k3) that stays. Default: paper (1.001).
    highest: float = 1.001
    # A turn with a token's ratio below this goes; 0: none. Default: paper (1e-4).
    veto: float = 1e-4
    # token_, turn_sum_, turn_mean_, turn_max_, seq_sum_, seq_mean_ or seq_max_ and k1, k2 or k3.
    # Default: paper (the geometric mean of a rollout).
    measure: str = "seq_mean_k1"
    # Whether dropped tokens still count in averages. Default: paper (no).
    still_counts: bool = False

    def __post_init__(self) -> None:
        require(self, "lowest", "highest", "veto", low=0.0)
        require_one_of(self, "measure", MEASURES)

    def __call__(
        self,
        logp_old_T: Tensor,
        logp_sampler_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        turn_T: Tensor,
        num_rollouts: int,
        num_turns: int,
    ) -> Result:
        if self.measure.endswith("k1") and self.lowest > self.highest:
            raise UserError(
                f"drop_mismatched_rollouts: nothing stays, since lowest, {self.lowest:g}, is above "
                f"highest, {self.highest:g}: swap them"
            )
        known_T = mask_T & ~(logp_old_T - logp_sampler_T).isnan()
        log_ratio_T = torch.where(known_T, logp_old_T - logp_sampler_T, 0).double()
        known_K = segments.count(turn_T, num_turns, known_T) > 0
        row_T = torch.arange(mask_T.shape[0], device=mask_T.device)
        unit = {"token": (row_T, row_T.shape[0]), "turn": (turn_T, num_turns),
                "seq": (rollout_T, num_rollouts)}[self.measure.split("_")[0]]  # fmt: skip
        agree_T, dropped = self._agreeing(log_ratio_T, known_T, *unit)
        vetoed_K = segments.count(turn_T, num_turns, known_T & (log_ratio_T.exp() < self.veto)) > 0
        keep_T = mask_T & agree_T & ~vetoed_K[turn_T]
        metrics = {
            "mismatch/dropped_fraction": dropped,
            "mismatch/vetoed_fraction": float(vetoed_K.sum() / known_K.sum().clamp(min=1)),
        }
        counts_T = mask_T if self.still_counts else keep_T
        return Result(Selected(keep_T, counts_T, "engine_mismatch"), metrics=metrics)

    def _agreeing(
        self, log_ratio_T: Tensor, known_T: Tensor, key_T: Tensor, num: int
    ) -> tuple[Tensor, float]:
        """Tokens [T] bool whose unit stays, and the share of the known units that go."""
        *unit, estimate = self.measure.split("_")
        clamped_T = log_ratio_T.clamp(-CLAMP_NATS, CLAMP_NATS)
        value_T = {"k1": log_ratio_T, "k2": log_ratio_T.square() / 2,
                   "k3": clamped_T.expm1() - clamped_T}[estimate]  # fmt: skip
        arguments = (value_T, key_T, num, known_T)
        if unit[-1] == "max":
            found_N = segments.extreme(*arguments, largest=True)
        else:
            found_N = (segments.mean if unit[-1] == "mean" else segments.total)(*arguments)
        known_N = segments.count(key_T, num, known_T) > 0
        if estimate == "k1":
            weight_N = found_N.clamp(-CLAMP_NATS, CLAMP_NATS).exp()
            inside_N = (weight_N >= self.lowest) & (weight_N <= self.highest)
        else:
            inside_N = found_N <= self.highest
        agree_N = ~known_N | inside_N
        return agree_N[key_T], float((~agree_N).sum() / known_N.sum().clamp(min=1))
