"""What is planned: the costs of stages, the work of a step, and who does what."""

from dataclasses import dataclass

import numpy as np

from strop.planning.course import Floats, Ints, Speed


@dataclass(frozen=True)
class Costs:
    """Seconds that one worker takes.

    speed: of an engine. reward: of a rollout, beside drawing it. token: training, of a token; pair:
    of a sequence, times the square of its tokens. rest: what a step costs however many share it.
    exchange: until all training workers have a step's gradients, where there are several, and until
    other workers have its weights; send: more until those have them.
    """

    speed: Speed
    reward: float
    token: float
    rest: float
    exchange: float = 0.0
    pair: float = 0.0
    send: float = 0.0

    def training(self, sizes: Floats) -> Floats:
        """Seconds of sequences of so many tokens."""
        return self.token * sizes + self.pair * sizes * sizes


@dataclass(frozen=True)
class Work:
    """What a step draws and trains on.

    groups: lengths of the answers to a prompt, of as many prompts as are known; steps draw among
    them. num_groups: prompts of a step. prompt: tokens of one. kept: share of the answers that is
    trained on. slots: rows that an engine has room for. updates: of the weights in a step, to each
    of which an equal share of the answers belongs.
    """

    groups: tuple[Ints, ...]
    num_groups: int
    prompt: float
    kept: float
    slots: int
    updates: int = 1

    @property
    def held(self) -> float:
        """Tokens that an answer under way has in its cache, on average."""
        lengths = np.concatenate(self.groups).astype(float)
        return self.prompt + float((lengths**2).mean() / (2 * lengths.mean()))


@dataclass(frozen=True)
class Layout:
    """Which workers do what.

    generate, train: how many. shared: the same ones, taking turns. staleness: steps by which the
    weights that begin a round may be behind. spare: prompts under way beyond those of a step, as a
    share of them; a round then ends with its last needed prompt, and the others go on in the next.
    renew: new weights are taken while rows are under way, whose caches are then read again.
    in_flight: steps whose answers may be under way at once, where draws begin one by one.
    engine_size, trainer_size: GPUs of an engine and of a training worker, where they have several.
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
        """As in the table."""
        kind = "synchronous" if self.shared else f"async {self.staleness}"
        if not self.spare:
            return kind
        return "partial" if self.shared else f"{kind}, partial"

    @property
    def workers(self) -> int:
        """All of them; GPUs, where engines and training workers have several."""
        return self.generating if self.shared else self.generating + self.training

    @property
    def generating(self) -> int:
        """Those that generate."""
        return self.generate * self.engine_size

    @property
    def training(self) -> int:
        """Those that train."""
        return self.train * self.trainer_size
