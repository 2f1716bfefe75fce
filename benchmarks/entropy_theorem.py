"""Does training on good rollouts lower entropy, and on bad ones raise it? Measured on rollouts.

    python benchmarks/entropy_theorem.py MODEL_OR_CHECKPOINT ... [--prompts 64] [--batches 4]

Theorem 1 of arXiv 2604.26326: a policy-gradient step on one token k with advantage A changes the
entropy against A's sign whenever p_k >= B, B = prod_{i != k} p_i^(-dp_i / dp_k). For a softmax over
free logits, dp = p * (dz - <p, dz>) with dz = A (onehot_k - p).

For every model: the share of sampled tokens with p >= B, the entropy change that the theorem's
first order predicts for the good, the bad and all rollouts (sum over the tokens, per unit of step),
and the change that one small step of plain gradient descent on them really makes in the network, on
the same contexts. Signs are what to compare: the theorem takes logits to be free, the network
shares weights.
"""

import argparse
import copy
from typing import Any

import torch
from torch import Tensor

from strop import part as parts
from strop.batch import Batch
from strop.kernel import Tally
from strop.step import World
from strop.training import config
from strop.training.clock import Clock
from strop.training.collect import Collector
from strop.training.learn import Learner
from strop.training.models import trunk_of
from strop.training.pack import pad_rollouts
from strop.training.seeds import generators
from strop.training.setup import load_model, load_prompts, make_world

STEP = 1e-3  # of plain gradient descent on the token mean; small enough to be first order


def open_world(model: str, prompts: int) -> tuple[World, Any]:
    """The model with the Countdown task and the grpo recipe."""
    settings = config.make(
        {
            "recipe": 'grpo(aggregation="token-mean")',
            "model": {"name": model},
            "algorithm": {"sampling.num_prompts": prompts},
        }
    )
    algorithm = settings.build()
    task = load_prompts(settings.data, settings.reward, 0)
    return make_world(settings, algorithm, load_model(settings), task), algorithm


def rollouts(world: World, algorithm: Any, number: int) -> Batch:
    """One step's batch with its advantages."""
    rng_of = generators(number, 1)
    columns = {name: torch.tensor(1) for name in ("step", "num_steps")}
    columns["max_length"] = torch.tensor(world.services.max_tokens)
    collector = Collector(world.services, world.engine, world.pool, rng_of, Clock(), columns)
    batch = collector.collect(algorithm, {}).batch
    batch = batch.set(advantage_B=batch["reward_B"])
    for use in algorithm.advantage:
        batch = parts.write(batch, use, parts.call(use, batch))
    return batch


@torch.no_grad()
def distributions(world: World, batch: Batch) -> Tensor:
    """Next-token log-probabilities [policy tokens, V]; the vocabulary here is small."""
    model: Any = world.policy.model
    ids_BL, _ = pad_rollouts(batch)
    hidden = trunk_of(model)(input_ids=ids_BL, use_cache=False).last_hidden_state
    logq_BLV = model.get_output_embeddings()(hidden).log_softmax(-1)
    mask_T, rollout_T = batch["mask_T"], batch["rollout_T"]
    start_B = torch.cumsum(batch["size_B"], 0) - batch["size_B"]
    position = mask_T.nonzero().squeeze(1) - start_B[rollout_T[mask_T]]
    return logq_BLV[rollout_T[mask_T], position - 1].double()


def theorem(logq_TV: Tensor, id_T: Tensor) -> tuple[Tensor, Tensor]:
    """(p >= B, dH per unit of A * step) of every token, free logits."""
    p_TV = logq_TV.exp()
    chosen_TV = torch.nn.functional.one_hot(id_T, logq_TV.shape[1]).double()
    dz_TV = chosen_TV - p_TV
    dp_TV = p_TV * (dz_TV - (p_TV * dz_TV).sum(1, keepdim=True))
    dp_k = (dp_TV * chosen_TV).sum(1)
    others = ((1 - chosen_TV) * dp_TV * logq_TV).sum(1)
    log_b = -others / dp_k
    log_p = (logq_TV * chosen_TV).sum(1)
    return log_p >= log_b, -dp_k * (log_p - log_b)


def measured(world: World, algorithm: Any, batch: Batch, keep_T: Tensor) -> float:
    """Change of the mean entropy on the batch's contexts after one small step on `keep_T`."""
    weights = copy.deepcopy(world.policy.model.state_dict())
    before = world.policy.columns(batch, ("entropy_T",))["entropy_T"][batch["mask_T"]].mean()
    all_T = batch["mask_T"]
    chosen = batch.set(gradient_T=keep_T, denominator_T=all_T)
    learner = Learner(world.policy, None, STEP, generators(0, 1))
    learner.apply(list(algorithm.terms), chosen, 0, Tally())
    with torch.no_grad():
        for parameter in world.policy.parameters():
            if parameter.grad is not None:
                parameter -= STEP * parameter.grad
                parameter.grad = None
    after = world.policy.columns(batch, ("entropy_T",))["entropy_T"][all_T].mean()
    world.policy.model.load_state_dict(weights)
    return float(after - before)


def main() -> None:
    """One block of lines per model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--batches", type=int, default=4)
    options = parser.parse_args()
    for model in options.models:
        world, algorithm = open_world(model, options.prompts)
        rows: dict[str, list[float]] = {}
        for number in range(options.batches):
            batch = rollouts(world, algorithm, number)
            mask_T = batch["mask_T"]
            above, change = theorem(distributions(world, batch), batch["id_T"][mask_T])
            advantage = batch["advantage_T"][mask_T].double()
            rows.setdefault("entropy", []).append(float(batch["entropy_behavior_T"][mask_T].mean()))
            signs = {"good": advantage > 0, "bad": advantage < 0, "all": advantage != 0}
            for name, chosen in signs.items():
                rows.setdefault(f"{name}: share of tokens with p >= B", []).append(
                    float(above[chosen].double().mean())
                )
                rows.setdefault(f"{name}: predicted dH", []).append(
                    float((change * advantage)[chosen].sum() / len(advantage))
                )
                keep_T = torch.zeros_like(mask_T)
                keep_T[mask_T] = chosen
                rows.setdefault(f"{name}: measured dH / step", []).append(
                    measured(world, algorithm, batch, keep_T) / STEP
                )
        world.services.grader.close()
        print(f"\n{model} ({options.batches} batches of {options.prompts} prompts)")
        for name, values in rows.items():
            mean = sum(values) / len(values)
            print(f"  {name:36s} {mean:+.4f}   (smallest {min(values):+.4f}, "
                  f"largest {max(values):+.4f})")  # fmt: skip


if __name__ == "__main__":
    main()
