"""Episodes in progress: each player's sequence so far, its turns, and the room that is left."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strop.engines.base import Event
from strop.method.services import ALONE, Episodes, Player, Sampling
from strop.parts.rollout.base import SPREAD, Turn
from strop.support.exits import Exit


@dataclass(frozen=True)
class SeatLimits:
    """Most turns of a seat, most tokens of an action, of all its actions and of its sequence.

    Until `first_turns` of the turns are used, the policy is shown only these as its limit.
    """

    turns: int
    answer_tokens: int
    episode_tokens: int
    context_tokens: int
    first_turns: int = 0  # 0: all of them

    @classmethod
    def of(cls, sampling: Sampling, turns: int, extension: int = 0) -> "SeatLimits":
        """The run's limits with so many turns, the last `extension` of which are granted late."""
        tokens = (sampling.answer_tokens, sampling.episode_tokens, sampling.context_tokens)
        return cls(turns, *tokens, turns - extension)

    def shorter(self, turns: int) -> "SeatLimits":
        """The same limits with fewer turns; the policy reads this number."""
        return replace(self, turns=turns, first_turns=min(self.first_turns or turns, turns))

    def left(self, played: int) -> int:
        """Turns left after `played`, as the policy reads it."""
        first = self.first_turns or self.turns
        return (first if played < first else self.turns) - played


@dataclass
class Seat:
    """One player's rollout: the observations it was shown, its actions and their rewards."""

    player: int
    seed: int  # of its draws in the first context
    turns: list[Turn] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)  # the sequence, of its newest context
    used: int = 0  # tokens of the actions
    truncated: bool = False
    turn_log: list[dict[str, Any]] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)  # the observations of its turns

    @property
    def learns(self) -> bool:
        """Whether weights that are trained played one of its turns."""
        return any(turn.player.number >= 0 for turn in self.turns)

    @property
    def seed_now(self) -> int:
        """The seed of its draws in the newest context. A draw depends on the seed and the position
        alone, and positions begin again in each context.
        """
        number = sum(turn.opens for turn in self.turns[1:])
        return (self.seed + SPREAD * number) % 2**64

    @property
    def earned(self) -> float:
        """Rewards of all turns so far."""
        return math.fsum(turn.reward for turn in self.turns)  # ten turns of 0.1 are 1

    def given(self, episodes: Episodes, observation: Any, opens: bool) -> tuple[int, ...]:
        """Tokens of an observation: after an action, at the start, or as a whole context."""
        if opens:
            return episodes.context_ids(observation.text)
        if self.turns:
            num_new = sum(len(event.ids) for event in self.turns[-1].events)
            return episodes.observation_ids(
                observation.text, self.ids[-1], observation.answers, self.ids, num_new
            )
        return episodes.opening_ids(observation.text)

    def rewritten(self, episodes: Episodes, observation: Any) -> tuple[int, ...]:
        """The whole context of a turn, where the chat template now leaves out thoughts
        of the policy from earlier turns of the newest context; empty where it shows all.
        """
        actions = [each["action"] for each in self.turn_log]
        newest = max((n for n, turn in enumerate(self.turns) if turn.opens), default=0)
        return episodes.rewritten_ids([*self.shown, observation], actions, newest)

    def show(
        self, observation: Any, given: Sequence[int], role: int, opens: bool = False,
        player: Player = ALONE,
    ) -> None:  # fmt: skip
        """Begin a turn with an observation and its tokens. opens: they are its whole context."""
        if opens:
            self.ids = []
        key = state_key(observation.state) if observation.state else self._history_key(observation)
        self.turns.append(Turn(given, [], key, role, opens=opens, player=player))
        self.turn_log.append({"observation": observation.text})
        self.shown.append(observation)
        self.ids += given

    def action_ids(self, events: Sequence[Event]) -> list[int]:
        """Store the turn's action; returns its token ids."""
        self.turns[-1].events = events
        ids = [id for event in events for id in event.ids]
        self.ids += ids
        self.used += len(ids)
        return ids

    def judge(self, action: str, observation: Any) -> None:
        """Record the result of the action, except its reward."""
        turn = self.turns[-1]
        turn.valid, turn.match = bool(observation.valid), bool(observation.match)
        turn.action = state_key(action.strip())
        self.turn_log[-1] |= {"action": action, "reward": 0.0, "valid": turn.valid}
        if observation.answers:
            self.turn_log[-1]["calls"] = [each.record for each in observation.answers]
        if measures := observation.measures.items():  # those of NumPy as Python's, for the files
            self.turn_log[-1]["measures"] = {
                name: number if isinstance(number, int | float) else float(number)
                for name, number in measures
            }

    def earn(self, reward: float) -> None:
        """Add a reward to the last turn."""
        self.turns[-1].reward += float(reward)
        self.turn_log[-1]["reward"] = self.turns[-1].reward

    def room(self, limits: SeatLimits, num_given: int, opens: bool = False) -> int:
        """Most tokens of the next action after `num_given` more tokens; 0: none may follow.

        opens: the tokens are its whole context.
        """
        if len(self.turns) >= limits.turns:
            return 0
        room = limits.context_tokens - (0 if opens else len(self.ids)) - num_given
        left = min(limits.episode_tokens - self.used, room)
        return max(min(limits.answer_tokens, left), 0)

    def _history_key(self, observation: Any) -> int:
        """The key of everything that was shown and done before, where no state is given."""
        before = f"{self.turns[-1].state}|{self.turn_log[-1]['action']}|" if self.turns else ""
        return state_key(before + observation.text)


@dataclass
class Episode:
    """An episode and the seats of those who have taken part, the first to act first."""

    number: int  # its place among the episodes that are played together
    uid: int  # of its prompt
    seeds: Sequence[int]  # one for each player
    roles: tuple[int, ...] = ()  # one for each player; none: one player, its roles are labels
    seats: dict[int, Seat] = field(default_factory=dict)
    acting: int = 0  # player whose turn it is
    exit: Exit | None = None  # None: it is not over, or nobody has looked
    why: str = ""  # it failed
    players: Callable[[int], Player] = lambda role: ALONE  # of each role

    @property
    def unscored(self) -> bool:
        """Whether something failed that the policy cannot have caused."""
        return self.exit is not None and not self.exit.is_policys

    @property
    def seat(self) -> Seat:
        """The seat whose turn it is."""
        return self.seats[self.acting]

    def turn_to(self, observation: Any) -> Seat:
        """The seat that sees the observation and acts next."""
        self.acting = observation.role if self.roles else 0
        return self.seats.setdefault(self.acting, Seat(self.acting, self.seeds[self.acting]))

    def role_of(self, observation: Any) -> int:
        """The role of the turn that an observation begins."""
        role: int = observation.role
        return self.roles[role] if self.roles else role

    def judge(self, action: str, observation: Any) -> None:
        """Record the result of the action for every player who has a turn to credit it to."""
        if observation.done:
            self.exit, self.why = observation.exit or Exit.DONE, observation.why
        self.seat.judge(action, observation)
        if not observation.rewards:
            self.seat.earn(observation.reward)
        for player, reward in enumerate(observation.rewards):
            if player in self.seats:
                self.seats[player].earn(reward)
        for seat in self.seats.values():
            seat.turns[-1].done = bool(observation.done)

    def lost(self, events: Sequence[Event]) -> bool:
        """Whether the request of an action failed; that is the end of the episode."""
        if events[-1].ended != "failed":
            return False
        self.seat.action_ids(events)
        self.cut(Exit.ENGINE_LOST, events[-1].why)
        return True

    def started(self, observation: Any, given: Sequence[int], opens: bool = False) -> bool:
        """Begin the first turn, whose prompt has these tokens; returns whether it could begin."""
        seat = self.turn_to(observation)
        role = self.role_of(observation)
        seat.show(observation, given, role, opens, self.players(role))
        if observation.exit is not None:
            self.cut(observation.exit, observation.why)
        return self.exit is None

    def branched(self, number: int, seed: int, turn: int) -> "Episode":
        """A copy of this episode of one player, up to the start of a turn; it draws its own tokens
        from there on. number: that of the copy; turn: counted from 0.
        """
        seat = self.seat
        kept = [replace(each) for each in seat.turns[:turn]]
        opened = replace(seat.turns[turn], events=[], reward=0.0, done=False)
        used = sum(len(event.ids) for each in kept for event in each.events)
        size = used + sum(len(each.given) for each in (*kept, opened))
        log = [dict(one) for one in seat.turn_log[:turn]]
        log.append({"observation": seat.turn_log[turn]["observation"]})
        own = replace(
            seat, seed=seed, turns=[*kept, opened], ids=seat.ids[:size], used=used,
            truncated=False, turn_log=log, shown=seat.shown[: turn + 1],
        )  # fmt: skip
        return Episode(number, self.uid, (seed,), self.roles, {self.acting: own}, self.acting)

    def repeated(self, world: Any, turn: int) -> int:
        """Start another environment episode in the state in which a turn of this one began."""
        log = self.seat.turn_log[: turn + 1]
        actions = [each["action"] for each in log[:turn]]
        number: int = world.repeat(self.number, actions, [each["observation"] for each in log])
        return number

    def cut(self, exit: Exit, why: str = "") -> None:
        """End the episode for all players, because of a limit or a failure."""
        self.exit, self.why = exit, why
        self.seats = {player: seat for player, seat in self.seats.items() if seat.turns}
        for seat in self.seats.values():
            seat.truncated = True
            if "action" not in seat.turn_log[-1]:  # the turn has started, without an action
                seat.turns[-1].valid = False
                seat.turn_log[-1] |= {"action": "", "reward": 0.0, "valid": False}


def state_key(text: str) -> int:
    """A 63-bit number for a text, the same on every machine."""
    return key_of(text.encode())


def key_of(content: bytes) -> int:
    """The same for sequences of bytes."""
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
