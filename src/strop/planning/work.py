"""What is planned: the costs of stages, the work of a step, and who does what."""

from dataclasses import dataclass

from strop.planning.course import Ints, Speed


@dataclass(frozen=True)
class Costs:
    """Seconds that one worker takes.

    speed: of an engine. reward: of a rollout, beside drawing it. token: training, of a token.
    rest: what a step costs however many share it. exchange: until all training workers have a
    step's gradients, where there are several, and until other workers have its weights.
    """

    speed: Speed
    reward: float
    token: float
    rest: float
    exchange: float = 0.0


@dataclass(frozen=True)
class Work:
    """What a step draws and trains on.

    groups: lengths of the answers to a prompt, of as many prompts as are known; steps draw among
    them. num_groups: prompts of a step. prompt: tokens of one. kept: share of the answers that is
    trained on. slots: rows that an engine has room for.
    """

    groups: tuple[Ints, ...]
    num_groups: int
    prompt: float
    kept: float
    slots: int


@dataclass(frozen=True)
class Layout:
    """Which workers do what.

    generate, train: how many. shared: the same ones, taking turns. staleness: steps by which the
    weights that begin a round may be behind. spare: prompts under way beyond those of a step, as a
    share of them; a round then ends with its last needed prompt, and the others go on in the next.
    renew: new weights are taken while rows are under way, whose caches are then read again.
    """

    generate: int
    train: int
    shared: bool = True
    staleness: int = 0
    spare: float = 0.0
    renew: bool = True

    @property
    def name(self) -> str:
        """As in the table."""
        kind = "synchronous" if self.shared else f"async {self.staleness}"
        if not self.spare:
            return kind
        return "partial" if self.shared else f"{kind}, partial"

    @property
    def workers(self) -> int:
        """All of them."""
        return self.generate if self.shared else self.generate + self.train
