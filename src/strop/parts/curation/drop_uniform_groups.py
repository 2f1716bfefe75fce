"""Train on prompts whose answers differ in outcome, and sample more until there are enough."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.method.part import Curated, Result, require
from strop.parts.curation._refill import START, refill


@dataclass(frozen=True)
class DropUniformGroups:
    """Prompts that are always solved or never solved take no place in the batch.

        live: max outcome > min outcome among the group's scored rollouts, or one scored rollout
              (with keep_failed: min outcome < best, so prompts never solved keep their place)
        while live < target and rounds < max_rounds: sample `target - live` more prompts
        then keep the first `target` live groups

    Metrics: dynamic_sampling/rounds, /uniform_fraction (of the groups sampled), /missing_prompts
    (target - live when the rounds ran out, else 0).

    Reads: outcome_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: rows to keep.
    Source: arXiv 2503.14476, sec. 3.2, eq. 11; code verl-project/verl-recipe dapo; keep_failed:
    arXiv 2509.18851, code nangongrui-ngr/NGRPO.
    Differs from the source: requests the missing prompts, not a whole batch again; when the rounds
    run out it continues with what there is; the released code raises (`strict`).
    Nearest part: none.
    Edges: no scored rollout -> dropped; no live group at all -> keeps nothing; with keep_failed a
    lone perfect rollout -> dropped. A restart loses nothing: the round count is 0 between steps.
    """

    # Prompts wanted; 0: as many as the sampler drew first. Default: paper (the sampled batch).
    num_prompts: int = 0
    # Rounds of sampling a step, the first included; 1: no refill; 0: no limit. Default: released
    # code (the scripts' max_num_gen_batches).
    max_rounds: int = 10
    # Raise when the rounds ran out before there were enough. Default: ours (a long run continues).
    strict: bool = False
    # Drop only the prompts whose answers are all perfect. Default: paper (never solved ones too).
    keep_failed: bool = False
    # The largest outcome there is; for keep_failed. Default: ours (1, of rewards in {0, 1}).
    best: float = 1.0

    def __post_init__(self) -> None:
        require(self, "num_prompts", "max_rounds", low=0)
        require(self, "best")

    @property
    def facts(self) -> frozenset[str]:
        """Groups that never succeed stay uniform where they are kept."""
        return frozenset() if self.keep_failed else frozenset({"removes_uniform_groups"})

    def init(self) -> dict[str, int]:
        """The initial state: no round has started."""
        return dict(START)

    def __call__(
        self,
        outcome_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        state: dict[str, int],
        num_groups: int,
    ) -> Result:
        live_P = self._live(outcome_B, group_B, num_groups, scored_B)
        limits = (self.num_prompts, self.max_rounds)
        keep_B, ask, state, metrics = refill(live_P, group_B, state, *limits, self.strict)
        return Result(Curated(keep_B, "uniform_group", ask=ask), state, metrics)

    def _live(self, outcome_B: Tensor, group_B: Tensor, num: int, scored_B: Tensor) -> Tensor:
        if self.keep_failed:
            return segments.count(group_B, num, scored_B & (outcome_B < self.best)) > 0
        differ_P = segments.differ(outcome_B, group_B, num, scored_B)
        return differ_P | (segments.count(group_B, num, scored_B) == 1)
