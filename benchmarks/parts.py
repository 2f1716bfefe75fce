"""Every part of a step on a large batch: seconds, compared with a clone of its result, and growth.

    python benchmarks/parts.py [--tokens 8000000 --rollouts 65536 --smaller 4 --threads 2
                                --repeats 3 --only NAME,... --show 40 --device cpu]

The batch is synthetic: groups of 16 rollouts of one to three turns, every second one forked from
another of its group, lengths with a long tail, every column random as its record says, float32.
Columns that are known only at steps, and NaN elsewhere, are known at one token in eight. A part
runs with its defaults and with the settings of each recipe; the slowest of these is shown. Parts
that need answers from outside the batch (an engine, a model, rewards) are named at the end and not
measured; texts have one character per token, and two prompts form a set. The work of a part at the
end of a step, `update` or `observe`, has its own line. Two kinds of part see less than the whole:

- a loss of whole distributions, which a run hands a chunk of tokens at a time, sees one chunk, with
  4,096 numbers per token and four for each token of the batch (7,700 tokens of 8 million);
- a plan makes only its first 8 updates: each is a mask of all tokens, and a run keeps one of them.

    seconds   the shortest of the repeats, after one that does not count; elapsed time, or processor
              time of all threads if that is shorter, as on a busy machine
    clone     the same for copying all tensors of the result, including its state
    times     seconds / clone
    growth    seconds / seconds on a batch with a quarter of the rollouts and tokens, each part
              directly after the other; 4 is linear

A part is slow when it takes more than 0.2 s and more than 100 clones; then the exit status is 1.
"""

import argparse
import dataclasses
import functools
import itertools
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from strop.batch import columns, segments
from strop.batch.batch import DERIVED, SIZES, Batch, level_of
from strop.catalogue import catalogue
from strop.catalogue.seams import SERVICES, STAGES
from strop.method import notation
from strop.method import part as parts
from strop.method.part import Update, Use
from strop.training.learner.kernel import View

GROUP, VOCABULARY, NUM_STEPS = 16, 4096, 1000
NUMBERS = 4  # numbers of a chunk's distributions, for each token of the batch
MOST_UPDATES = 8
KNOWN = 1 / 8  # share of the tokens with a value, for columns that may have none
MOST_CLONES, MOST_SECONDS = 100, 0.2
OFFERED = SERVICES - {"texts", "log"}
# Kinds that run before there is a batch, or see only numbers.
WITHOUT_BATCH = ("sampling", "rollout", "control")
# Of two columns with the same information, the cheaper one is left out.
INSTEAD = {"centre_tokens_by_position": {"reward_T"}}
LETTERS = "0123456789 .,\nabcdefghijklmnopqrs"
TABLE = bytes(map(ord, LETTERS)).ljust(256)


class Row(NamedTuple):
    """One line of the table."""

    name: str
    seconds: float
    clone: float
    growth: float

    @property
    def is_slow(self) -> bool:
        return self.seconds > max(MOST_SECONDS, MOST_CLONES * self.clone)


class Letters:
    """Texts with one character per token; prompts and rows of the data are empty.

    Reading them costs almost nothing, as a tokenizer's time is not the part's.
    """

    num_tokens, special_ids = len(LETTERS), frozenset[int]()

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(LETTERS.find(letter) % len(LETTERS) for letter in text)

    def decode(self, ids: Any, special: bool = True) -> str:
        return bytes(ids).translate(TABLE).decode()

    def first_known(self, words: Sequence[str], option: str) -> str:
        return words[0]

    def row(self, uid: int) -> Mapping[str, Any]:
        return {"prompt": "", "answer": "1", "completion": "1", "set": uid // 2, "safe": uid % 2}

    def values(self, column: str, uids: Sequence[int]) -> Sequence[Any]:
        return [self.row(uid).get(column) for uid in uids]

    def recorded(self, uid: int) -> Sequence[Any]:
        return ()

    def prompt_ids(self, uid: int) -> tuple[int, ...]:
        return (1, 2, 3)

    def prompt_text(self, uid: int) -> str:
        return self.decode(self.prompt_ids(uid))

    question = prompt_text

    def reworded_ids(self, uid: int, words: str, answer: Any) -> tuple[int, ...]:
        return (1, 2, 3, *answer)

    def answer_ids(self, uid: int, column: str = "completion", end: bool = True) -> tuple[int, ...]:
        return (1, 2, 3)

    def decoded(self, batch: Batch) -> tuple[list[Any], list[str]]:
        ids = segments.at(batch["id_T"], segments.rows_where(batch["mask_T"]))
        ends = batch["length_B"].cumsum(0).tolist()
        text = ids.to(torch.uint8).cpu().numpy().tobytes().translate(TABLE).decode()
        answers = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        return [""] * len(answers), answers

    def completion_ids(self, batch: Batch) -> list[list[int]]:
        ids, ends = batch["id_T"][batch["mask_T"]].tolist(), batch["length_B"].cumsum(0).tolist()
        return [ids[a:b] for a, b in zip([0, *ends], ends, strict=False)]


class Offered:
    """The services besides columns that a part is measured with."""

    class Log:
        logged: Mapping[str, Any] = {}

    texts, log = Letters(), Log()


def drawn(name: str) -> torch.Generator:
    """A generator that is the same for a name in every run."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def tables(rollouts: int, tokens: int, scattered: bool) -> dict[str, Tensor]:
    """The tables that all columns belong to."""
    rng = drawn("tables")
    pair_B = torch.arange(rollouts) // 2  # a rollout and the one that forks from it
    if scattered:
        pair_B = torch.randperm(rollouts // 2, generator=drawn("scattered"))[pair_B]
    group_B = pair_B * 2 // GROUP
    turns_B = torch.randint(1, 4, (rollouts,), generator=rng)
    rollout_K = torch.repeat_interleave(torch.arange(rollouts), turns_B)
    wide_K = torch.rand(rollout_K.shape, generator=rng).clamp(min=1e-3).log().neg() + 0.2
    size_K = (wide_K * (tokens / wide_K.sum())).long().clamp(min=2)
    turn_T = torch.repeat_interleave(torch.arange(len(size_K)), size_K)
    start_K = size_K.cumsum(0) - size_K
    within_T = torch.arange(len(turn_T)) - start_K[turn_T]
    mask_T = within_T >= (size_K // 4).clamp(min=1)[turn_T]  # a quarter is prompt or observation
    length_B = segments.count(rollout_K[turn_T], rollouts, mask_T)
    row_B = torch.arange(rollouts)
    forked_B = row_B % 2 == 1
    fork_B = torch.rand(rollouts, generator=rng) * torch.minimum(length_B, length_B.roll(1))
    num = len(group_B.unique())
    return {
        "turn_T": turn_T, "mask_T": mask_T, "rollout_K": rollout_K, "group_B": group_B,
        "uid_P": torch.randperm(num, generator=rng), "draw_P": torch.zeros(num, dtype=torch.int64),
        "index_K": segments.order_within(rollout_K, rollouts),
        "parent_B": torch.where(forked_B, row_B - 1, -1),
        "fork_at_B": torch.where(forked_B, fork_B.long(), -1),
        "rollout_uid_B": torch.randperm(rollouts, generator=rng),
        "max_length": length_B.max(), "step": torch.tensor(3), "num_steps": torch.tensor(NUM_STEPS),
        "scored_B": torch.rand(rollouts, generator=rng) > 0.02, "origin_T": (~mask_T).long(),
        "id_T": torch.randint(len(LETTERS), turn_T.shape, generator=rng),
        "reward_B": (torch.rand(rollouts, generator=rng) < 0.5).float(),
        "preferred_B": 1 - 2 * (row_B % 2),
        "gradient_T": mask_T, "denominator_T": mask_T,
    }  # fmt: skip


class Made:
    """A batch of a size, and batches with the columns that a part reads."""

    def __init__(self, rollouts: int, tokens: int, device: str, scattered: bool) -> None:
        self.device = device
        self.base = Batch(tables(rollouts, tokens, scattered)).to(device)
        self.records = catalogue.columns()
        for name in DERIVED:
            _ = self.base[name]

    def column(self, name: str) -> Tensor:
        level = level_of(name)
        shape = (self.base.size(level),) if level else ()
        value = self._drawn(name, (*shape, 2) if name.endswith("_BM") else shape)
        if level == "T" and "NaN:" in self.records[name].meaning:
            value[torch.rand(shape, generator=drawn("unknown")).to(self.device) > KNOWN] = torch.nan
        return value

    def _drawn(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.records[name].drawn(shape, drawn(name), torch.float32).to(self.device)

    def chunk(self, names: set[str], batch: Batch) -> View:
        """The first tokens of a batch with their distributions."""
        num = max(self.base.size("T") * NUMBERS // VOCABULARY, 1)
        logq = {name: self._drawn(name, (num, VOCABULARY)).log_softmax(-1) for name in names}
        return View(batch, slice(num), logq)

    def batch(self, names: set[str]) -> Batch:
        return self.base.set(
            **{name: self.column(name) for name in sorted(names) if name not in self.base}
        )


def configurations() -> dict[str, list[Any]]:
    """Every part that acts on a batch, with its defaults and with recipes' settings, by name."""
    found: dict[str, list[Any]] = {}
    for entry in catalogue.parts():
        part = parts.at_step(entry.load()(), 3, NUM_STEPS)
        if entry.folder not in WITHOUT_BATCH or hasattr(part, "update"):
            found[entry.name] = [part]
    for recipe in catalogue.recipes():
        for algorithm in notation.recipe(recipe.name).algorithms:
            for path, use in algorithm.at_step(3, NUM_STEPS).uses():
                known = found.get(parts.name_of(use.part))
                if known is not None and path.split(".")[0] in STAGES and use.part not in known:
                    known.append(use.part)
    return found


def asks_outside(part: Any) -> set[str]:
    return {p.name for p in parts.parameters(part)} & OFFERED


def job(part: Any, made_up: Made) -> Callable[[], Any]:
    """A call of the part on a batch of that size."""
    use, name = Use(part), parts.name_of(part)
    wanted = {read.column for read in parts.reads(use)} - INSTEAD.get(name, set())
    # Where a part can do without a distribution, a run gives it a column.
    wide = {r.column for r in parts.reads(use) if r.column.endswith("_TV") and r.required}
    wanted = {column for column in wanted if not column.endswith("_TV")} - set(SIZES)
    # A plan need not read columns that it computes between its updates.
    if parts.kind_of(part) == "plan" or "batch" in {p.name for p in parts.parameters(part)}:
        wanted |= {"outcome_B", "reward_BM", "advantage_T", "logp_T", "logp_old_T"}
    made_up.records = {**catalogue.columns(), **columns.of([("", use)])}  # with the names it reads
    batch = made_up.batch(wanted)
    if "rewards_from_0_to_1" in parts.facts(use):
        batch = batch.set(reward_B=batch["reward_B"].clamp(0, 1))
    shown: Any = View(batch) if parts.kind_of(part).startswith("loss") else batch
    shown = made_up.chunk(wide, batch) if wide else shown
    state = part.init() if hasattr(part, "init") else None

    def run() -> Any:
        rng = torch.Generator().manual_seed(0)
        found = parts.call(use, shown, services=Offered(), rng=rng, state=state)
        is_plan = parts.kind_of(part) == "plan"
        if is_plan:
            return list(itertools.islice(updates(found.value, batch), MOST_UPDATES))
        return found.value, found.state

    return run


def updates(plan: Any, batch: Batch) -> Iterator[Update]:
    """The updates of a plan; columns that it computes before or after them stay unchanged."""
    answer = None
    while True:
        try:
            update = plan.send(answer)
        except StopIteration:
            return
        yield update
        names = (*update.before, *update.after)
        answer = (batch, {name: batch[name] for name in names})


def hooks(part: Any, made_up: Made) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The part's hooks at the end of a step."""
    for hook in ("update", "observe"):
        if hasattr(part, hook):
            use = Use(part)
            batch = made_up.batch(set(parts.update_reads(use, hook)) - set(SIZES))
            yield hook, functools.partial(parts.update, use, batch, part.init(), hook)


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Batch):
        yield from tensors(dict(value.columns))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors(each)
    elif dataclasses.is_dataclass(value):
        yield from tensors([getattr(value, f.name) for f in dataclasses.fields(value)])


def seconds(run: Callable[[], Any], repeats: int, device: str) -> float:
    """The shortest time of some runs."""
    shortest = float("inf")
    for _ in range(repeats):
        started, worked = time.perf_counter(), time.process_time()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        shortest = min(shortest, time.perf_counter() - started)
        if device == "cpu":
            shortest = min(shortest, time.process_time() - worked)
    return shortest


def measured(name: str, runs: list[Callable[[], Any]], repeats: int, device: str) -> Row:
    """One line, from the part on the smaller batch and on the larger one."""
    taken = []
    for run in runs:
        result = list(tensors(run()))  # a first call, which does not count
        taken.append(seconds(run, repeats, device))
    clone = seconds(lambda: [tensor.clone() for tensor in result], repeats, device)
    return Row(name, taken[-1], clone, taken[-1] / taken[0])


def rows_of(name: str, part: Any, sizes: list[Made], repeats: int) -> Iterator[Row]:
    """The lines of one part: its call, and its hooks at the end of a step."""
    device = sizes[0].device
    if parts.kind_of(part) not in WITHOUT_BATCH:
        yield measured(name, [job(part, size) for size in sizes], repeats, device)
    for each in zip(*(hooks(part, size) for size in sizes), strict=True):
        yield measured(f"{name}.{each[0][0]}", [run for _, run in each], repeats, device)


def table(rows: list[Row], show: int) -> str:
    """The slowest rows as a Markdown table."""
    lines = [
        "| part | seconds | clone | times | growth | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: -row.seconds)[:show]:
        times = row.seconds / max(row.clone, 1e-9)
        lines.append(
            f"| `{row.name}` | {row.seconds:.3f} | {row.clone:.4f} | {times:.0f} | "
            f"{row.growth:.1f} | {'slow' if row.is_slow else ''} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("tokens", 8_000_000), ("rollouts", 65_536), ("smaller", 4),
                          ("threads", 2), ("repeats", 3), ("show", 40)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--scattered", action="store_true", help="rollouts of a prompt do not lie together"
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    sizes = [
        Made(given.rollouts // n, given.tokens // n, given.device, given.scattered)
        for n in (given.smaller, 1)
    ]
    column = sizes[1].column("advantage_T")
    slowest: dict[str, Row] = {}
    wanted = set(filter(None, given.only.split(",")))
    outside = []
    for name, settings in configurations().items():
        if wanted and name not in wanted:
            continue
        if asks_outside(settings[0]):
            outside.append(name)
            continue
        for part in settings:
            for row in rows_of(name, part, sizes, given.repeats):
                if row.name not in slowest or row.seconds > slowest[row.name].seconds:
                    slowest[row.name] = row
    print(f"{sizes[1].base.size('T')} tokens, {given.rollouts} rollouts, {len(slowest)} measured")
    print(f"a clone of a column of tokens: {seconds(column.clone, 9, given.device):.4f} s")
    print(table(list(slowest.values()), given.show))
    print("not measured, as they need services:", ", ".join(sorted(outside)))
    sys.exit(any(row.is_slow for row in slowest.values()))


if __name__ == "__main__":
    main()
