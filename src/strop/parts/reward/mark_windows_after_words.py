"""Find the words of an answer after which the policy was undecided."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Result, require
from strop.method.services import Scoring, Texts
from strop.parts.reward import _open_windows as windows

KEEP = 0.99  # share of the threshold that stays at each step


@dataclass(frozen=True)
class MarkWindowsAfterWords:
    """Windows of high mean entropy after words of reasoning are counted and marked.

        window of t = the `width` tokens after t;  open: the likeliest token at t is one of `words`
        and its mean of H >= tau;  H = -sum_{j in top} p_j log p_j - r log r, r = 1 - sum p_j
        tau <- 0.99 tau + 0.01 median over the rollouts of the 95% quantiles of their window means,
        those of H without -r log r; a step uses the tau of the steps before it
        windows_i = open windows,  window_cost_i = sum over these of (mean - tau)

    p is of the policy at the start of the step: one forward pass over the rollouts. A token's text
    is compared without the marks and spaces at its ends, in lower case.
    Metrics: ares/windows_mean, ares/threshold.

    Reads: batch (the tokens), mask_T [T] bool, rollout_T [T] int, scored_B [B] bool, num_rollouts
    int, scoring, texts, state.   Writes: windows_B, window_cost_B [B] float, in_window_T [T] bool.
    Source: code only: shawn0728/ARES (the method of arXiv 2510.08457).
    Differs from the source: the first step's tau is its own (there a validation's); the user gives
    the list of words (data/crucial_token_final_version.json there).
    Nearest part: mark_open_windows, which has the paper's windows.
    Edges: without words every token counts; a window ends with its rollout; a token without room
    for one gets the mean of its rollout's windows, or H of the first token if there are none.
    """

    writes: ClassVar[tuple[str, ...]] = ("windows_B", "window_cost_B", "in_window_T")
    facts: ClassVar[frozenset[str]] = frozenset({"scores_again"})
    # Tokens of a window. Default: released code.
    width: int = 4
    # Words that may open a window, with spaces between them; empty: any. Default: ours (any).
    words: str = ""
    # Likeliest tokens whose probabilities count individually. Default: released code.
    num_top: int = 10

    def __post_init__(self) -> None:
        require(self, "width", "num_top", low=1)

    def init(self) -> dict[str, Any]:
        """No threshold yet (below 0), and no rollout of the step."""
        return {"level": -1.0, "tops": torch.zeros(0)}

    def __call__(
        self,
        batch: Batch,
        mask_T: Tensor,
        rollout_T: Tensor,
        scored_B: Tensor,
        num_rollouts: int,
        scoring: Scoring,
        texts: Texts,
        state: Mapping[str, Any],
    ) -> Result:
        top = self.num_top
        names = (f"top_entropy_{top}_T", f"tail_entropy_{top}_T", "top_token_1_T")
        found = scoring.score(batch, "current", names)
        top_N, rest_N, id_N = (found[name].to(mask_T.device)[mask_T] for name in names)
        rollout_N = rollout_T[mask_T]
        tops = self._tops(top_N, rollout_N, num_rollouts)
        earlier = state.get("tops", tops[:0])  # of this step: curation may ask for more rollouts
        tops = torch.cat([earlier.to(tops), tops])
        level = state["level"] if state["level"] >= 0 else _median(tops)
        mean_N, whole_N = windows.means_after(top_N + rest_N, rollout_N, self.width)
        open_N = whole_N & (mean_N >= level) & self._is_word(id_N, texts)
        count_B = segments.count(rollout_N, num_rollouts, open_N).to(top_N)
        cost_B = segments.total(mean_N - level, rollout_N, num_rollouts, open_N).to(count_B)
        inside_T = torch.zeros_like(mask_T)
        inside_T[mask_T] = windows.covered(open_N.roll(1), self.width)  # the last one is never open
        metrics = {
            "ares/windows_mean": segments.overall(count_B, scored_B),
            "ares/threshold": level,
        }
        kept = {"level": state["level"], "tops": tops.cpu()}
        return Result((count_B, cost_B, inside_T), kept, metrics)

    def observe(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The threshold of the next step."""
        level, now = state["level"], _median(state["tops"])
        kept = now if level < 0 else KEEP * level + (1 - KEEP) * now
        return {"level": kept, "tops": torch.zeros(0)}

    def _tops(self, top_N: Tensor, rollout_N: Tensor, num: int) -> Tensor:
        """The 95% quantiles of the window means of the rollouts that have tokens."""
        mean_N, whole_N = windows.means_after(top_N, rollout_N, self.width)
        values_N = windows.whole_or_usual(mean_N, whole_N, top_N, rollout_N, num)
        top_B = segments.quantile(values_N, rollout_N, num, 0.95)
        return top_B[segments.count(rollout_N, num) > 0]

    def _is_word(self, id_N: Tensor, texts: Texts) -> Tensor:
        """Whether [N] these tokens are among the words."""
        words = frozenset(self.words.lower().split())
        if not words:
            return torch.ones_like(id_N, dtype=torch.bool)
        known = [
            token
            for token in torch.unique(id_N).long().tolist()
            if windows.word_of(texts.decode([token])) in words
        ]
        return torch.isin(id_N.long(), torch.tensor(known, dtype=torch.int64, device=id_N.device))


def _median(values_N: Tensor) -> float:
    one_N = torch.zeros_like(values_N, dtype=torch.int64)
    return float(segments.quantile(values_N, one_N, 1, 0.5))
