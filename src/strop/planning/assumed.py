"""Finds the fastest layouts of a number of GPUs at assumed costs, and the memory that they need.

Among the training layouts that fit into memory, the fastest is chosen by a closed form. Each size
of an engine is simulated; in asynchronous layouts, with the best division of the GPUs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from strop.planning.calibrated import Calibrations
from strop.planning.course import Floats
from strop.planning.parallel import (
    GIB,
    SIZES,
    Case,
    Engine,
    Sharing,
    Trainer,
    engine,
    fitting,
    memory_of,
    trainers,
)
from strop.planning.simulate import (
    FINE,
    ROUGH,
    Outcome,
    Progress,
    best_division,
    kinds,
    silent,
    simulate,
)
from strop.planning.work import Costs, Layout, Work
from strop.support.errors import UserError

NEARLY = 0.05  # a simpler layout is preferred if it is at most this share slower than the fastest
MOST_TRIED = 512  # nodes tried in the search for the smallest number of GPUs
Way = Callable[[float], Outcome]  # simulates until a step's seconds are known within an error


@dataclass(frozen=True)
class Only:
    """Choices that the user fixes: GPUs of an engine, a trainer's layout by its tensor, context,
    pipeline and expert parallel sizes, GPUs that generate; 0 and () leave the choice open.
    """

    engine: int = 0
    trainer: tuple[int, ...] = ()
    generating: int = 0
    in_flight: float = 1.0

    def fits(self, layout: Trainer) -> bool:
        """Whether a trainer's layout is the given one, if one is given."""
        sizes = (layout.tensor, layout.context, layout.pipeline, layout.expert)
        return not self.trainer or sizes == self.trainer


@dataclass(frozen=True)
class Assumed:
    """A case and the work of a step, at assumed costs or, with calibrations, at measured ones."""

    case: Case
    work: Work
    only: Only = Only()
    calibrations: Calibrations | None = None

    def layouts(
        self, gpus: int, staleness: Sequence[int], spare: float, progress: Progress = silent
    ) -> list[Outcome]:
        """Every layout of `gpus` GPUs, each with the fastest sharing. Raises UserError."""
        found: list[Outcome] = []
        for kind in kinds(gpus, staleness, spare):
            progress(f"{gpus:,} GPUs, {kind.name}")
            best = self.best(gpus, kind)
            if best is None and self.only.generating and not kind.shared:
                raise UserError(self.no_division(gpus))
            found += [] if best is None else [best]
        if not found:
            raise UserError(self.too_large(gpus))
        return found

    def best(self, gpus: int, kind: Layout) -> Outcome | None:
        """The fastest sharing of a kind of layout, simulated precisely; None when nothing fits."""
        ways = self.together(gpus, kind) if kind.shared else self.separate(gpus, kind)
        if len(ways) > 1:
            ways = [max(ways, key=lambda way: way(ROUGH).tokens_per_second)]
        return ways[0](FINE) if ways else None

    def together(self, gpus: int, kind: Layout) -> list[Way]:
        """One simulation for each engine that fits beside the fastest training."""
        training = self.trainer(gpus)
        if training is None:
            return []
        return [
            partial(self._simulated, made, training, kind, gpus)
            for tensor in self.engines(gpus) for made in self._beside(gpus, tensor, training)
        ]  # fmt: skip

    def _beside(self, gpus: int, tensor: int, training: Trainer) -> list[Engine]:
        """Engines beside training's state on the GPU and, if that lacks room, with it offloaded."""
        found = [engine(self.case, tensor, training.state)]
        if found[0] is None or found[0].slots < self.rows * tensor / gpus:
            found.append(engine(self.case, tensor, 0.0, offload=True))
        return [each for each in found if each is not None]

    def separate(self, gpus: int, kind: Layout) -> list[Way]:
        """One simulation for each engine that fits, with the best division of the GPUs."""
        trainers = {n: self.trainer(gpus - n) for n in self.splits(gpus, 1)}
        found: list[Way] = []
        for tensor in self.engines(gpus):
            made = engine(self.case, tensor, 0.0)
            splits = [
                (n, training) for n in self.splits(gpus, tensor)
                if (training := trainers[n]) is not None
            ]  # fmt: skip
            if made is not None and splits:
                found.append(partial(self._divided, made, splits, kind))
        return found

    def _divided(
        self, made: Engine, splits: Sequence[tuple[int, Trainer]], kind: Layout, error: float
    ) -> Outcome:
        """The fastest of some divisions: (GPUs that generate, how the others train)."""

        def at(place: int, error: float) -> Outcome:
            generating, training = splits[place]
            return self._simulated(made, training, kind, generating, error)

        return best_division(at, 0, len(splits) - 1, error)

    def _simulated(
        self, made: Engine, training: Trainer, kind: Layout, generating: int, error: float
    ) -> Outcome:
        layout = replace(
            kind, in_flight=self.only.in_flight, generate=generating // made.tensor,
            train=training.workers, engine_size=made.tensor, trainer_size=training.size,
        )  # fmt: skip
        work = replace(self.work, slots=made.slots)
        found = simulate(self.costs(made, training, kind.shared), work, layout, steady=error)
        return replace(found, sharing=Sharing(made, training))

    def costs(self, made: Engine, best: Trainer, shared: bool) -> Costs:
        """The costs of a layout; `shared`: the same GPUs generate and train."""
        assumed, gpu = self.case.assumed, self.case.gpu
        weights = self.case.model.parameters * assumed.weight_bytes / made.tensor
        send = weights / self.case.link(best.gpus) if best.gpus > 1 or not shared else 0.0
        rest = assumed.step_seconds + self.work.updates * best.update + send * shared
        if made.offload:
            rest += 2 * best.state / (gpu.host * assumed.links)
        costs = Costs(made.speed, assumed.reward_seconds, best.token, rest, 0.0, best.pair, send)
        if self.calibrations is None:
            return costs
        calibration = self.calibrations.together if shared else self.calibrations.apart
        return calibration.of(costs, assumed.step_seconds)

    @property
    def rows(self) -> int:
        """The number of answers of a step."""
        return self.work.num_groups * len(self.work.groups[0])

    @property
    def tokens(self) -> float:
        """Tokens of an update, with prompts."""
        return float(self.sizes.sum()) / self.work.updates

    @property
    def sizes(self) -> Floats:
        """Tokens of each sequence of a step; the known groups' lengths are repeated."""
        known = np.concatenate(self.work.groups) + self.work.prompt
        return np.resize(known, self.rows)

    def engines(self, gpus: int) -> list[int]:
        """The numbers of GPUs of an engine that are tried."""
        return [n for n in SIZES if n <= gpus and gpus % n == 0 and self.only.engine in (0, n)]

    def splits(self, gpus: int, tensor: int) -> list[int]:
        """The numbers of GPUs that may generate: whole engines; with several nodes, whole nodes."""
        node = self.case.gpu.per_node
        unit = node if gpus > 2 * node else 1
        given = self.only.generating
        return [n for n in range(unit, gpus, unit) if n % tensor == 0 and given in (0, n)]

    def trainer(self, gpus: int) -> Trainer | None:
        """The simplest training layout that fits and is nearly the fastest; None if none fits."""
        found = [each for each in fitting(self.case, gpus, self.tokens) if self.only.fits(each)]
        seconds = [each.seconds(self.sizes, self.work.updates) for each in found]
        near = [each for each, took in zip(found, seconds, strict=True)
                if took <= (1 + NEARLY) * min(seconds)]  # fmt: skip
        return min(near, key=lambda each: each.complexity, default=None)

    def no_division(self, gpus: int) -> str:
        """The message for a given number of generating GPUs with which no layout fits."""
        node, given = self.case.gpu.per_node, self.only.generating
        whole = f" whole nodes of {node}, or" if gpus > 2 * node else ""
        return (
            f"--generate {given}: of {gpus} GPUs{whole} fewer or more have to generate, so that "
            "engines and training fit; 0 chooses the best number"
        )

    def too_large(self, gpus: int) -> str:
        """The message when nothing fits: the smallest number of GPUs that would."""
        case, node = self.case, self.case.gpu.per_node
        counts = [*range(1, node), *range(node, MOST_TRIED * node + 1, node)]
        least = next((count for count in counts if count > gpus and self.fits(count)), None)
        long = f"sequences of {case.longest:,} tokens"
        if least is None:
            return (
                f"{case.model.name} does not fit into any number of {case.gpu.name} up to "
                f"{counts[-1]} with {long}: give shorter answers (--max-tokens) or another --kind"
            )
        return (
            f"--gpus {gpus}: {case.model.name} with {long} does not fit into {gpus} "
            f"{case.gpu.name} of {case.gpu.memory / GIB:.0f} GiB; it needs at least {least}"
        )

    def fits(self, gpus: int) -> bool:
        """Whether a synchronous layout fits."""
        if all(engine(self.case, tensor, 0.0) is None for tensor in self.engines(gpus)):
            return False
        return any(
            sum(memory_of(self.case, each).values()) <= self.case.room
            for each in trainers(self.case, gpus) if self.only.fits(each)
        )  # fmt: skip
