"""Pay the step that turned an answer towards its outcome with all that was gained from there."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.parts.advantage.credit._steps import Steps, rise_metrics, steps_of

TIE = 1e-5  # reward units; gains that are at least this far apart differ


@dataclass(frozen=True)
class CreditTurningPoints:
    """A step earns the rise of the value; one that turned it for good earns all later rises too.

        steps of a rollout: from a known prefix value R_{t-1} to the next one R_t; R_n = its reward
        d_t = R_t - R_{t-1}, s_t = sign(d_t) sign(R_n - R_0)
        turn: d_t and R_n - R_t have one sign, and s_t > 0 > s_{t-1}, or t = 1
        r_t = eta (R_n - R_{t-1}) at a turn (d_t where that is 0), else d_t
        advantage_t = (r_t - mean) / (std + eps) over the prompt's rollouts at their t-th step,
                      between -clamp and clamp

    balance: where turns of rollouts that rose and of ones that fell both occur, as many of each
    stay: those of the largest |R_n - R_0| (to 1e-5), of equal ones the first rows.

    Reads: prefix_value_T [T] float (NaN: not known), reward_B [B] float, scored_B [B] bool,
    rollout_T, group_T [T] int, mask_T [T] bool; cut_T [T] bool where given.
    Writes: advantage_T [T] float.
    Source: arXiv 2602.06422; code YunzeTong/TurningPoint-GRPO (its launch script's options).
    Differs from the source: steps are stretches of tokens, there of denoising; its turns of one
    rollout, which tie, are chosen by torch.topk, in no stated order. The last step is no turn.
    Nearest part: credit_value_steps, which has d_t alone and no peers.
    Edges: tokens before the first known value, unscored rollouts -> 0; a step without peers -> 0.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"order_breaks_ties"})
    # Weight of what a turn is paid. Default: released code.
    eta: float = 1.0
    # Whether turns up and down are made equally many. Default: released code.
    balance: bool = True
    # Added to the deviation, reward units. Default: released code.
    eps: float = 1e-4
    # Deviation: "biased" (n) or "unbiased" (n - 1). Default: released code.
    std: str = "biased"
    # Largest advantage either way. Default: released code.
    clamp: float = 5.0

    def __post_init__(self) -> None:
        require(self, "eta", "eps", "clamp", low=0.0)
        require_one_of(self, "std", ("biased", "unbiased"))

    def __call__(
        self,
        prefix_value_T: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        rollout_T: Tensor,
        group_T: Tensor,
        mask_T: Tensor,
        cut_T: Tensor | None = None,
    ) -> Result:
        steps = steps_of(prefix_value_T, scored_B, rollout_T, mask_T, cut_T)
        if steps is None:
            metrics = {
                "steps/frac_turning": 0.0,
                **rise_metrics(None, prefix_value_T[:0], scored_B),
            }
            return Result(torch.zeros_like(prefix_value_T), metrics=metrics)
        before_N = segments.at(prefix_value_T, steps.row_N)
        final_N = reward_B.to(before_N.dtype)[steps.rollout_N]
        after_N = steps.after(before_N, final_N)
        turn_N = self._turning(steps, before_N, after_N, final_N)
        rise_N, bonus_N = after_N - before_N, self.eta * (final_N - before_N)
        r_N = torch.where(turn_N & (bonus_N != 0), bonus_N, rise_N)
        shares = {"steps/frac_turning": segments.overall(turn_N)}
        metrics = {**shares, **rise_metrics(steps, rise_N, scored_B)}
        place_N = segments.place_in_run(steps.rollout_N, reward_B.shape[0])
        key_N, num = segments.key_of(segments.at(group_T, steps.row_N), place_N)
        ddof = int(self.std == "unbiased")
        centred_N, std_M = segments.centred_and_std(r_N, key_N, num, ddof=ddof)
        advantage_N = segments.divided(centred_N, segments.at(std_M + self.eps, key_N))
        advantage_N = advantage_N.clamp(-self.clamp, self.clamp)
        return Result(steps.spread(advantage_N), metrics=metrics)

    def _turning(self, steps: Steps, before_N: Tensor, after_N: Tensor, final_N: Tensor) -> Tensor:
        """Whether a step turns its rollout for good [N]."""
        rise_N = after_N - before_N
        start_N = segments.begins(steps.rollout_N)
        first_N = before_N[start_N][start_N.cumsum(0) - 1]
        whole_N = final_N - first_N
        sign_N = rise_N.sign() * whole_N.sign()
        turned_N = start_N | ((sign_N.roll(1) < 0) & (sign_N > 0))
        turn_N = turned_N & (rise_N.sign() * (final_N - after_N).sign() > 0)
        return self._kept(turn_N, whole_N) if self.balance else turn_N

    def _kept(self, turn_N: Tensor, whole_N: Tensor) -> Tensor:
        """The turns that stay: as many up as down, the largest first; all if one side is empty."""
        whole_N = (whole_N.double() / TIE).round()  # equal in every precision of the scores
        up_M = segments.rows_where(turn_N & (whole_N > 0))
        down_M = segments.rows_where(turn_N & (whole_N < 0))
        fewest = min(up_M.shape[0], down_M.shape[0])
        if fewest == 0:
            return turn_N
        kept_N = torch.zeros_like(turn_N)
        kept_N[up_M] = segments.largest(whole_N[up_M], fewest)
        kept_N[down_M] = segments.largest(-whole_N[down_M], fewest)
        return kept_N
