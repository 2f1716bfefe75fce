"""Predicts how likely a policy solves a prompt, from prompts that it did and did not solve.

    history = history_of("runs/grpo-1")                   # prompts and their mean outcomes
    fit_adapter({"one": history, "other": ...}, "Qwen/Qwen3-Embedding-0.6B", "adapter.safetensors")
    forecast(history, ["3,5,7:22="], adapter="adapter.safetensors")
    route("3,5,7:22=", {"small": history, "large": other}, {"small": 0.1, "large": 1.0}, beta=0.7)

`v_zero(adapter=...)` allots rollouts by it. Source: arXiv 2602.03584; code Now-Join-Us/V0.
Differs from it: by default a kernel replaces its tabular classifier, whose weights are a download
(`classifier` takes any); a context is redrawn each epoch, half of it as known rows; its clusters
of contexts are left out. The paper does not state beta, so it has no default.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from strop.parts.curation._store import STORED
from strop.parts.sampling._query_adapter import (
    Embed,
    QueryAdapter,
    Sizes,
    by_kernel,
    embedder,
    pair_loss,
    save,
)
from strop.parts.sampling.predict_success_from_history import PredictSuccessFromHistory
from strop.support.errors import UserError
from strop.tracking.rollouts_file import read_table, rollouts_files

History = Sequence[tuple[str, float]]  # prompts as the model saw them, mean outcomes in [0, 1]
COLUMNS = ("step", "uid", "draw", "prompt", "reward", "scored")
BANDWIDTH, WEIGHT = 0.1, 1.0  # of the kernel, as in `predict_success_from_history`


def history_of(run: str | Path, newest: int = 256) -> list[tuple[str, float]]:
    """The newest prompts of a run's saved rollouts with their mean rewards, within [0, 1].

    Rollouts without a score, and those replayed from earlier steps, do not count. Raises UserError
    for a folder without any other.
    """
    found: dict[tuple[int, int, int], tuple[str, list[float]]] = {}
    for path in rollouts_files(Path(run)):
        for row in read_table(path, COLUMNS).to_pylist():
            if not row["scored"] or row["draw"] // STORED not in (0, row["step"]):
                continue
            key = row["step"], row["uid"], row["draw"]
            found.setdefault(key, (row["prompt"], []))[1].append(min(max(row["reward"], 0.0), 1.0))
    if not found:
        raise UserError(f"{run} has no rollouts with a score: give a run's folder")
    return [(text, sum(all_) / len(all_)) for text, all_ in found.values()][-newest:]


def forecast(
    history: History, prompts: Sequence[str], *, adapter: str = "", classifier: str = ""
) -> list[float]:
    """The policy's expected success at each prompt.

    adapter: a file of `fit_adapter`; without one, similarity is that of pieces of text.
    classifier: see `predict_success_from_history`; empty: the kernel.
    """
    part = PredictSuccessFromHistory(
        max(len(history), 1), BANDWIDTH, WEIGHT, adapter=adapter, classifier=classifier
    )
    known = [part.features(text) for text, _ in history]
    empty_NF = part.init()["features_NF"]
    history_NF = torch.stack(known) if known else empty_NF
    success_N = torch.tensor([outcome for _, outcome in history])
    return [part.predict(part.features(text), history_NF, success_N) for text in prompts]


class Routed(NamedTuple):
    """The policy that a prompt goes to, and the value of each policy for it."""

    policy: str
    worth: dict[str, float]


def route(
    prompt: str, histories: Mapping[str, History], costs: Mapping[str, float], beta: float,
    *, adapter: str = "", classifier: str = "",
) -> Routed:  # fmt: skip
    """The policy m with the largest beta P_m + (1 - beta) (1 - cost_m); the first of equal ones.

    P_m: its expected success. costs: of each policy, within [0, 1]. Raises UserError where the
    policies of costs and histories differ.
    """
    if not histories or costs.keys() != histories.keys():
        raise UserError("route needs a history and a cost for each policy, one at least")
    if not 0 <= beta <= 1 or not all(0 <= cost <= 1 for cost in costs.values()):
        raise UserError("route: beta and costs lie between 0 and 1")
    worth = {}
    for name, history in histories.items():
        (chance,) = forecast(history, [prompt], adapter=adapter, classifier=classifier)
        worth[name] = beta * chance + (1 - beta) * (1 - costs[name])
    return Routed(max(worth, key=worth.__getitem__), worth)


def fit_adapter(
    histories: Mapping[str, History], over: str | Embed, path: str | Path, *, epochs: int = 50,
    lr: float = 2e-4, context: int = 256, alpha: float = 0.25, sizes: Sizes | None = None,
    seed: int = 0,
) -> list[float]:  # fmt: skip
    """Train a query adapter on histories of policies and write it; returns each epoch's mean loss.

    over: the embedder, a transformers model's folder or name (then the file can be read), or a
    function of a text. An epoch takes each history once, in random order: `context` rows are known,
    the others are predicted, in pairs of a solved row (outcome >= 1/2) and a failed one; the rarer
    kind is repeated. AdamW, decay 0.01, cosine after 5% of warm-up, gradient clipped at 1. Raises
    UserError where no history has both kinds.
    """
    embed = embedder(over) if isinstance(over, str) else over
    states = {text: embed(text) for history in histories.values() for text, _ in history}
    able = [h for h in histories.values() if len({outcome >= 0.5 for _, outcome in h}) == 2]
    if not able:
        raise UserError("fit_adapter needs a history with solved prompts and failed ones")
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        width = next(iter(states.values())).shape[-1]
        adapter = QueryAdapter(sizes or Sizes(width)).train()
        optimiser = torch.optim.AdamW(adapter.parameters(), lr=lr, weight_decay=0.01)
        total = epochs * len(able)
        warmup = max(int(0.05 * total), 1)
        rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda n: _rate(n, warmup, total))
        losses = []
        for _ in range(epochs):
            losses.append(0.0)
            for history in able:
                loss = _loss(adapter, history, states, context, alpha, rng)
                if loss is not None:
                    optimiser.zero_grad()
                    torch.autograd.backward(loss)
                    torch.nn.utils.clip_grad_norm_(adapter.parameters(), 1.0)
                    optimiser.step()
                    losses[-1] += float(loss.detach()) / len(able)
                rate.step()
    save(adapter, over if isinstance(over, str) else "", Path(path))
    return losses


def _rate(step: int, warmup: int, total: int) -> float:
    """The learning rate's factor: up from 0, then half a cosine down to 0."""
    if step < warmup:
        return step / warmup
    done = (step - warmup) / max(total - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def _loss(
    adapter: QueryAdapter, history: History, states: Mapping[str, Tensor], context: int,
    alpha: float, rng: torch.Generator,
) -> Tensor | None:  # fmt: skip
    """The loss of one context; None where the known or the predicted rows are all of one kind."""
    order = torch.randperm(len(history), generator=rng).tolist()
    split = min(context, len(history) // 2)
    known, asked = order[:split], order[split:]
    solved = [n for n in asked if history[n][1] >= 0.5]
    failed = [n for n in asked if history[n][1] < 0.5]
    if len({history[n][1] >= 0.5 for n in known}) < 2 or not solved or not failed:
        return None
    most = max(len(solved), len(failed))
    pairs = [n for i in range(most) for n in (solved[i % len(solved)], failed[i % len(failed)])]

    def features(rows: Sequence[int]) -> Tensor:
        feature_NF = torch.stack([adapter(states[history[n][0]]) for n in rows])
        return feature_NF / feature_NF.norm(dim=-1, keepdim=True)

    success_N = torch.tensor([history[n][1] for n in known])
    chance_M = by_kernel(features(known), success_N, features(pairs), BANDWIDTH, WEIGHT)
    outcome_M = torch.tensor([history[n][1] for n in pairs])
    return pair_loss(torch.logit(chance_M, eps=1e-6), outcome_M, alpha)
