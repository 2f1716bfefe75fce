"""GRPO on the shipped model in one file: sample, score, advantages, loss, step.

    OMP_NUM_THREADS=1 python examples/one_file.py    # 2.5 minutes of processor time
    python examples/one_file.py --steps 20 --recipe dr_grpo

The whole loop is in `main`. From strop it takes the shipped model and puzzles, and
`strop.functional`: any recipe's advantages and loss on padded tensors. `strop train` does the same
with an engine that samples faster, checkpoints that resume bit for bit, and a report. The model is
small: a second thread gains nothing, and slows it down several times if the cores are busy.
"""

import argparse
import random
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop import functional as F
from strop.assets import model_folder
from strop.environments import countdown

ROLLOUTS, LONGEST = 16, 16  # answers per puzzle, most tokens per answer


def options() -> argparse.Namespace:
    """The options of the command line."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--recipe", default="grpo", help="a recipe that needs no more inputs")
    asked.add_argument("--steps", type=int, default=100)
    asked.add_argument("--prompts", type=int, default=32, help="puzzles per step")
    asked.add_argument("--held-out", type=int, default=128, help="puzzles for evaluation")
    asked.add_argument("--lr", type=float, default=2e-4)
    asked.add_argument("--minibatches", type=int, default=2, help="optimiser steps per step")
    asked.add_argument("--seed", type=int, default=0)
    return asked.parse_args()


class Policy:
    """A causal model and its tokenizer, with sampling and log-probabilities."""

    def __init__(self, folder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.end = self.tokenizer.eos_token_id
        self.pad = (
            self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.end
        )

    @torch.no_grad()
    def answer(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """One answer per prompt: ids of prompt and answer [B, L], attention [B, L], mask [B, A].

        mask is 1 where the policy chose the token: up to the answer's end token, included.
        """
        given = self.tokenizer(list(prompts), return_tensors="pt", padding=True)
        attention = given.attention_mask
        ids = self.model.generate(
            given.input_ids, attention_mask=attention, max_new_tokens=LONGEST, do_sample=True,
            temperature=1.0, top_k=0, top_p=1.0, pad_token_id=self.pad, eos_token_id=self.end,
        )  # fmt: skip
        answers = ids[:, attention.shape[1] :]
        ended_before = ((answers == self.end).cumsum(1) - (answers == self.end).long()) > 0
        mask = (~ended_before).long()
        return ids, torch.cat([attention, mask], 1), mask

    def texts(self, ids: Tensor, mask: Tensor) -> list[str]:
        """The answers as text, without end tokens."""
        answers = ids[:, -mask.shape[1] :]
        kept = [own[own_mask.bool()] for own, own_mask in zip(answers, mask, strict=True)]
        return self.tokenizer.batch_decode(kept, skip_special_tokens=True)

    def logp(self, ids: Tensor, attention: Tensor, num: int) -> Tensor:
        """Log-probabilities [B, num] of the last `num` tokens, at temperature 1."""
        places = (attention.cumsum(1) - 1).clamp(min=0)
        hidden = self.model(ids, attention_mask=attention, position_ids=places)
        logits = hidden.logits[:, -num - 1 : -1].float()
        return logits.log_softmax(-1).gather(-1, ids[:, -num:, None])[..., 0]


def success(policy: Policy, puzzles: Sequence[dict], seed: int) -> float:
    """pass@1 on puzzles that are never trained on, four answers each."""
    torch.manual_seed(seed)
    rows = [row for row in puzzles for _ in range(4)]
    ids, _, mask = policy.answer([row["prompt"] for row in rows])
    return sum(rewards_of(rows, policy.texts(ids, mask))) / len(rows)


def rewards_of(rows: Sequence[dict], texts: Sequence[str]) -> list[float]:
    """1 for a right answer, else 0."""
    return countdown.correct(
        prompts=[row["prompt"] for row in rows],
        completions=list(texts),
        numbers=[row["numbers"] for row in rows],
        target=[row["target"] for row in rows],
    )


def main() -> None:
    """Train, and print pass@1 before and after."""
    asked = options()
    rng = random.Random(asked.seed)
    policy = Policy(str(model_folder("tiny")))
    optimiser = torch.optim.AdamW(policy.model.parameters(), lr=asked.lr, weight_decay=0.0)
    puzzles, held_out = countdown.puzzles("train"), countdown.puzzles("held_out")[: asked.held_out]
    print(f"pass@1 before: {success(policy, held_out, asked.seed):.3f}")

    torch.manual_seed(asked.seed)
    began = time.perf_counter()
    for step in range(1, asked.steps + 1):
        # Sample: several answers to each of some puzzles, and their rewards.
        rows = [row for row in rng.sample(puzzles, asked.prompts) for _ in range(ROLLOUTS)]
        groups = torch.arange(asked.prompts).repeat_interleave(ROLLOUTS)
        ids, attention, mask = policy.answer([row["prompt"] for row in rows])
        rewards = torch.tensor(rewards_of(rows, policy.texts(ids, mask)))

        # Judge: how much better each answer was than the others to its puzzle.
        advantages = F.advantages(asked.recipe, rewards=rewards, groups=groups, mask=mask)
        with torch.no_grad():
            logp_old = policy.logp(ids, attention, mask.shape[1])

        # Learn: a clipped step on each part of the answers.
        for part in torch.randperm(len(rows)).chunk(asked.minibatches):
            logp = policy.logp(ids[part], attention[part], mask.shape[1])
            loss, metrics = F.policy_loss(
                asked.recipe, logp=logp, logp_old=logp_old[part], advantages=advantages[part],
                mask=mask[part],
            )  # fmt: skip
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
            optimiser.step()

        if step % 10 == 0 or step == asked.steps:
            clipped = sum(
                value for name, value in metrics.items() if name.startswith("clip_ratio/")
            )
            seconds = (time.perf_counter() - began) / step
            print(
                f"step {step}/{asked.steps}  reward {rewards.mean():.3f}  clipped {clipped:.3f}  "
                f"{seconds:.2f} s a step",
                flush=True,
            )
    print(f"pass@1 after: {success(policy, held_out, asked.seed):.3f}")


if __name__ == "__main__":
    main()
