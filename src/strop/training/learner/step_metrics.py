"""A step's metrics, from its batch and from the seconds of its stages; docs/METRICS.md has each."""

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import NUM_KEPT, Batch
from strop.data.prompts import Origin
from strop.method import part as parts
from strop.method.part import Term
from strop.support.exits import FAILED, METRIC, OUTSIDE, Exit
from strop.training.learner.kernel import Tally, prepare
from strop.training.learner.routing import KNUTH

WEIGHT, SQUARE = "weight", "weight squared"  # tallied, not logged


def step_metrics(batch: Batch, learns_B: Tensor, from_rewards: bool = True) -> dict[str, float]:
    """Rewards, group signal, answer lengths and entropy over the rollouts that were kept.

    learns_B: which of them have a gradient. from_rewards: whether the method learns from rewards;
    if not, there is no signal of groups, and no reward without a function that gives one.
    """
    num_rollouts = batch.size("B")
    found = {"num_tokens": float(batch.size("T")), "num_rollouts": float(num_rollouts)}
    if num_rollouts == 0:
        return found
    found["rewards/frac_unscored"] = _frac_unscored(batch)
    found["groups/frac_rollouts_with_gradient"] = _mean(learns_B)
    rewards = _rewards(batch, from_rewards)
    return {**found, **rewards, **_lengths(batch), **_policy(batch)}


def _frac_unscored(batch: Batch) -> float:
    """Of the rollouts that have ended, those without a score."""
    unscored_B = ~batch["scored_B"]
    return _mean(unscored_B[~batch["pending_B"]] if "pending_B" in batch else unscored_B)


def compare_with_sampler(batch: Batch, logp_T: Tensor, tally: Tally) -> None:
    """Tally how far the current policy is from the sampling one; see `effective_share`."""
    if "logp_sampler_T" in batch:
        name, gap_T = (
            "sampling/sampling_logp_difference/mean",
            (logp_T - batch["logp_sampler_T"]).abs(),
        )
        known_T = ~gap_T.isnan()  # NaN where no engine drew the token
        if gap_T.device.type != "cpu":  # indexing them would wait
            tally.add(name, torch.where(known_T, gap_T, 0).sum(), known_T.sum())
        elif (gap_T := gap_T[known_T]).numel():
            tally.add(name, gap_T.sum(), gap_T.numel())
    if "logp_behavior_T" in batch:
        with torch.no_grad():
            weight_T = (logp_T - batch["logp_behavior_T"]).double().exp()
            known_T = weight_T.isfinite()
            weight_T = torch.where(known_T, weight_T, 0)  # indexing them would block on the GPU
            tally.add(WEIGHT, weight_T.sum(), known_T.sum())
            tally.add(SQUARE, weight_T.square().sum(), known_T.sum())


def effective_share(means: dict[str, float]) -> float:
    """(sum w)^2 / (n sum w^2) of the tokens' importance weights; removes the two from `means`."""
    mean, square = means.pop(WEIGHT, 0.0), means.pop(SQUARE, 0.0)
    return mean**2 / square if square else 1.0


def reward_metrics(batch: Batch, names: Sequence[str]) -> dict[str, float]:
    """rewards/{name}/mean and /std over all sampled rollouts that the function gave a number; left
    out where there is none.
    """
    if "reward_BM" not in batch:
        return {}
    found = {}
    for name, column in zip(names, batch["reward_BM"].double().T, strict=True):
        given = column[~column.isnan()]
        if given.numel():
            found[f"rewards/{name}/mean"] = _mean(given)
            found[f"rewards/{name}/std"] = float(given.std(correction=0))
    return found


def source_metrics(batch: Batch, origins: Sequence[Origin]) -> dict[str, float]:
    """sources/{name}/reward and /share, where the training prompts have several sources."""
    if not origins or batch.size("B") == 0:
        return {}
    uid_B = batch["uid_P"][batch["group_B"]].cpu()
    ends = torch.tensor([origin.end for origin in origins])
    source_B = torch.bucketize(uid_B, ends, right=True).masked_fill(uid_B < 0, len(origins))
    scored_B, reward_B = batch["scored_B"].cpu(), batch["reward_B"].cpu()
    found = {}
    for number, origin in enumerate(origins):
        theirs_B = source_B == number
        found[f"sources/{origin.name}/share"] = _mean(theirs_B)
        if bool((theirs_B & scored_B).any()):
            found[f"sources/{origin.name}/reward"] = _mean(reward_B[theirs_B & scored_B])
    return found


def exit_metrics(batch: Batch) -> dict[str, float]:
    """exit/NAME of every cause but DONE that occurs: the share of the sampled rollouts."""
    if "exit_B" not in batch:
        return {}
    found = Counter(batch["exit_B"].tolist())
    return {
        METRIC + cause.label: found[cause] / found.total()
        for cause in Exit
        if cause is not Exit.DONE and found[cause]
    }


def tool_metrics(batch: Batch, turns: Mapping[int, Any]) -> dict[str, float]:
    """tools/calls_mean of the sampled rollouts, and tools/STATUS, the share of their calls; empty
    where no turn called a tool. turns: as logged, by rollout.
    """
    logged = [turns.get(uid, ()) for uid in batch["rollout_uid_B"].tolist()]
    calls = [call["status"] for each in logged for turn in each for call in turn.get("calls", ())]
    if not calls:
        return {}
    shares = {f"tools/{status}": n / len(calls) for status, n in sorted(Counter(calls).items())}
    return {"tools/calls_mean": len(calls) / len(logged), **shares}


def _own(batch: Batch) -> Tensor:
    """[B] False for demonstrations and replays; True for all if the step has no other answers."""
    if "origin_T" not in batch:
        return torch.ones_like(batch["scored_B"])
    num, mask_T, drawn_T = batch.size("B"), batch["mask_T"], batch["origin_T"] == 0
    drawn_B, other_B = (
        segments.count(batch["rollout_T"], num, mask_T & each) > 0 for each in (drawn_T, ~drawn_T)
    )
    own_B = drawn_B | ~other_B
    return own_B if bool(drawn_B.any()) else torch.ones_like(own_B)


def _means(batch: Batch) -> dict[str, float]:
    """The mean reward of the policy's answers, and the mean over those that a reward judged."""
    scored_B, reward_B = batch["scored_B"], batch["reward_B"]
    exit_B = batch["exit_B"] if "exit_B" in batch else torch.zeros_like(batch["group_B"])
    failed_B = (exit_B >= FAILED) & (exit_B < OUTSIDE)  # a reward failed on the answer
    own_B = _own(batch)
    judged_B = scored_B & ~failed_B & own_B
    found = {"reward": _mean(torch.where(scored_B, reward_B, 0)[(scored_B | failed_B) & own_B])}
    return {**found, "reward_judged": _mean(reward_B[judged_B])} if bool(judged_B.any()) else found


def _rewards(batch: Batch, from_rewards: bool) -> dict[str, float]:
    scored_B, reward_B = batch["scored_B"], batch["reward_B"]
    judged = from_rewards or "reward_BM" not in batch or batch["reward_BM"].shape[1] > 0
    if not judged or not bool(scored_B.any()):
        return {}
    group_B, num = batch["group_B"], batch.size("P")
    std_P = segments.std(reward_B, group_B, num, scored_B)
    has_P = segments.count(group_B, num, scored_B) > 0
    found = {**_means(batch), "reward_std": _mean(std_P[has_P])}
    if not from_rewards:
        return found
    outcome_B = batch["outcome_B"]
    low_P = segments.extreme(outcome_B, group_B, num, scored_B, largest=False)
    high_P = segments.extreme(outcome_B, group_B, num, scored_B, largest=True)
    best, worst = outcome_B[scored_B].max(), outcome_B[scored_B].min()
    best, worst = best.clamp(min=1.0), worst.clamp(max=0.0)
    all_1, all_0 = (low_P >= best)[has_P], (high_P <= worst)[has_P]
    return {
        **found,
        "frac_reward_zero_std": _mean((std_P == 0)[has_P]),
        "groups/frac_all_0": _mean(all_0),
        "groups/frac_all_1": _mean(all_1),
        "groups/frac_mixed": 1 - _mean(all_0 | all_1),
        "groups/frac_tied_top": _mean(_tied_top(batch)[has_P]),
        "advantage/abs_mean": _mean(batch["advantage_B"][scored_B].abs()),
    }


def _tied_top(batch: Batch) -> Tensor:
    """Groups [P] bool whose largest reward several distinct answers share."""
    group_B, num, scored_B = batch["group_B"], batch.size("P"), batch["scored_B"]
    best_P = segments.extreme(batch["reward_B"], group_B, num, scored_B)
    top_B = scored_B & (batch["reward_B"] == best_P[group_B])
    answers = torch.stack([group_B, _answer_key(batch)], dim=1)[top_B].unique(dim=0)
    return torch.bincount(answers[:, 0], minlength=num) > 1


def _answer_key(batch: Batch) -> Tensor:
    """An int64 [B] that is the same for answers of the same tokens: a hash, with wrap-around."""
    mask_T, rollout_T = batch["mask_T"], batch["rollout_T"]
    first_B = batch["length_B"].cumsum(0) - batch["length_B"]
    place_T = mask_T.cumsum(0) - first_B[rollout_T]  # a policy token's place in its answer, from 1
    mixed_T = (batch["id_T"] + 1) * (2 * place_T + 1) * KNUTH
    mixed_T = (mixed_T ^ (mixed_T >> 29)) * KNUTH
    keys_B = torch.zeros_like(batch["group_B"])
    return keys_B.index_add(0, rollout_T[mask_T], mixed_T[mask_T])


def _lengths(batch: Batch) -> dict[str, float]:
    length_B, truncated_B = batch["length_B"].double(), batch["truncated_B"]
    found = {
        "completions/mean_length": _mean(length_B),
        "completions/min_length": float(length_B.min()),
        "completions/max_length": float(length_B.max()),
        "completions/clipped_ratio": _mean(truncated_B),
    }
    if not bool(truncated_B.all()):
        ended_B = length_B[~truncated_B]
        found["completions/mean_terminated_length"] = _mean(ended_B)
    return found


def _policy(batch: Batch) -> dict[str, float]:
    entropy_N = batch["entropy_behavior_T"][batch["mask_T"]]
    version_N = batch["version_T"][batch["mask_T"]]
    drawn_N = version_N >= 0  # by an engine
    found: dict[str, float] = {}
    if bool(drawn_N.any()):
        found["sampling/age_steps"] = _mean(batch["step"] - 1 - version_N[drawn_N])
    if NUM_KEPT in batch.columns:
        kept_N = batch[NUM_KEPT][batch["mask_T"]]
        found["sampling/kept_tokens"] = _mean(kept_N[kept_N > 0])
    entropy_N = entropy_N[~entropy_N.isnan()]  # NaN where no engine drew the token
    known_N = ~batch["logp_sampler_T"][batch["mask_T"]].isnan()
    if "advantage_T" in batch and bool((drawn_N & known_N).any()):
        found["advantage/logp_covariance"] = _covariance(batch)
    return {**found, "entropy": _mean(entropy_N)} if entropy_N.numel() else found


def _covariance(batch: Batch) -> float:
    """Covariance of log-probability and advantage over the scored tokens that an engine drew."""
    logp_T = batch["logp_sampler_T"].double()
    where_T = batch["mask_T"] & batch["scored_B"][batch["rollout_T"]] & ~logp_T.isnan()
    product_T = segments.covariance(logp_T, batch["advantage_T"].double(), where_T)
    return segments.overall(product_T, where_T)


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if values.numel() else 0.0


def critic_metrics(terms: Sequence[Term], batch: Batch) -> dict[str, float]:
    """Measures how well each head predicted the returns of this step, before its updates.

    It covers the tokens that the head's term learns from, and omits the explained variance when
    all returns are equal.
    """
    found: dict[str, float] = {}
    for term in terms:
        columns = {read.parameter: read.column for read in parts.reads(term.objective)}
        value, target = columns.get("value_T", ""), columns.get("return_T", "")
        if term.learner != "critic" or value not in batch or target not in batch:
            continue
        rows_T = prepare([term], batch)[f"{term.name}:rows_T"]
        value_N, return_N = batch[value][rows_T].double(), batch[target][rows_T].double()
        if return_N.numel() == 0:
            continue
        head = value.removeprefix("value").removesuffix("_T").strip("_")
        place = f"critic/{head}/" if head else "critic/"
        found[f"{place}value_mean"] = float(value_N.mean())
        found[f"{place}return_mean"] = float(return_N.mean())
        variance = return_N.var(correction=0)
        if bool(variance > 0):
            missed = (return_N - value_N).var(correction=0)
            found[f"{place}explained_variance"] = float(1 - missed / variance)
    return found


class Clock:
    """Adds up seconds by stage, `with clock("reward"): ...`; `now` is the wall clock.

    on_stage: called with each stage as it starts.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        on_stage: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self.now, self.on_stage, self.started = now, on_stage, now()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.on_stage(stage)
        start = self.now()
        try:
            yield
        finally:
            spent = self.now() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent

    def metrics(self, batch: Batch) -> dict[str, float]:
        """timing_s/*, perf/* and step_time (s)."""
        whole = self.now() - self.started
        tokens = float(batch["mask_T"].sum())
        return {
            **{f"timing_s/{stage}": seconds for stage, seconds in self.seconds.items()},
            "step_time": whole,
            "perf/tokens_per_s": tokens / whole,
            "perf/rollouts_per_s": batch.size("B") / whole,
            "perf/peak_mem_gb": peak_memory_gb(),
        }


def peak_memory_gb() -> float:
    """Returns the peak memory in GiB, of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
