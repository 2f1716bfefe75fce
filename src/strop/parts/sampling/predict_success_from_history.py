"""Before sampling, predict each prompt's success from the policy's results on similar ones."""

import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Draw, Result, require
from strop.method.services import Texts
from strop.parts.sampling._query_adapter import by_kernel, read
from strop.support.loading import attribute

NUM_FEATURES = 512
GRAM = 3  # characters that a feature spans


@dataclass(frozen=True)
class PredictSuccessFromHistory:
    """Each prompt comes with a prior of its success, from the policy's last prompts and outcomes.

        prior_i = (weight m + sum_j k_ij y_j) / (weight + sum_j k_ij),  j over the history
        k_ij = exp((cos(f_i, f_j) - 1) / bandwidth), f: counts of three-character pieces
        y_j: mean outcome of prompt j's rollouts, within [0, 1];  m: mean y, 1/2 without history
        adapter: f by queries over an embedder's states, trained on histories of other policies
        classifier: its chances in place of the kernel's

    Nothing is trained in the run; all that is known of the policy is the history.
    Metric: prior/mean.

    Reads: draws; texts; state; uid_P [P], group_B [B] int, outcome_B [B] float, scored_B
    [B] bool of all that was sampled (observe).   Writes: the draws, with prior_B [B] float.
    Source: arXiv 2602.03584 (success from the policy's history, in context).
    Differs from the source: the defaults are the kernel, where it has a tabular classifier, and
    pieces of text; labels are means, there thresholded.
    Nearest part: estimate_success_first, which samples answers to measure it.
    Edges: an empty history -> 1/2; a classifier is used once outcomes on both sides of 1/2 are
    known, and the kernel until then. The history is in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = ("prior_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("prior_B", "float", "predicted success of the prompt", random="uniform"),
    )
    # Prompts of the history. Default: paper (256).
    context: int = 256
    # Distance of texts beyond which outcomes hardly inform each other. Default: ours (0.1).
    bandwidth: float = 0.1
    # Number of prompts that the history's mean counts as. Default: ours (1).
    weight: float = 1.0
    # File of an adapter that `strop.evaluation.success_forecast.fit_adapter` wrote; "": pieces of
    # text. Default: ours (none, the embedder is a download).
    adapter: str = ""
    # `file.py:function` of (features [N, F], successes [N], features [M, F]) -> chances [M], such
    # as a TabPFN's; "": the kernel. Default: ours (none).
    classifier: str = ""

    def __post_init__(self) -> None:
        require(self, "context", low=1)
        require(self, "bandwidth", "weight", low=1e-06)

    def init(self) -> dict[str, Any]:
        """No history."""
        width = read(self.adapter).width if self.adapter else NUM_FEATURES
        nothing_NF = torch.zeros(0, width)
        return {"features_NF": nothing_NF, "success_N": torch.zeros(0), "drawn": {}}

    def __call__(self, draws: tuple[Draw, ...], texts: Texts, state: dict[str, Any]) -> Result:
        drawn = {d.uid: self.features(texts.prompt_text(d.uid)) for d in draws}
        predicted = []
        for draw in draws:
            prior = self.predict(drawn[draw.uid], state["features_NF"], state["success_N"])
            predicted.append(draw._replace(columns={**draw.columns, "prior_B": prior}))
        mean = sum(d.columns["prior_B"] for d in predicted) / max(len(predicted), 1)
        seen = {**state["drawn"], **drawn}
        return Result(tuple(predicted), {**state, "drawn": seen}, {"prior/mean": mean})

    def predict(self, features_F: Tensor, history_NF: Tensor, success_N: Tensor) -> float:
        """The prior of one prompt."""
        high_N = success_N >= 0.5
        if self.classifier and high_N.any() and not high_N.all():
            chance_M = attribute(self.classifier)(history_NF, success_N, features_F[None])
            return min(max(float(chance_M[0]), 0.0), 1.0)
        return float(
            by_kernel(history_NF, success_N, features_F[None], self.bandwidth, self.weight)[0]
        )

    def features(self, text: str) -> Tensor:
        """A prompt's features [F], of length 1."""
        return read(self.adapter)(text) if self.adapter else _pieces(text)

    def observe(
        self,
        uid_P: Tensor,
        group_B: Tensor,
        outcome_B: Tensor,
        scored_B: Tensor,
        state: dict[str, Any],
    ) -> dict[str, Any]:
        """The history with the step's prompts at its end."""
        num = uid_P.shape[0]
        success_P = segments.mean(outcome_B.clamp(0, 1), group_B, num, scored_B)
        known_P = segments.count(group_B, num, scored_B) > 0
        rows = [
            (state["drawn"][uid], value)
            for uid, value, known in zip(
                uid_P.tolist(), success_P.tolist(), known_P.tolist(), strict=True
            )
            if known and uid in state["drawn"]
        ]
        new_NF = torch.stack([f for f, _ in rows]) if rows else state["features_NF"][:0]
        features_NF = torch.cat([state["features_NF"], new_NF])[-self.context :]
        success_N = torch.cat([state["success_N"], torch.tensor([v for _, v in rows])])
        success_N = success_N[-self.context :]
        seen = set(uid_P.tolist())  # what other steps have in flight waits for its own
        drawn = {uid: found for uid, found in state["drawn"].items() if uid not in seen}
        return {"features_NF": features_NF, "success_N": success_N, "drawn": drawn}


def _pieces(text: str) -> Tensor:
    """Counts of the text's three-character pieces [F], of length 1."""
    counts_F = torch.zeros(NUM_FEATURES)
    padded = f" {text} "
    for start in range(max(len(padded) - GRAM + 1, 1)):
        counts_F[zlib.crc32(padded[start : start + GRAM].encode()) % NUM_FEATURES] += 1
    unit_F: Tensor = counts_F / counts_F.norm()
    return unit_F
