"""Draw prompts from several sources, more often from those with more to learn."""

from dataclasses import dataclass
from typing import Any

import torch

from strop.method.part import Result, require
from strop.method.services import Texts
from strop.parts.sampling._tracked import Tracked
from strop.parts.sampling.draw_from_sources import DrawFromSources, sources_of


@dataclass(frozen=True)
class DrawSourcesByGap(DrawFromSources):
    """A source that teaches more is practised more often, and none is ever left out.

        v_k = mean of 4 s (1 - s) over the source's prompts whose success s is known; none: 1
        b = argmax v;   gamma = scale t^power, t: 1 + the draws so far
        P_k = 1 / (K + gamma (v_b - v_k)) for k != b of the K sources;   P_b = 1 - sum of the others

    Inverse-gap weighting, the rule of a contextual bandit over a regression; here the regression is
    the mean over earlier answers. Within a source prompts come as in draw_from_sources. The chance
    of each prompt is stored with its rollouts (draw/sample_probability). Metrics: those of
    draw_from_sources, sources/{name}/value (v), /probability (P).

    Reads: pool, texts, tracked, state, rng, num_wanted.   Writes: draws.
    Source: arXiv 2412.00569 (its rule is that of VowpalWabbit/vowpal_wabbit).
    Differs from the source: arms are sources of prompts, and their value is how undecided their
    answers are, not a regression over features.
    Nearest part: draw_from_sources; equal to it at scale 0 with equal weights.
    Edges: the weights of the data are ignored; one source -> all its prompts; equal v -> the first
    is b, and all have P 1 / K.
    """

    # Weight of a gap at the first draw. Default: released code (10).
    scale: float = 10.0
    # Power of the draws by which it grows. Default: released code (1/2).
    power: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "scale", "power", low=0.0)

    def __call__(  # type: ignore[override]
        self,
        pool: tuple[int, ...],
        texts: Texts,
        tracked: Tracked,
        state: dict[str, Any],
        rng: torch.Generator,
        num_wanted: int | None = None,
    ) -> Result:
        sources = sources_of(pool, texts)
        values = []
        for source in sources:
            success_N = tracked.of(pool[source.begin : source.begin + source.size]).success_N
            known_N = success_N[~success_N.isnan()]
            values.append(float((4 * known_N * (1 - known_N)).mean()) if len(known_N) else 1.0)
        before = zip(state["epoch"], state["cursor"], sources, strict=False)
        drawn = sum(max(epoch, 0) * source.size + cursor for epoch, cursor, source in before)
        chances = by_gap(values, self.scale * (drawn + 1) ** self.power)
        result = self.drawn(pool, sources, chances, state, rng, num_wanted)
        metrics = {}
        for source, value, chance in zip(sources, values, chances, strict=True):
            metrics[f"sources/{source.name}/value"] = value
            metrics[f"sources/{source.name}/probability"] = chance
        return result._replace(metrics={**result.metrics, **metrics})


def by_gap(values: list[float], gamma: float) -> list[float]:
    """The chance of each arm by inverse-gap weighting."""
    best = values.index(max(values))
    chances = [1 / (len(values) + gamma * (values[best] - value)) for value in values]
    chances[best] = 1 - sum(chances[:best] + chances[best + 1 :])
    return chances
