"""Costs of strategies beside another revision, cost of a request, and gain from reusing prefixes.

    OMP_NUM_THREADS=1 python benchmarks/rollouts_beside.py against d68b29bd [--rounds 9]
        [--only grpo,gigpo]
    OMP_NUM_THREADS=1 python benchmarks/rollouts_beside.py reuse [--rounds 5]
    OMP_NUM_THREADS=1 python benchmarks/rollouts_beside.py requests [--rounds 5]

against: each strategy rolls out the same draws in two processes, one of this tree and one of the
revision, which take turns; the first round is left out, since both load then. The output has the
median and the quartiles of the ratio of tokens per processor second, this tree's over the
revision's; sampled tokens of both; and the growth of each process's peak memory beyond the loaded
model.

reuse: the local engine with prefixes found by content and without, on prompts of 512 tokens of a
random model: episodes of three turns, second attempts after an answer, and a tree. The output has
the ratio of tokens per processor second, and the prompt tokens that were computed.

requests: microseconds of Python that a request costs, beyond the engine's work for it: 64
coroutines of 200 requests each, on an engine without a model that answers at its next step,
compared with a loop that hands the same requests to that engine and reads its events; and the cost
of a task that waits for nothing, which is asyncio's own overhead.

All print the machine's current speed, as GFLOP/s of a matrix product on one thread.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from command_line import some_of
from machine import gflops, taking_turns
from processes import peak_mib

TOP = Path(__file__).resolve().parents[1]
# One recipe per strategy: those of strategies_run.py's short runs, and two of this program.
STRATEGIES = (
    "grpo", "gigpo", "latr", "arrol", "ettrl_etmr", "arpo", "cure", "scope_recycle", "r3l",
    "cleaner_saar", "score_two_attempt", "april_partial_rollout", "sol_rl_explore_then_train",
    "sage_skill_chain", "cory",
)  # fmt: skip


def quartiles(values: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


# ---- beside another revision


def settings(name: str, rounds: int) -> dict[str, Any]:
    """Settings of a run of this strategy."""
    from strategies_run import RUNS, Short

    if name == "gigpo":  # episodes of actions of a few tokens
        found = Short((), task="corridor").raw(name, rounds + 1, 0)
    else:
        found = RUNS[name].raw(name, rounds + 1, 0)
    plain: dict[str, Any] = found
    return plain


def child() -> None:
    """Roll out the strategy that each input line names; print tokens, seconds and memory."""
    from strop.method.chains import Chains
    from strop.training.collect.here import collector_of
    from strop.training.learner.step_metrics import Clock
    from strop.training.loop import start
    from strop.training.settings import config

    try:
        generators = importlib.import_module("strop.method.seeds").generators  # in d68b29bd
    except ImportError:
        generators = importlib.import_module("strop.method.chains").generators
    torch.set_num_threads(1)
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            name, rounds, step = line.split()
            if name not in runs:
                for _, old in runs.values():
                    old.close()
                made = config.make(settings(name, int(rounds)))
                runs = {name: ({}, start(made, Path(folder) / name))}
            state, run = runs[name]
            world, number = run.world, int(step)
            algorithm = run.algorithm.in_phase(1).at_step(number, world.num_steps)
            world.services.begin_step(number)
            chains = Chains(generators(world.seed, number), world.services, state)
            collector = collector_of(world, algorithm, number, chains, Clock())
            draws = collector.draw(algorithm)
            before, began = peak_mib(), time.process_time()
            rolled = collector._roll_out(algorithm, draws, 0)
            seconds = time.process_time() - began
            if rolled.state is not None:
                state[f"rollout.{algorithm.rollout.label}"] = rolled.state
            tokens = int(rolled.batch["mask_T"].sum()) + rolled.num_discarded
            print("told", json.dumps([tokens, seconds, peak_mib() - before]), flush=True)
        for _, run in runs.values():
            run.close()


class Version:
    """A process that runs the code of a tree."""

    def __init__(self, tree: Path, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "child"], cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def roll_out(self, name: str, rounds: int, step: int) -> tuple[int, float, float]:
        """Tokens, seconds and memory of a step."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{name} {rounds} {step}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("told "):
                tokens, seconds, more = json.loads(line[5:])
                return tokens, seconds, more
        raise SystemExit(f"{name}: the process ended")

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def against(revision: str, names: list[str], rounds: int) -> None:
    """Print a table that compares this tree with a revision."""
    with tempfile.TemporaryDirectory() as made:
        there = Path(made) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", there, revision], cwd=TOP, check=True
        )
        try:
            print(f"GFLOP/s before: {gflops():.0f}", flush=True)
            print("| recipe | tokens a second, now / then | tokens now, then | memory, MB |")
            print("| --- | --- | --- | --- |", flush=True)
            for name in names:
                beside(name, rounds, there, Path(made))
            print(f"GFLOP/s after: {gflops():.0f}")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", there], cwd=TOP, check=True)


def beside(name: str, rounds: int, there: Path, folder: Path) -> None:
    """Print the line of one strategy."""
    now, then = Version(TOP, folder), Version(there, folder)
    ratios, tokens, most = [], [0, 0], [0.0, 0.0]
    for step in range(1, rounds + 2):
        pair = [now, then] if step % 2 else [then, now]
        found = {each: each.roll_out(name, rounds, step) for each in pair}
        for place, each in enumerate((now, then)):
            most[place] += found[each][2]
            tokens[place] += found[each][0]
        if step > 1:
            rates = [found[each][0] / found[each][1] for each in (now, then)]
            ratios.append(rates[0] / rates[1])
    now.end()
    then.end()
    print(f"| `{name}` | {quartiles(ratios)} | {tokens[0]}, {tokens[1]} | {most[0]:.0f}, "
          f"{most[1]:.0f} |", flush=True)  # fmt: skip


# ---- what reuse gains


@contextmanager
def without_reuse() -> Iterator[None]:
    """Inside, no request finds the cache of another one that ended."""
    from strop.engines.prefixes import Prefixes

    find = Prefixes.find
    Prefixes.find = lambda self, tokens: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Prefixes.find = find  # type: ignore[method-assign]


PROMPT, GROUPS, MEMBERS = 512, 2, 8


def shapes() -> dict[str, Any]:
    """Kinds of rollouts that continue answers: coroutines over an engine and prompts."""
    from strop.engines.asynchronous import AsyncEngine, gather
    from strop.engines.base import Request

    async def episodes(engine: AsyncEngine, prompts: list[tuple[int, ...]]) -> None:
        async def one(request: Request) -> None:
            for turn in range(3):
                answer = await engine.generate(request)
                request = answer.more(16, given=[5] * 32, keep=turn < 1)

        await gather(one(each) for each in asked(prompts, 16))

    async def attempts(engine: AsyncEngine, prompts: list[tuple[int, ...]]) -> None:
        first = await engine.generate_all(asked(prompts, 48))
        await engine.generate_all([each.more(48, given=[7] * 16, keep=False) for each in first])

    async def tree(engine: AsyncEngine, prompts: list[tuple[int, ...]]) -> None:
        nodes = await engine.generate_all(asked(prompts, 24, 2))
        for level in range(2):
            following = [replace(each.more(24, keep=level < 1), seed=31 * number + child)
                         for number, each in enumerate(nodes) for child in range(2)]  # fmt: skip
            nodes = await engine.generate_all(following)

    def asked(prompts: list[tuple[int, ...]], size: int, members: int = MEMBERS) -> list[Request]:
        return [Request(ids, size, seed=97 * number + member, keep=True)
                for number, ids in enumerate(prompts) for member in range(members)]  # fmt: skip

    return {"episodes of three turns": episodes, "second attempts": attempts, "trees": tree}


def reuse(rounds: int) -> None:
    """Print a table that compares the engine with and without reuse."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    from strop.engines.asynchronous import asynchronous, run
    from strop.engines.base import Account
    from strop.engines.local.engine import LocalEngine

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = Qwen3Config(vocab_size=512, hidden_size=128, intermediate_size=384, head_dim=32,
                        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                        max_position_embeddings=2048)  # fmt: skip
    engine = LocalEngine(AutoModelForCausalLM.from_config(shape).eval(), num_slots=32)
    book = asynchronous(engine)
    print(f"GFLOP/s before: {gflops():.0f}", flush=True)
    print("| rollouts | tokens a second, with / without | tokens of prompts, with, without |")
    print("| --- | --- | --- |", flush=True)
    for name, shape_of in shapes().items():
        ratios, computed = [], {}
        for number in range(rounds + 1):
            draw = torch.Generator().manual_seed(number)
            prompts = [tuple(torch.randint(8, 500, (PROMPT,), generator=draw).tolist())
                       for _ in range(GROUPS)]  # fmt: skip
            rates = {}
            for way in ("with", "without") if number % 2 else ("without", "with"):
                account, before = Account(), engine.passes.as_dict()["prefill/tokens"]
                began = time.process_time()
                if way == "with":
                    run(book, shape_of(book, prompts), account)
                else:
                    with without_reuse():
                        run(book, shape_of(book, prompts), account)
                rates[way] = account.num_drawn / (time.process_time() - began)
                computed[way] = engine.passes.as_dict()["prefill/tokens"] - before
            if number:
                ratios.append(rates["with"] / rates["without"])
        sizes = ", ".join(f"{computed[way]:.0f}" for way in ("with", "without"))
        print(f"| {name} | {quartiles(ratios)} | {sizes} |", flush=True)
    print(f"GFLOP/s after: {gflops():.0f}")


# ---- what a request costs


def at_once() -> Any:
    """An engine without a model: each request ends at the next step, with one token."""
    from strop.engines.base import Engine, Event

    class AtOnce(Engine):
        capabilities, version = frozenset[str](), 0

        def __init__(self) -> None:
            self.open = list[int]()

        def start(self, id: int, request: Any, source: Any = None) -> None:
            self.open.append(id)

        def cancel(self, id: int) -> list[Event]:
            raise NotImplementedError("no request of this measurement is ended early")

        def poll(self, seconds: float | None = None) -> list[Event]:
            ended, self.open = self.open, []
            return [Event(id, (5,), (0.0,), 0, ended="length") for id in ended]

    return AtOnce()


TASKS, EACH = 64, 200


def by_coroutines() -> None:
    """Sequential requests in concurrent coroutines."""
    from strop.engines.asynchronous import asynchronous, gather, run
    from strop.engines.base import Account, Request

    book = asynchronous(at_once())

    async def one(number: int) -> None:
        for turn in range(EACH):
            await book.generate(Request((1, 2, 3), 1, seed=EACH * number + turn))

    async def work() -> None:
        await gather(one(number) for number in range(TASKS))

    run(book, work(), Account())


def by_hand() -> None:
    """The same requests, handed to the engine in a loop, which also builds their answers."""
    from strop.engines.base import Answer, Request

    engine = at_once()
    for turn in range(EACH):
        asked = [Request((1, 2, 3), 1, seed=EACH * number + turn) for number in range(TASKS)]
        for number, request in enumerate(asked):
            engine.start(number, request)
        for event in engine.poll():
            Answer(asked[event.request], (event,))


def by_asyncio() -> None:
    """Coroutines that wait as often, for futures that are done at once."""
    import asyncio

    async def one() -> None:
        for _ in range(EACH):
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_result, None)
            await future

    async def work() -> None:
        await asyncio.gather(*(one() for _ in range(TASKS)))

    asyncio.run(work())


def requests(rounds: int) -> None:
    """Print the cost of a request in each way."""
    ways = {"coroutines": by_coroutines, "loop by hand": by_hand, "asyncio alone": by_asyncio}
    print(f"GFLOP/s before: {gflops():.0f}", flush=True)
    taken = {
        name: [1e6 * seconds / (TASKS * EACH) for seconds in spent]
        for name, spent in taking_turns(ways, rounds).items()
    }
    for name, values in taken.items():
        print(f"{name}: {quartiles(values)} microseconds a request")
    both = zip(taken["coroutines"], taken["loop by hand"], strict=True)
    print(f"beyond the loop: {quartiles([one - other for one, other in both])}")
    print(f"GFLOP/s after: {gflops():.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("against", "reuse", "requests", "child"))
    parser.add_argument("revision", nargs="?", default="d68b29bd")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", type=some_of(STRATEGIES), default=",".join(STRATEGIES))
    options = parser.parse_args()
    if options.what == "child":
        child()
    elif options.what == "against":
        against(options.revision, options.only, options.rounds)
    elif options.what == "requests":
        requests(options.rounds)
    else:
        reuse(options.rounds)


if __name__ == "__main__":
    main()
