"""Capabilities that a model lacks, an adapter trained for each, and a router. After TRACE, arXiv
2604.05336, of which only the abstract could be read; docs/LABS.md says what is inferred.

    strop labs trace_capability                      # three seeds
    strop labs trace_capability --seeds 1 --steps 40 --out runs/trace

1. The shipped model answers Countdown puzzles. Puzzles that need an operation, or brackets, are
   contrasted with those that do not: what its failures have in common is a deficit.
2. For each deficit there is an environment: puzzles that need it, and a verifier that pays for
   right answers which use it. grpo trains a low-rank adapter on each.
3. A router reads a puzzle and names the adapter that answers it, or the model as it was.

Beside it: one adapter of the same rank, trained by grpo on all puzzles with as many tokens.

Takes: six minutes.
"""

import argparse
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import strop
from strop.environments import countdown
from strop.evaluation.seeds import over_seeds

Row = Mapping[str, Any]
MODEL = "tiny"
NONE = "none"  # no deficit: the model without an adapter answers
# A capability is needed where every right answer uses it.
SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "brackets": "("}
ENOUGH = 2.0  # standard errors between puzzles with and without it, for a deficit


# ---- 1. what is lacking


def needs(row: Row) -> frozenset[str]:
    """The capabilities that every right answer to a puzzle uses."""
    answers = countdown.solutions(row["numbers"], row["target"])
    return frozenset(name for name, sign in SIGNS.items() if all(sign in a for a in answers))


@dataclass(frozen=True)
class Deficit:
    """Success on puzzles that need a capability, and on those that do not."""

    name: str
    needing: float
    others: float
    errors: float  # standard errors between the two

    def __str__(self) -> str:
        return (
            f"{self.name:9} {self.needing:.3f} where it is needed, {self.others:.3f} elsewhere "
            f"({self.errors:+.1f} standard errors)"
        )


def contrasts(success: Sequence[float], needed: Sequence[frozenset[str]]) -> list[Deficit]:
    """Every capability with success on puzzles that need it and on others, the weakest first.

    success: the share of right answers to each puzzle.
    """
    found = []
    for name in SIGNS:
        groups = [
            [s for s, n in zip(success, needed, strict=True) if (name in n) == w]
            for w in (True, False)
        ]
        if min(map(len, groups)) < 2:
            continue
        means = [sum(group) / len(group) for group in groups]
        variances = [
            sum((s - mean) ** 2 for s in group) / (len(group) - 1) / len(group)
            for group, mean in zip(groups, means, strict=True)
        ]
        apart = (means[0] - means[1]) / math.sqrt(sum(variances) or math.inf)
        found.append(Deficit(name, means[0], means[1], apart))
    return sorted(found, key=lambda each: each.needing)


def deficits_of(found: Sequence[Deficit], most: int) -> list[str]:
    """The names of those that are weaker where they are needed, the weakest first."""
    return [each.name for each in found if each.errors < -ENOUGH][:most]


def family(needed: frozenset[str], deficits: Sequence[str]) -> str:
    """The deficit that a puzzle falls under: of those it needs, the weakest."""
    return next((name for name in deficits if name in needed), NONE)


# ---- 2. an environment and an adapter each


def verifier(capability: str) -> Callable[..., list[float]]:
    """1 for a right answer that uses the capability."""
    sign = SIGNS[capability]

    def exercised(completions: Sequence[str], **columns: Any) -> list[float]:
        right = countdown.correct(completions=completions, **columns)
        return [worth * (sign in text) for worth, text in zip(right, completions, strict=True)]

    return exercised


@dataclass(frozen=True)
class Sizes:
    """Of all runs alike. steps: of all adapters of deficits together."""

    steps: int = 90
    prompts: int = 32
    rollouts: int = 16
    rank: int = 8
    lr: float = 3e-3
    probe: int = 512  # puzzles that the contrast looks at
    samples: int = 16  # answers to a held-out puzzle

    def options(self, seed: int, out: Path) -> dict[str, Any]:
        """As keywords of `strop.train`."""
        return {
            "model": MODEL, "model_lora_rank": self.rank, "training_lr": self.lr, "seed": seed,
            "sampling_num_prompts": self.prompts, "sampling_num_rollouts": self.rollouts,
            "rollout_max_tokens": countdown.MAX_TOKENS, "evaluation_every": 0, "out": str(out),
            "training_inspect": 0, "progress": False,
        }  # fmt: skip


def records(table: Any) -> list[dict[str, Any]]:
    """The rows of a table of a run, with pandas and without."""
    return list(table.to_pylist() if hasattr(table, "to_pylist") else table.to_dict("records"))


def tokens_of(run: Any) -> int:
    """Tokens that a run has sampled, prompts included."""
    return int(records(run.metrics)[-1]["num_tokens"])


def probe(rows: Sequence[Row], sizes: Sizes, seed: int, out: Path) -> tuple[list[Row], list[float]]:
    """Puzzles, and the share of right answers of the model as it is, in the rollouts of a step."""
    options = sizes.options(seed, out) | {
        "sampling_num_prompts": sizes.probe, "sampling_num_rollouts": 8, "training_steps": 1,
        "training_rollouts_every": 1,
    }  # fmt: skip
    run = strop.train("grpo", data=rows, reward=countdown.correct, **options)
    rewards: dict[str, list[float]] = {}
    for each in records(run.rollouts):
        rewards.setdefault(each["prompt"], []).append(each["reward"])
    asked = [row for row in rows if row["prompt"] in rewards]
    return asked, [sum(found) / len(found) for found in (rewards[r["prompt"]] for r in asked)]


# ---- 3. a router


@dataclass
class Router:
    """Reads the numbers of a puzzle and names its family; a small network, trained on puzzles whose
    family is known.
    """

    families: Sequence[str]
    seed: int = 0
    net: Any = field(default=None, init=False)

    @staticmethod
    def features(row: Row) -> list[float]:
        """Sizes of the numbers and the target, and nothing of how to reach it."""
        numbers, target = sorted(row["numbers"]), row["target"]
        whole, product = sum(numbers), math.prod(numbers)
        sizes = [target, numbers[0], numbers[-1], whole, product]
        return [
            float(len(numbers) == 3), float(target > whole), float(target < numbers[-1]),
            float(target == whole), float(target % 2 == whole % 2), target / whole,
            *(math.log(each) for each in sizes), *(target % n == 0 for n in numbers[:2]),
        ]  # fmt: skip

    def learn(self, rows: Sequence[Row], named: Sequence[str], steps: int = 400) -> "Router":
        """Fit the network."""
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            x = torch.tensor([self.features(row) for row in rows])
            self._mean, self._std = x.mean(0), x.std(0) + 1e-6
            y = torch.tensor([self.families.index(name) for name in named])
            self.net = torch.nn.Sequential(
                torch.nn.Linear(x.shape[1], 64), torch.nn.ReLU(),
                torch.nn.Linear(64, len(self.families)),
            )  # fmt: skip
            optimiser = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
            for _ in range(steps):
                optimiser.zero_grad()
                logits = self.net((x - self._mean) / self._std)
                torch.nn.functional.cross_entropy(logits, y).backward()
                optimiser.step()
        return self

    def __call__(self, rows: Sequence[Row]) -> list[str]:
        import torch

        x = torch.tensor([self.features(row) for row in rows])
        with torch.no_grad():
            best = self.net((x - self._mean) / self._std).argmax(1).tolist()
        return [self.families[number] for number in best]


# ---- all of it


def score(source: Any, rows: Sequence[Row], samples: int) -> float:
    """The share of right answers, times the number of puzzles."""
    if not rows:
        return 0.0
    found = strop.evaluate(
        source, data=rows, reward=countdown.correct, k=1, samples=samples,
        max_tokens=countdown.MAX_TOKENS,
    )  # fmt: skip
    return found["pass@1"] * len(rows)


def picked(rows: Sequence[Row], names: Sequence[str], name: str) -> list[Row]:
    """The rows that bear a name."""
    return [row for row, own in zip(rows, names, strict=True) if own == name]


@dataclass(frozen=True)
class Result:
    """One seed: scores over all held-out puzzles, and of each model in each family."""

    scores: Mapping[str, float]
    table: Mapping[str, Mapping[str, float]]
    tokens: Mapping[str, int]
    routed_right: float


def one_seed(sizes: Sizes, seed: int, out: Path, most: int, held_out: int) -> Result:
    """Contrast, adapters, router, and the run over all puzzles beside them."""
    train, test = countdown.puzzles("train"), countdown.puzzles("held_out")[:held_out]
    asked, success = probe(train, sizes, seed, out / "probe")
    found = contrasts(success, [needs(row) for row in asked])
    deficits = deficits_of(found, most)
    print("\n".join(f"  {each}" for each in found))
    print(f"  deficits: {', '.join(deficits) or 'none'}", flush=True)
    if not deficits:
        raise strop.UserError("no deficit was found: give more puzzles to the contrast")
    named = [family(needs(row), deficits) for row in train]
    adapters = {}
    for name in deficits:
        options = sizes.options(seed, out / name) | {"training_steps": sizes.steps // len(deficits)}
        rows = picked(train, named, name)
        adapters[name] = strop.train("grpo", data=rows, reward=verifier(name), **options)
    tokens = {name: tokens_of(run) for name, run in adapters.items()}
    tokens["probe"] = tokens_of(strop.Run(str(out / "probe")))
    alone = train_alone(train, sizes, seed, out / "alone", sum(tokens.values()))
    router = Router([*deficits, NONE], seed).learn(train, named)
    true = [family(needs(row), deficits) for row in test]
    routes = router(test)
    scores, table = scored(adapters, alone, test, true, routes, sizes.samples)
    right = sum(one == two for one, two in zip(true, routes, strict=True)) / len(test)
    return Result(scores, table, {**tokens, "one adapter": tokens_of(alone)}, right)


def scored(
    adapters: Mapping[str, Any], alone: Any, test: Sequence[Row], true: Sequence[str],
    routes: Sequence[str], samples: int,
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:  # fmt: skip
    """Success over the held-out puzzles, and of each model in each family that is there."""
    shares = {name: true.count(name) / len(test) for name in dict.fromkeys((*adapters, NONE))}
    shares = {name: share for name, share in shares.items() if share}
    table = {
        who: {
            name: score(model, rows := picked(test, true, name), samples) / len(rows)
            for name in shares
        }
        for who, model in {"model": MODEL, "one adapter": alone, **adapters}.items()
    }
    scores = {who: sum(shares[n] * s for n, s in row.items()) for who, row in table.items()}
    answering = {**adapters, NONE: MODEL}
    scores["routed"] = sum(
        score(answering[name], picked(test, routes, name), samples) for name in answering
    ) / len(test)
    own = {name: table[name if name in adapters else "model"][name] for name in shares}
    scores["routed rightly"] = sum(shares[name] * own[name] for name in shares)
    lacking = [name for name in shares if name != NONE]
    weight = sum(shares[name] for name in lacking) or math.nan
    for who, row in (*table.items(), ("routed rightly", own)):
        scores[f"{who}, deficits"] = sum(shares[name] * row[name] for name in lacking) / weight
    return scores, table


def train_alone(rows: Sequence[Row], sizes: Sizes, seed: int, out: Path, tokens: int) -> Any:
    """One adapter over all puzzles, until it has sampled as many tokens."""
    options = sizes.options(seed, out) | {"training_steps": 10**6, "start": False}
    with strop.train("grpo", data=rows, reward=countdown.correct, **options) as run:
        for step in run:
            if step["num_tokens"] >= tokens:
                break
    return run


def report(results: Sequence[Result]) -> None:
    """Means over seeds, with their 95% Student-t intervals."""
    last = results[-1]
    print("success in each family (rows: who answers), last seed")
    names = list(last.table["model"])
    print(f"  {'':12}" + "".join(f"{name:>10}" for name in names))
    for who, row in last.table.items():
        print(f"  {who:12}" + "".join(f"{row[name]:10.3f}" for name in names))
    print(f"router right: {', '.join(f'{each.routed_right:.3f}' for each in results)}")
    whole = ("model", "one adapter", "routed", "routed rightly")
    for who in (*whole, *(f"{who}, deficits" for who in whole if who != "routed")):
        print(f"{who:25} {of_seeds([each.scores[who] for each in results])}")
    gain = [each.scores["routed"] - each.scores["one adapter"] for each in results]
    print(f"routed - one adapter: {of_seeds(gain)}")
    spent = [sum(v for k, v in each.tokens.items() if k != "one adapter") for each in results]
    print(
        f"tokens: {spent} with deficits, {[each.tokens['one adapter'] for each in results]} alone"
    )


def of_seeds(values: Sequence[float]) -> str:
    """Mean, interval and what each seed gives."""
    return f"{over_seeds(values):.3f}; seeds {', '.join(f'{value:.3f}' for value in values)}"


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--seeds", type=int, default=3)
    add("--steps", type=int, default=Sizes.steps, help="of all adapters of deficits together")
    add("--prompts", type=int, default=Sizes.prompts)
    add("--lr", type=float, default=Sizes.lr)
    add("--probe", type=int, default=Sizes.probe, help="puzzles that the contrast looks at")
    add("--most", type=int, default=3, help="the most deficits")
    add("--held-out", type=int, default=countdown.NUM_HELD_OUT, help="puzzles that are scored")
    add("--samples", type=int, default=Sizes.samples, help="answers to each of them")
    add("--out", type=Path, help="folder of the runs; default: a temporary one")
    options = parser.parse_args(words)
    for name in ("seeds", "steps", "prompts", "probe", "most", "held_out", "samples"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    sizes = Sizes(
        options.steps, options.prompts, lr=options.lr, probe=options.probe, samples=options.samples
    )  # fmt: skip
    results = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(options.seeds):
                print(f"seed {seed}")
                out = (options.out or Path(folder)) / f"seed-{seed}"
                results.append(one_seed(sizes, seed, out, options.most, options.held_out))
            report(results)
    except strop.UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
