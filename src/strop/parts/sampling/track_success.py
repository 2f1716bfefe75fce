"""Remember how often each prompt's answers were right, for the parts that choose prompts by it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Draw, Result, require, require_one_of
from strop.parts.sampling._tracked import Tracked

COUNTS = ("right", "wrong", "answers")


@dataclass(frozen=True)
class TrackSuccess:
    """Parts that choose prompts, or allocate rollouts, can read the prompts' success so far.

        after each step, of a prompt with n scored answers, c of them right:
            right <- keep right + c;   wrong <- keep wrong + n - c
        of any other prompt: right <- fade right;   wrong <- fade wrong
        success: right / (right + wrong); with a window, the mean of the last `window` entries,
            each the share c / n of a step ("mean"), or whether c > 0 ("any")

    All sampled rollouts count, also those that curation drops; those that it brings back from a
    store do not. Sampling parts of the same chain get it as `tracked`. Metrics: tracked/prompts
    (known), /success (mean, of drawn prompts that are known), /frac_new (draws of unknown ones).

    Reads: draws, state; uid_P [P], group_B [B] int, outcome_B [B] float, scored_B [B] bool of all
    that was sampled (observe).
    Writes: the draws, with past_success_B (NaN: unknown) and past_answers_B [B] float.
    Source: arXiv 2511.18902 (keep, fade); arXiv 2601.19280 (window, "any").
    Differs from the source: no.
    Nearest part: predict_success_from_history, which also covers prompts that were never drawn.
    Edges: no scored answer -> as if not drawn; sums that have faded to 0 -> unknown; the state,
    keyed by uid, is in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = ("past_success_B", "past_answers_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("past_success_B", "float", "success of the prompt's earlier answers; NaN: none",
               random="uniform"),
        Column("past_answers_B", "float", "the prompt's earlier answers", random="positive"),
    )  # fmt: skip
    # Share of a prompt's sums that stays when it is drawn again. Default: ours (all).
    keep: float = 1.0
    # Share of them that stays after each step in which it is not drawn. Default: ours (all).
    fade: float = 1.0
    # Steps with the prompt over which its success is averaged; 0: all, faded. Default: ours (all).
    window: int = 0
    # Entry of a step in the window: "mean" or "any". Default: ours (the mean).
    entry: str = "mean"
    # Outcome from which an answer is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "keep", "fade", low=0.0, high=1.0)
        require(self, "window", low=0)
        require_one_of(self, "entry", ("mean", "any"))
        require(self, "success")

    def init(self) -> dict[str, Any]:
        """No prompt seen."""
        none = torch.zeros(0, dtype=torch.float64)
        return {"steps": 0, "uid": none.long(), "step": none.long(), **dict.fromkeys(COUNTS, none),
                "entries": torch.zeros(0, self.window, dtype=torch.float64)}  # fmt: skip

    def view(self, state: dict[str, Any]) -> Tracked:
        """The known success at the start of a step."""
        left_N = self.fade ** (state["steps"] - state["step"]).double()
        right_N, wrong_N = state["right"] * left_N, state["wrong"] * left_N
        success_N = right_N / (right_N + wrong_N)
        if self.window:
            success_N = self._fitted(state["entries"]).nanmean(dim=1)
        return Tracked(state["uid"], right_N, wrong_N, success_N, state["answers"])

    def __call__(self, draws: tuple[Draw, ...], state: dict[str, Any]) -> Result:
        known = self.view(state).of([draw.uid for draw in draws])
        success, answers = known.success_N.tolist(), known.answers_N.tolist()
        explained = tuple(
            draw._replace(columns={**draw.columns, "past_success_B": p, "past_answers_B": n})
            for draw, p, n in zip(draws, success, answers, strict=True)
        )
        seen = [p for p in success if p == p]
        metrics = {
            "tracked/prompts": float(len(state["uid"])),
            "tracked/success": sum(seen) / max(len(seen), 1),
            "tracked/frac_new": 1 - len(seen) / max(len(draws), 1),
        }
        return Result(explained, state, metrics)

    def observe(
        self, uid_P: Tensor, group_B: Tensor, outcome_B: Tensor, scored_B: Tensor,
        state: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """The sums after a step."""
        right_B = scored_B & (outcome_B >= self.success)
        answers_P = segments.count(group_B, uid_P.shape[0], scored_B)
        new_N = torch.unique(uid_P[answers_P > 0])
        row_P, known_P = segments.find(new_N, uid_P)
        num = len(new_N) + 1  # the last one: of prompts without a scored answer
        row_B = torch.where(known_P, row_P, num - 1)[group_B]
        count_N = segments.count(row_B, num, scored_B)[:-1].double()
        c_N = segments.count(row_B, num, right_B)[:-1].double()
        step = state["steps"]
        old_N = state["uid"]
        uid_N = torch.unique(torch.cat([old_N, new_N]))
        (at_old, _), (at_new, _) = segments.find(uid_N, old_N), segments.find(uid_N, new_N)

        def grown(column: Tensor, empty: float = 0.0) -> Tensor:
            wide = column.new_full((len(uid_N), *column.shape[1:]), empty)
            return wide.index_copy(0, at_old, column)

        age_N = step - grown(state["step"])[at_new]
        left_N = self.keep * self.fade ** age_N.double()
        decay = {"right": left_N, "wrong": left_N, "answers": torch.ones_like(left_N)}
        adds = {"right": c_N, "wrong": count_N - c_N, "answers": count_N}
        found = {name: grown(state[name]) for name in COUNTS}
        sums = {n: found[n].index_copy(0, at_new, decay[n] * found[n][at_new] + adds[n])
                for n in COUNTS}  # fmt: skip
        entries = self._fitted(grown(state["entries"], float("nan")))
        entry_N = (c_N > 0).double() if self.entry == "any" else c_N / count_N
        recent = torch.cat([entries[at_new], entry_N[:, None]], dim=1)[:, 1:]
        entries = entries.index_copy(0, at_new, recent)
        last_N = grown(state["step"]).index_fill(0, at_new, step + 1)
        return {"steps": step + 1, "uid": uid_N, "step": last_N, **sums, "entries": entries}

    def _fitted(self, entries: Tensor) -> Tensor:
        """The newest entries that fit into the window, whose size may have changed."""
        missing = max(self.window - entries.shape[1], 0)
        empty = entries.new_full((entries.shape[0], missing), float("nan"))
        return torch.cat([empty, entries], dim=1)[:, entries.shape[1] + missing - self.window :]
