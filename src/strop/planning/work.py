"""Defines what is planned: the costs of stages, the work of a step, and who does what."""

from dataclasses import dataclass

import numpy as np

from strop.planning.course import Floats, Ints, Speed


@dataclass(frozen=True)
class Costs:
    """Seconds that one worker takes.

    speed: of an engine. reward: for a rollout, besides drawing it. token: to train on a token;
    pair: to train on a sequence, for each squared token. rest: for a step, however many workers
    share it. exchange: until all training workers, if there are several, have a step's gradients,
    and until other workers have its weights; send: additional time until those have them.
    """

    speed: Speed
    reward: float
    token: float
    rest: float
    exchange: float = 0.0
    pair: float = 0.0
    send: float = 0.0

    def training(self, sizes: Floats) -> Floats:
        """Seconds of training for sequences of these sizes."""
        return self.token * sizes + self.pair * sizes * sizes


@dataclass(frozen=True)
class Work:
    """The work of a step: what it draws and trains on.

    groups: the lengths of a prompt's answers, for all known prompts; steps draw among them.
    num_groups: prompts of a step. prompt: tokens of one. kept: share of the answers that is trained
    on. slots: rows for which an engine has room. updates: number of weight updates in a step, each
    with an equal share of the answers.
    """

    groups: tuple[Ints, ...]
    num_groups: int
    prompt: float
    kept: float
    slots: int
    updates: int = 1

    @property
    def held(self) -> float:
        """Mean tokens that a running answer has in its cache."""
        lengths = np.concatenate(self.groups).astype(float)
        return self.prompt + float((lengths**2).mean() / (2 * lengths.mean()))


@dataclass(frozen=True)
class Layout:
    """Which workers do what.

    generate, train: number of workers. shared: the same workers take turns. staleness: steps by
    which the weights may be behind when a round begins. spare: extra running prompts, as a share of
    those of a step; a round then ends with its last needed prompt, and the others continue in the
    next. renew: engines take new weights while rows are running, and prefill their caches again.
    in_flight: steps whose answers may be running at once, when draws start one by one.
    engine_size, trainer_size: GPUs of an engine and of a training worker, if they have several.
    """

    generate: int
    train: int
    shared: bool = True
    staleness: int = 0
    spare: float = 0.0
    renew: bool = True
    in_flight: float = 1.0
    engine_size: int = 1
    trainer_size: int = 1

    @property
    def name(self) -> str:
        """The name shown in the table."""
        kind = "synchronous" if self.shared else f"async {self.staleness}"
        if not self.spare:
            return kind
        return "partial" if self.shared else f"{kind}, partial"

    @property
    def workers(self) -> int:
        """The number of workers; of GPUs, if engines and training workers have several."""
        return self.generating if self.shared else self.generating + self.training

    @property
    def generating(self) -> int:
        """The number of workers, or of their GPUs, that generate."""
        return self.generate * self.engine_size

    @property
    def training(self) -> int:
        """The number of workers, or of their GPUs, that train."""
        return self.train * self.trainer_size
