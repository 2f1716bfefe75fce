"""Masked diffusion: the likelihood of a way of unmasking, by enumeration and on Countdown puzzles.
After CJ-GRPO, EOSER and the ascending schedule, arXiv 2509.23924. Inferred: see docs/LABS.md.

    strop labs masked_diffusion --seeds 0               # what is enumerated, in seconds
    strop labs masked_diffusion --picture learnt.svg    # and a small model, three seeds

A masked model begins with an answer of masks, proposes a token for each, and keeps the most
confident ones, step after step. Its likelihood has no closed form. cj_grpo takes each token's in
the very context in which it was unmasked; a one-step estimate takes all of them in the answer of
masks. Both are compared with the true gradient by enumeration, schedules and orders on a model that
is exact, and then a small masked model is trained by both.

Takes: five minutes.
"""

import argparse
import copy
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from strop import functional as F
from strop.environments import countdown
from strop.evaluation.seeds import over_seeds

# ---- decoding: which positions, and how many at a step


def eoser_factor(
    step: int, steps: int, low: float = 0.4, high: float = 1.0, *, ascending: bool = False
) -> float:
    """What the confidence of a proposed end is multiplied by at a step: little at first, so that
    an answer is not filled with ends. ascending: for the schedule below.
    """
    if steps <= 1:
        return high
    share = (2 ** (step + 1) - 1) / 2**steps if ascending else step / (steps - 1)
    return low + (high - low) * share


def ascending_sizes(length: int) -> list[int]:
    """Tokens unmasked at each step: 1, 2, 4 ..., and at the last all that are left."""
    steps = int(math.log2(length))
    return [2**i for i in range(steps - 1)] + [length - (2 ** (steps - 1) - 1)]


# ---- 1. and 2.: every way to an answer

State = tuple[int, ...]  # a token a position; -1: a mask
Move = tuple[tuple[int, int], ...]  # (position, token) of all that are unmasked at a step
MASK = -1


class Table(NamedTuple):
    """A masked policy: log-probabilities [states, positions, tokens] of tokens in a state."""

    logp: Tensor

    def at(self, state: State) -> Tensor:
        """Log-probabilities [positions, tokens] in a state."""
        row = 0
        for token in state:
            row = row * (self.logp.shape[2] + 1) + token + 1
        return self.logp[row]


def states_of(length: int, tokens: int) -> list[State]:
    """All states, in the order of their numbers."""
    return list(itertools.product(range(MASK, tokens), repeat=length))


class Way(NamedTuple):
    """A way to an answer: its probability, and each step's state and move."""

    p: Tensor
    steps: tuple[tuple[State, Move], ...]
    answer: State


def moves(table: Table, state: State, size: int, order: str) -> dict[Move, Tensor]:
    """What can be unmasked in a state, with its probability.

    "confident": a token is drawn for each mask, and the `size` likeliest stay. "random": positions
    are drawn blindly.
    """
    logp = table.at(state)
    masked = [i for i, token in enumerate(state) if token == MASK]
    found: dict[Move, Tensor] = {}
    if order == "random":
        picked = list(itertools.combinations(masked, size))
        for at in picked:
            for tokens in itertools.product(range(logp.shape[1]), repeat=size):
                move = tuple(zip(at, tokens, strict=True))
                found[move] = torch.stack([logp[each] for each in move]).sum().exp() / len(picked)
        return found
    for tokens in itertools.product(range(logp.shape[1]), repeat=len(masked)):
        drawn = list(zip(masked, tokens, strict=True))
        best = sorted(drawn, key=lambda each: -float(logp[each].detach()))[:size]
        move = tuple(sorted(best))
        p = torch.stack([logp[each] for each in drawn]).sum().exp()
        found[move] = found[move] + p if move in found else p
    return found


def ways(table: Table, sizes: Sequence[int], order: str) -> Iterator[Way]:
    """Every way of unmasking an answer."""

    def onward(state: State, p: Tensor, steps: tuple[tuple[State, Move], ...]) -> Iterator[Way]:
        if len(steps) == len(sizes):
            yield Way(p, steps, state)
            return
        for move, q in moves(table, state, sizes[len(steps)], order).items():
            tokens = dict(move)
            after = tuple(tokens.get(i, token) for i, token in enumerate(state))
            yield from onward(after, p * q, (*steps, (state, move)))

    yield from onward((MASK,) * table.logp.shape[1], torch.ones((), dtype=torch.float64), ())


class Compared(NamedTuple):
    """An estimate beside the true gradient: cosine, and what is not along it over what is."""

    cosine: float
    rest: float


def compared(found: Tensor, true: Tensor) -> Compared:
    """Both as vectors."""
    along = (found * true).sum() / true.square().sum() * true
    rest = (found - along).norm() / along.norm()
    return Compared(float((found * true).sum() / (found.norm() * true.norm())), float(rest))


def gradients(
    weights: Tensor, features: Tensor, rewards: dict[State, float], sizes: Sequence[int], order: str
) -> dict[str, Tensor]:
    """By the weights: the gradient of the expected reward, "exact", and the means of two updates at
    their first step, where ratios are 1; the baseline is the expected reward.
    """
    weights = weights.detach().requires_grad_()
    table = Table(torch.einsum("sf,fpt->spt", features, weights).log_softmax(-1))
    blank = table.at((MASK,) * table.logp.shape[1])
    found = list(ways(table, sizes, order))
    expected = torch.stack([way.p * rewards[way.answer] for way in found]).sum()
    trajectory = one_step = torch.zeros((), dtype=torch.float64)
    for way in found:
        weight = way.p.detach() * (rewards[way.answer] - expected.detach())
        of_steps = [
            torch.stack([table.at(state)[each] for each in move]).mean()
            for state, move in way.steps
        ]
        trajectory = trajectory + weight * torch.stack(of_steps).mean()
        of_tokens = [blank[i, token] for i, token in enumerate(way.answer)]
        one_step = one_step + weight * torch.stack(of_tokens).mean()
    named = {"exact": expected, "trajectory": trajectory, "one step": one_step}
    return {
        name: torch.autograd.grad(value, weights, retain_graph=True)[0]
        for name, value in named.items()
    }


def features_of(length: int, tokens: int, *, shared: bool) -> Tensor:
    """What a state is to the policy [states, features]: its name alone, or what stands at each
    position, so that states share weights.
    """
    states = states_of(length, tokens)
    if not shared:
        return torch.eye(len(states), dtype=torch.float64)
    columns = torch.tensor(states) + 1
    return nn.functional.one_hot(columns, tokens + 1).flatten(1).double()


def enumerated(
    length: int, tokens: int, sizes: Sequence[int], order: str, *, shared: bool, policies: int
) -> dict[str, list[Compared]]:
    """Both estimates of random policies, each with random rewards, beside their true gradient."""
    features = features_of(length, tokens, shared=shared)
    answers = list(itertools.product(range(tokens), repeat=length))
    found: dict[str, list[Compared]] = {name: [] for name in LIKELIHOODS}
    for seed in range(policies):
        rng = torch.Generator().manual_seed(seed)
        shape = (features.shape[1], length, tokens)
        weights = torch.randn(shape, generator=rng, dtype=torch.float64)
        rewards = torch.rand(len(answers), generator=rng, dtype=torch.float64).tolist()
        grads = gradients(weights, features, dict(zip(answers, rewards, strict=True)), sizes, order)
        for name, rows in found.items():
            rows.append(compared(grads[name], grads["exact"]))
    return found


def exact_model(joint: Tensor) -> Table:
    """The conditionals of a distribution [tokens, tokens, ...] in every state."""
    length, tokens = joint.dim(), joint.shape[0]
    rows = []
    for state in states_of(length, tokens):
        given = joint
        for at, token in enumerate(state):
            if token != MASK:
                given = given.index_select(at, torch.tensor([token]))
        each = [given.sum([j for j in range(length) if j != i]) for i in range(length)]
        rows.append(torch.stack([(p / p.sum()).expand(tokens).log() for p in each]))
    return Table(torch.stack(rows))


def decoded(table: Table, sizes: Sequence[int], order: str) -> Tensor:
    """The distribution of answers that a way of decoding makes."""
    found = torch.zeros([table.logp.shape[2]] * table.logp.shape[1], dtype=torch.float64)
    for way in ways(table, sizes, order):
        found[way.answer] += way.p
    return found


def total_variation(one: Tensor, two: Tensor) -> float:
    """Half of the sum of absolute differences."""
    return float((one - two).abs().sum() / 2)


# ---- 3. a small masked model on Countdown

LETTERS = "0123456789+-*/():,="
END, HOLE = len(LETTERS), len(LETTERS) + 1  # an answer ends with ends; what is not known yet
ANSWER, PROMPT = 8, 9  # tokens; puzzles of two numbers have answers of five characters at most


def encoded(text: str, length: int, *, left: bool) -> list[int]:
    """Characters as numbers, filled with ends on one side."""
    ids, fill = [LETTERS.index(c) for c in text], [END] * (length - len(text))
    return fill + ids if left else ids + fill


def text_of(ids: Sequence[int]) -> str:
    """An answer up to its first end."""
    return "".join(LETTERS[i] for i in itertools.takewhile(lambda i: i < END, ids))


class Masked(nn.Module):
    """Logits [rows, ANSWER, letters and the end] of a prompt and an answer with holes."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.letter = nn.Embedding(HOLE + 1, width)
        self.place = nn.Parameter(0.02 * torch.randn(PROMPT + ANSWER, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, END + 1)

    def forward(self, prompt: Tensor, answer: Tensor) -> Tensor:
        x = self.letter(torch.cat([prompt, answer], 1)) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, PROMPT:]))


@dataclass(frozen=True)
class Puzzles:
    """Rows of Countdown with two numbers, and their prompts [rows, PROMPT]."""

    rows: Sequence[dict]
    prompts: Tensor

    @classmethod
    def of(cls, split: str) -> "Puzzles":
        rows = [row for row in countdown.puzzles(split) if len(row["numbers"]) == 2]
        ids = [encoded(row["prompt"], PROMPT, left=True) for row in rows]
        return cls(rows, torch.tensor(ids))

    def first(self, most: int) -> "Puzzles":
        """The first of them."""
        return Puzzles(self.rows[:most], self.prompts[:most])

    def rewards(self, at: Sequence[int], answers: Tensor) -> Tensor:
        """1 for each right answer to the puzzles of the rows `at`."""
        columns = {key: [self.rows[i][key] for i in at] for key in ("numbers", "target")}
        texts = [text_of(row) for row in answers.tolist()]
        found = countdown.correct(prompts=[""] * len(texts), completions=texts, **columns)
        return torch.tensor(found)


def imitate(puzzles: Puzzles, updates: int, seed: int = 0, rows: int = 128) -> Masked:
    """A model that has seen right answers with holes: a share of holes is drawn for each row."""
    torch.manual_seed(seed)
    draw, model = random.Random(seed), Masked()
    right = [
        [
            encoded(text, ANSWER, left=False)
            for text in countdown.solutions(row["numbers"], row["target"])
        ]
        for row in puzzles.rows
    ]
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, updates)
    for _ in range(updates):
        at = draw.choices(range(len(puzzles.rows)), k=rows)
        whole = torch.tensor([draw.choice(right[i]) for i in at])
        share = torch.rand(rows, 1).clamp(min=1 / ANSWER)
        hole = torch.rand(rows, ANSWER) < share
        logits = model(puzzles.prompts[at], torch.where(hole, HOLE, whole))
        each = nn.functional.cross_entropy(logits.transpose(1, 2), whole, reduction="none")
        optimiser.zero_grad()
        (each * hole / share).mean().backward()
        optimiser.step()
        schedule.step()
    return model


@dataclass(frozen=True)
class Decoding:
    """How many positions a step unmasks, and what a proposed end's confidence is damped from."""

    sizes: tuple[int, ...]
    low: float = 0.4
    ascending: bool = False


class Drawn(NamedTuple):
    """Answers with their ways: the state before each step [S, B, ANSWER], and what it unmasked."""

    states: Tensor
    unmasked: Tensor  # bool
    answers: Tensor  # [B, ANSWER]


@torch.no_grad()
def decode(model: Masked, prompts: Tensor, decoding: Decoding) -> Drawn:
    """Draw a token for each hole, keep the most confident ones, and so on."""
    answer = torch.full((len(prompts), ANSWER), HOLE)
    states, unmasked = [], []
    for step, size in enumerate(decoding.sizes):
        p = model(prompts, answer).softmax(-1)
        token = torch.multinomial(p.flatten(0, 1), 1).view_as(answer)
        sure = p.gather(2, token[..., None]).squeeze(2)
        damped = eoser_factor(step, len(decoding.sizes), decoding.low, ascending=decoding.ascending)
        sure = torch.where(token == END, sure * damped, sure)
        sure = sure.masked_fill(answer != HOLE, -1.0)
        now = torch.zeros_like(answer, dtype=torch.bool)
        now.scatter_(1, sure.topk(size, dim=1).indices, True)
        states.append(answer)
        unmasked.append(now)
        answer = torch.where(now, token, answer)
    return Drawn(torch.stack(states), torch.stack(unmasked), answer)


def trajectory_logp(model: Masked, prompts: Tensor, drawn: Drawn) -> Tensor:
    """Of each token [B, ANSWER], in the context in which it was unmasked."""
    steps, rows = drawn.states.shape[:2]
    logits = model(prompts.repeat(steps, 1), drawn.states.flatten(0, 1))
    logp = own_logp(logits, drawn.answers.repeat(steps, 1)).view(steps, rows, ANSWER)
    return torch.where(drawn.unmasked, logp, 0.0).sum(0)


def one_step_logp(model: Masked, prompts: Tensor, drawn: Drawn) -> Tensor:
    """Of each token [B, ANSWER], in the answer of masks."""
    return own_logp(model(prompts, drawn.states[0]), drawn.answers)


def own_logp(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of given tokens."""
    return logits.log_softmax(-1).gather(2, ids[..., None]).squeeze(2)


LIKELIHOODS = {"trajectory": trajectory_logp, "one step": one_step_logp}


def step_weights(unmasked: Tensor) -> Tensor:
    """By what a token's share [B, T] in the mean over all tokens becomes that of cj_grpo, which is
    the mean over steps of the means over the tokens of a step. unmasked: [S, B, T].
    """
    each = unmasked.flatten(1).sum(1)
    return (unmasked * (each.sum() / (len(each) * each))[:, None, None]).sum(0)


def step_mean_loss(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, unmasked: Tensor, clip: float = 0.5
) -> Tensor:
    """grpo's clipped loss [], averaged as cj_grpo does; the clip does not see a positive weight."""
    weighted = advantages[:, None] * step_weights(unmasked)
    loss, _ = F.policy_loss(
        "grpo", logp=logp, logp_old=logp_old, advantages=weighted, mask=unmasked.any(0),
        params={"clip_low": clip, "clip_high": clip, "beta": 0.0, "aggregation": "token-mean"},
    )  # fmt: skip
    return loss


DECODINGS = {
    "8 steps": Decoding((1,) * 8, 1.0),
    "8 steps, ends damped": Decoding((1,) * 8),
    "4 steps": Decoding((2,) * 4, 1.0),
    "4 steps, ends damped": Decoding((2,) * 4),
    "ascending, 3 steps": Decoding((1, 2, 5), 1.0, True),
    "ascending, 3 steps, ends damped": Decoding((1, 2, 5), 0.01, True),
}
LEARNT = DECODINGS["4 steps, ends damped"]


@dataclass(frozen=True)
class Sizes:
    """Of a training run."""

    updates: int = 150
    prompts: int = 32
    group: int = 8
    inner: int = 1  # passes over each batch
    lr: float = 5e-4
    held_out: int = 183  # all of two numbers


@dataclass(frozen=True)
class Curve:
    """Success along a run: on puzzles of the training split, and on held-out ones."""

    updates: list[int]
    seen: list[float]
    held_out: list[float]


def end(values: Sequence[float]) -> float:
    """Mean of the last three."""
    return sum(values[-3:]) / len(values[-3:])


def success(model: Masked, puzzles: Puzzles, decoding: Decoding) -> float:
    """Share of right answers of two to each puzzle, with the same random numbers each time."""
    with torch.random.fork_rng():
        torch.manual_seed(4321)
        answers = decode(model, puzzles.prompts.repeat(2, 1), decoding).answers
    return float(puzzles.rewards([*range(len(puzzles.rows))] * 2, answers).mean())


def train(
    base: Masked, likelihood: str, seed: int, sizes: Sizes, puzzles: Puzzles, test: Puzzles
) -> Curve:
    """One run: groups of answers, advantages without a deviation, some passes over each."""
    torch.manual_seed(seed)
    draw, model, logp_of = random.Random(seed), copy.deepcopy(base), LIKELIHOODS[likelihood]
    optimiser = torch.optim.AdamW(model.parameters(), lr=sizes.lr)
    curve, seen = Curve([], [], []), puzzles.first(len(test.rows))
    for number in range(sizes.updates + 1):
        if number % 10 == 0 or number == sizes.updates:
            curve.updates.append(number)
            curve.seen.append(success(model, seen, LEARNT))
            curve.held_out.append(success(model, test, LEARNT))
        if number == sizes.updates:
            break
        asked = draw.choices(range(len(puzzles.rows)), k=sizes.prompts)
        at = [i for i in asked for _ in range(sizes.group)]
        drawn = decode(model, prompts := puzzles.prompts[at], LEARNT)
        groups = torch.arange(sizes.prompts).repeat_interleave(sizes.group)
        advantages = F.advantages(
            "grpo", rewards=puzzles.rewards(at, drawn.answers), groups=groups,
            params={"normalize_std": False},
        )  # fmt: skip
        old = None
        for _ in range(sizes.inner):
            logp = logp_of(model, prompts, drawn)
            old = logp.detach() if old is None else old
            optimiser.zero_grad()
            step_mean_loss(logp, old, advantages, drawn.unmasked).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimiser.step()
    return curve


# ---- all of it

RANDOM, CONFIDENT = "random", "confident"
CASES = (  # positions, tokens of each step, order, whether states share weights
    (2, (1, 1), CONFIDENT, False), (2, (1, 1), CONFIDENT, True), (3, (1, 1, 1), CONFIDENT, True),
    (3, (1, 2), CONFIDENT, True), (2, (1, 1), RANDOM, False), (3, (1, 1, 1), RANDOM, True),
    (3, (1, 2), RANDOM, True),
)  # fmt: skip


def report_gradients(policies: int) -> None:
    """Medians over random policies, and the smallest cosine."""
    print(f"mean update beside the true gradient, {policies} random policies of two tokens")
    print("                                      trajectory              one step")
    print("positions, steps, order, weights      cosine (least)  rest    cosine (least)  rest")
    for length, sizes, order, shared in CASES:
        found = enumerated(length, 2, sizes, order, shared=shared, policies=policies)
        line = f"{length} {sizes!s:10} {order:9} {'shared' if shared else 'free':6}"
        for rows in found.values():
            cosines, rests = (sorted(each) for each in zip(*rows, strict=True))
            middle = len(rows) // 2
            line += f"       {cosines[middle]:.3f} ({cosines[0]:+.3f}) {rests[middle]:6.3f}"
        print(line, flush=True)


def report_decoding(models: int) -> None:
    """Total variation between what is decoded and what the model has learnt."""
    print(f"\ndecoding with exact conditionals, 4 positions, mean of {models} distributions")
    for name, sizes in (
        ("one at a time", [1, 1, 1, 1]), ("two at a time", [2, 2]),
        ("ascending", ascending_sizes(4)), ("all at once", [4]),
    ):  # fmt: skip
        line = f"  {name:14} {len(sizes)} steps"
        for order in (RANDOM, CONFIDENT):
            apart = []
            for seed in range(models):
                rng = torch.Generator().manual_seed(seed)
                logits = 1.5 * torch.randn(16, generator=rng, dtype=torch.float64)
                joint = logits.softmax(0).view(2, 2, 2, 2)
                apart.append(total_variation(decoded(exact_model(joint), sizes, order), joint))
            line += f"   {order} {sum(apart) / models:.3f}"
        print(line, flush=True)


def report_training(seeds: int, sizes: Sizes, imitation: int) -> dict[str, list[Curve]]:
    """A model that has imitated, how it is decoded, and both ways of training it on."""
    puzzles, test = Puzzles.of("train"), Puzzles.of("held_out").first(sizes.held_out)
    base = imitate(puzzles, imitation)
    print("\nCountdown, two numbers: success of the model that has imitated, on held-out puzzles")
    for name, decoding in DECODINGS.items():
        print(f"  {name:32} {success(base, test, decoding):.3f}", flush=True)
    curves = {
        name: [train(base, name, seed, sizes, puzzles, test) for seed in range(seeds)]
        for name in LIKELIHOODS
    }
    for split in ("seen", "held_out"):
        ends = {name: [end(getattr(r, split)) for r in runs] for name, runs in curves.items()}
        first = getattr(curves["trajectory"][0], split)[0]
        print(f"{split}: {first:.3f} before, after {sizes.updates} updates", flush=True)
        for name, values in ends.items():
            print(f"  {name:32} {over_seeds(values):.3f}")
        apart = [a - b for a, b in zip(*ends.values(), strict=True)]
        print(f"  {'trajectory less one step':32} {over_seeds(apart):.3f}")
    return curves


def picture(curves: dict[str, list[Curve]], where: Path) -> None:
    """An SVG: success over updates on puzzles of the training split, a line a run."""
    wide, high, left, top = 420, 220, 50, 30
    best = max(max(run.seen) for runs in curves.values() for run in runs) or 1.0
    most = curves["trajectory"][0].updates[-1]
    shapes = [f'<text x="{left}" y="18">success over updates, training split</text>']
    for n in (0.0, 0.5, 1.0):
        y, x = top + high * (1 - n), left + wide * n
        shapes += [f'<path d="M{left},{y} h{wide}" stroke="#dddddd"/>',
                   f'<text x="{left - 6}" y="{y}" text-anchor="end">{best * n:.2f}</text>',
                   f'<text x="{x}" y="{top + high + 16}">{most * n:.0f}</text>']  # fmt: skip
    for number, (name, runs) in enumerate(curves.items()):
        colour, y = ("#0072b2", "#d55e00")[number], top + high - 25 + 15 * number
        shapes.append(f'<text x="{left + 8}" y="{y}" fill="{colour}">{name}</text>')
        for run in runs:
            points = " L".join(f"{left + wide * u / most:.1f},{top + high * (1 - v / best):.1f}"
                               for u, v in zip(run.updates, run.seen, strict=True))  # fmt: skip
            shapes.append(f'<path d="M{points}" fill="none" stroke="{colour}"/>')
    where.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide + 80} {high + 60}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(shapes)}</svg>\n"
    )


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--seeds", type=int, default=3, help="of the trained model; 0: only what is enumerated")
    add("--policies", type=int, default=30, help="random ones that are enumerated")
    add("--imitation", type=int, default=500, help="updates before the training")
    add("--updates", type=int, default=Sizes.updates)
    add("--lr", type=float, default=Sizes.lr)
    add("--held-out", type=int, default=Sizes.held_out, help="puzzles that are scored")
    add("--picture", type=Path, help="an SVG file to write, with seeds")
    options = parser.parse_args(words)
    for name, least in (("seeds", 0), ("policies", 1), ("imitation", 1), ("updates", 1),
                        ("held_out", 1)):  # fmt: skip
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}")
    if options.picture and not (options.seeds and options.picture.parent.is_dir()):
        parser.error(f"--picture {options.picture}: give seeds, and a folder that is there")
    report_gradients(options.policies)
    report_decoding(min(options.policies, 10))
    if options.seeds:
        sizes = Sizes(options.updates, lr=options.lr, held_out=options.held_out)
        curves = report_training(options.seeds, sizes, options.imitation)
        if options.picture:
            picture(curves, options.picture)


if __name__ == "__main__":
    main()
