"""Does training on good rollouts lower entropy, and on bad ones raise it? A test on rollouts.

    python benchmarks/entropy_theorem.py MODEL_OR_CHECKPOINT ... [--prompts 64] [--batches 4]
        [--rollouts 16] [--data FILE] [--pool]

Theorem 1 of arXiv 2604.26326: a policy-gradient step on one token k with advantage A changes the
entropy in the direction opposite to A's sign whenever p_k >= B, B = prod_{i != k}
p_i^(-dp_i / dp_k). For a softmax over free logits, dp = p * (dz - <p, dz>) with
dz = A (onehot_k - p).

Per model, with 95% Student-t intervals over batches (with --pool: over the models, one table):

- the share of sampled tokens with p >= B, among good (advantage > 0) and bad answers;
- sum dH at A = 1 over all tokens, over sum |dH|: for tokens sampled from p, the theorem's changes
  average to 0, sum_k p_k dH_k = 0, so good and bad answers of a prompt need opposite signs of A to
  disagree;
- the cosine between the gradients of good and of bad answers, with the recipe's advantages and with
  rewards of 1 and -1. On-policy both are estimates of the gradient of the success probability;
- for steps on good, bad and all rollouts, in all groups, in those where at least half of the
  answers are right (easy) and in the others (hard): the change of entropy per unit of step that the
  theorem predicts (free logits), the change that a small step of gradient descent on the network
  makes on the same contexts, and the change on fresh rollouts of other prompts, reweighted to the
  policy after the step, which is what the next training step logs.
"""

import argparse
import copy
from typing import Any

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch, to_padded
from strop.environments.countdown import MAX_TOKENS
from strop.evaluation.seeds import ANYTHING, over_seeds
from strop.head.head import trunk_of
from strop.method.chains import Chains, generators
from strop.training.collect.here import collector_of
from strop.training.learner.kernel import Tally
from strop.training.learner.step_metrics import Clock
from strop.training.learner.update import Learner
from strop.training.loading import load_model
from strop.training.settings import config
from strop.training.setup import load_prompts, make_world
from strop.training.world import World

REWARD = "strop.environments.countdown:correct"  # of puzzles from a file
STEP = 1e-3  # of plain gradient descent on the token mean; small enough to be first order


def open_world(model: str, options: argparse.Namespace) -> tuple[World, Any]:
    """The model with Countdown's puzzles, or those of `options.data`, and the grpo recipe."""
    sizes = {"sampling.num_prompts": options.prompts, "sampling.num_rollouts": options.rollouts}
    settings = config.make(
        {
            "recipe": 'grpo(aggregation="token-mean")',
            "model": {"name": model},
            "data": {"files": tuple(options.data)},
            "reward": {"functions": (REWARD,) if options.data else ()},
            "algorithm": {**sizes, "rollout.max_tokens": MAX_TOKENS},
        }
    )
    algorithm = settings.build()
    task = load_prompts(settings.data, settings.reward)
    return make_world(settings, algorithm, load_model(settings), task), algorithm


def rollouts(world: World, algorithm: Any, number: int) -> Batch:
    """One step's batch with its advantages."""
    chains = Chains(generators(number, 1), world.services, {})
    batch = collector_of(world, algorithm, 1, chains, Clock()).collect(algorithm)
    return chains.credit(algorithm.advantage, batch)


@torch.no_grad()
def distributions(world: World, batch: Batch) -> Tensor:
    """Next-token log-probabilities [policy tokens, V]; the vocabulary here is small."""
    model: Any = world.policy.model
    ids_BL = to_padded(batch["id_T"], batch["rollout_T"], batch.size("B"))
    hidden = trunk_of(model)(input_ids=ids_BL, use_cache=False).last_hidden_state
    logq_BLV = model.get_output_embeddings()(hidden).log_softmax(-1)
    mask_T, rollout_T = batch["mask_T"], batch["rollout_T"]
    start_B = torch.cumsum(batch["size_B"], 0) - batch["size_B"]
    position = mask_T.nonzero().squeeze(1) - start_B[rollout_T[mask_T]]
    return logq_BLV[rollout_T[mask_T], position - 1].double()


def theorem(logq_TV: Tensor, id_T: Tensor) -> tuple[Tensor, Tensor]:
    """(p >= B, dH per unit of A * step) of every token, for free logits."""
    p_TV = logq_TV.exp()
    chosen_TV = torch.nn.functional.one_hot(id_T, logq_TV.shape[1]).double()
    dz_TV = chosen_TV - p_TV
    dp_TV = p_TV * (dz_TV - (p_TV * dz_TV).sum(1, keepdim=True))
    dp_k = (dp_TV * chosen_TV).sum(1)
    others = ((1 - chosen_TV) * dp_TV * logq_TV).sum(1)
    log_b = -others / dp_k
    log_p = (logq_TV * chosen_TV).sum(1)
    return log_p >= log_b, -dp_k * (log_p - log_b)


def gradients(world: World, algorithm: Any, batch: Batch, keep_T: Tensor) -> list[Tensor]:
    """The gradient of the loss over `keep_T`, divided by the number of all policy tokens."""
    chosen = batch.set(gradient_T=keep_T, denominator_T=batch["mask_T"])
    Learner(world.act(algorithm), STEP, generators(0, 1)).apply(
        list(algorithm.terms), chosen, 0, Tally()
    )
    weights = list(world.policy.parameters())
    found = [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in weights]
    for weight in weights:
        weight.grad = None
    return found


def entropies(world: World, batch: Batch, before_B: Tensor | None = None) -> tuple[float, Tensor]:
    """(mean entropy of the policy tokens, log-probability of each rollout).

    With `before_B`, the log-probabilities under the policy that sampled, rollouts are weighted by
    exp(now - before), so that the mean is that of the current policy.
    """
    columns = world.policy.columns(batch, ("entropy_T", "logp_T"), 1.0)
    key_T, num = batch["rollout_T"], batch.size("B")
    entropy_B = segments.total(columns["entropy_T"].double(), key_T, num, batch["mask_T"])
    logp_B = segments.total(columns["logp_T"].double(), key_T, num, batch["mask_T"])
    size_B = segments.count(key_T, num, batch["mask_T"]).double()
    weight_B = torch.ones_like(logp_B) if before_B is None else (logp_B - before_B).exp()
    return float((weight_B * entropy_B).sum() / (weight_B * size_B).sum()), logp_B


def changes(
    world: World, gradient: list[Tensor], batch: Batch, fresh: Batch
) -> tuple[float, float]:
    """Change of entropy per unit of step: on the batch's contexts, and on fresh rollouts."""
    weights = copy.deepcopy(world.policy.model.state_dict())
    (same, _), (other, logp_B) = entropies(world, batch), entropies(world, fresh)
    with torch.no_grad():
        for weight, slope in zip(world.policy.parameters(), gradient, strict=True):
            weight.add_(slope, alpha=-STEP)
    after_same, after_other = entropies(world, batch)[0], entropies(world, fresh, logp_B)[0]
    world.policy.model.load_state_dict(weights)
    return (after_same - same) / STEP, (after_other - other) / STEP


def cosine(left: list[Tensor], right: list[Tensor]) -> float:
    """Between two gradients, over all weights."""
    a, b = (torch.cat([piece.flatten().double() for piece in x]) for x in (left, right))
    return float(a @ b / (a.norm() * b.norm()))


def one_batch(world: World, algorithm: Any, number: int) -> dict[str, float]:
    """All quantities on one batch."""
    batch, fresh = rollouts(world, algorithm, number), rollouts(world, algorithm, number + 1000)
    mask_T, key_T = batch["mask_T"], batch["rollout_T"]
    above, slope = theorem(distributions(world, batch), batch["id_T"][mask_T])
    advantage = batch["advantage_T"][mask_T].double()
    share_P = segments.mean(batch["reward_B"], batch["group_B"], batch.size("P"))
    easy = (share_P >= 0.5)[batch["group_B"]][key_T[mask_T]]
    signs = {"good": advantage > 0, "bad": advantage < 0, "all": advantage != 0}
    found = {
        "entropy": float(batch["entropy_behavior_T"][mask_T].mean()),
        "success": float(batch["reward_B"].mean()),
        "sum dH at A = 1 / sum |dH|": float(slope.sum() / slope.abs().sum()),
    }
    for name in ("good", "bad"):
        found[f"{name}: share with p >= B"] = float(above[signs[name]].double().mean())
    kept: dict[str, list[Tensor]] = {}
    for where, chosen in {"": easy | ~easy, "easy, ": easy, "hard, ": ~easy}.items():
        for name, sign in signs.items():
            keep_T = torch.zeros_like(mask_T)
            keep_T[mask_T] = sign & chosen
            kept[where + name] = gradients(world, algorithm, batch, keep_T)
            label, part = where + name, sign & chosen
            found[f"{label}: predicted"] = float((slope * advantage)[part].sum() / len(slope))
            same, other = changes(world, kept[label], batch, fresh)
            found[f"{label}: measured, same contexts"] = same
            found[f"{label}: measured, fresh"] = other
    found["cosine of good and bad"] = cosine(kept["good"], kept["bad"])
    raw = batch.set(advantage_T=(2 * batch["reward_B"] - 1)[key_T])
    right_T = mask_T & (raw["advantage_T"] > 0)
    both = [gradients(world, algorithm, raw, keep_T) for keep_T in (right_T, mask_T & ~right_T)]
    found["cosine of good and bad, rewards of 1 and -1"] = cosine(*both)
    return found


def show(title: str, found: list[dict[str, float]]) -> None:
    """A table with one line per quantity: the mean and its interval over `found`."""
    print(f"\n{title}")
    for name in found[0]:
        within = (-1.0, 1.0) if name.startswith("cosine") else ANYTHING
        mean = over_seeds([row[name] for row in found], within=within)
        print(f"  {name:46s} {mean:+.4f}", flush=True)


def main() -> None:
    """One table per model, or one over all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--data", action="append", default=[], help="puzzles from a file")
    parser.add_argument("--pool", action="store_true", help="intervals over models, one table")
    options = parser.parse_args()
    pooled = []
    for model in options.models:
        world, algorithm = open_world(model, options)
        rows = [one_batch(world, algorithm, number) for number in range(options.batches)]
        world.services.close()
        pooled.append({name: sum(r[name] for r in rows) / len(rows) for name in rows[0]})
        if not options.pool:
            show(f"{model} ({options.batches} batches of {options.prompts} prompts)", rows)
    if options.pool:
        show(f"{len(options.models)} models, {options.batches} batches each", pooled)


if __name__ == "__main__":
    main()
