"""Learn from the tokens that a rollout drew itself, not from those it took over."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.method.part import Selected


@dataclass(frozen=True)
class DropReusedPrefixes:
    """Tokens that a rollout took over from another are its prompt: only the other learns them.

        the first fork_at tokens of an answer neither learn nor count in averages
        in_both: nor do they in the answer that they were taken from

    Reads: fork_at_B, parent_B [B] int, rollout_T [T] int, mask_T [T] bool.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2508.11016 (code: a branch's prompt has the reused tokens); in_both 2601.03715.
    Differs from the source: no.
    Nearest part: keep_origins, which decides by who wrote a token.
    Edges: no fork -> everything stays; the other one was left out of the batch -> no rollout learns
    them.
    """

    # Whether the other one does not learn them either. Default: paper (it does).
    in_both: bool = False

    @property
    def unread(self) -> frozenset[str]:
        """The parents are read only if they are left out too."""
        return frozenset() if self.in_both else frozenset({"parent_B"})

    def __call__(
        self, fork_at_B: Tensor, rollout_T: Tensor, mask_T: Tensor, parent_B: Tensor | None = None
    ) -> Selected:
        if self.in_both and parent_B is not None:
            child = (parent_B >= 0).nonzero().squeeze(1)
            fork_at_B = fork_at_B.scatter_reduce(0, parent_B[child], fork_at_B[child], "amax")
        row = mask_T.nonzero().squeeze(1)
        place_N = segments.place_in_run(rollout_T[row], fork_at_B.shape[0])
        keep_T = mask_T.clone()
        keep_T[row] = place_N >= fork_at_B[rollout_T[row]]
        return Selected(keep_T, keep_T, "reused_prefix")
