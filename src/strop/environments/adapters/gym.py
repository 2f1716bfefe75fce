"""An environment of Gymnasium, shown in text: `data.task=gym:FrozenLake-v1`.

Its actions are the numbers of a Discrete space or the texts of a Text space. The policy sees the
text that it renders, where it renders one (`ansi`), and its observation: numbers, or a text.

In the plain style an action may be named, and its last name or number counts. In the compact style
`0,1,2,3:14=` shows the numbers of the actions, once, and then the observation, later turns show
`:14=`; the action is the number that the answer begins with.
"""

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strop.environments.base import Environment, Observation, check_number, check_style
from strop.support.errors import UserError, needs_extra

# Names of actions for environments of Gymnasium that do not name them.
ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Blackjack": ("stick", "hit"),
}
RULES = {
    "FrozenLake": "S is the start, F is ice, H is a hole, G is the goal. You are at [x].",
    "FrozenLake8x8": "S is the start, F is ice, H is a hole, G is the goal. You are at [x].",
    "Taxi": "The taxi is at [x]. Bring the passenger from (blue x) to (magenta x); | is a wall.",
    "CliffWalking": "You are x. Walk to T; C is the cliff, from which you fall to the start.",
    "Blackjack": "You see the sum of your cards, the dealer's card, and 1 for an ace that is 11.",
}
MOST_TURNS = 32  # where an environment states no limit of its own
KNOWN = frozenset(string.digits + "+-*/(),:=")  # characters that a shipped model reads
HIGHLIGHT = re.compile(r"\x1b\[(?:4\d|[\d;]*;4\d)(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
COLOURED = re.compile(r"\x1b\[(3\d)(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
COLOURS = ("grey", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
ESCAPES = re.compile(r"\x1b\[[\d;]*m")


class Gym(Environment):
    """Options: style, max_turns (0: the environment's own limit), illegal_reward (of an action that
    is not legal, which uses up its turn), actions (their names), rules (text before the first
    observation), reward_range, and all others are those of `gymnasium.make`.

    Legal are the actions of the space; of those, where the environment gives an `action_mask`, the
    ones in it.
    """

    def __init__(
        self,
        name: str,
        style: str = "plain",
        max_turns: int = 0,
        illegal_reward: float = -1.0,
        actions: Sequence[str] = (),
        rules: str | None = None,
        reward_range: Sequence[float] | None = None,
        **options: Any,
    ) -> None:
        check_style(style)
        check_number("gym: max_turns", max_turns, 0)
        check_number("gym: illegal_reward", illegal_reward, float("-inf"), whole=False)
        self.name, self.is_compact, self.illegal_reward = name, style == "compact", illegal_reward
        self.world = _made(name, options)
        base = name.rpartition(":")[2].rpartition("-v")[0] or name
        self.space, self.numbers = self.world.action_space, _numbers(name, self.world.action_space)
        self.actions = _names(name, actions, self.world, base, len(self.numbers))
        self.rules = RULES.get(base, "") if rules is None else rules
        self.max_turns = max_turns or self.world.spec.max_episode_steps or MOST_TURNS
        most = len(str(self.numbers[-1])) if self.numbers else self.space.max_length
        self.max_tokens = (most + (most > 1)) if self.is_compact else 256
        self.reward_range = _range(self.world, self.max_turns, illegal_reward)
        if reward_range is not None:
            self.reward_range = (float(reward_range[0]), float(reward_range[1]))
        self.by_name = {
            each.lower(): n for each, n in zip(self.actions, self.numbers, strict=False)
        }
        written = sorted(map(re.escape, self.by_name), key=len, reverse=True)
        self.words = re.compile("|".join([*(rf"\b{word}\b" for word in written), r"-?\d+"]))
        if self.is_compact:
            self._check_compact()

    def reset(self, seed: int) -> Observation:
        """Begin the episode of a seed."""
        self.seen, info = self.world.reset(seed=seed)
        self.mask = info.get("action_mask")
        return Observation(self._text(is_first=True), state=self._state())

    def step(self, action: str) -> Observation:
        """Act, or lose a turn by an illegal action."""
        chosen = self._read(action)
        if chosen is None:
            text = self._text() if self.is_compact else f"That is not legal.\n{self._legal()}"
            return Observation(text, self.illegal_reward, state=self._state(), valid=False)
        self.seen, reward, over, cut, info = self.world.step(chosen)
        self.mask = info.get("action_mask")
        text = "" if over or cut else self._text()
        return Observation(text, float(reward), bool(over), bool(cut and not over), self._state())

    def close(self) -> None:
        """Close the environment inside."""
        self.world.close()

    def _read(self, action: str) -> Any:
        """The action as the environment takes it; None for one that is not legal."""
        if not self.numbers:
            text = action.strip()
            return text if self.space.contains(text) else None
        if self.is_compact:
            found = re.match(r"-?\d+", action)
            number = int(found.group()) if found and len(found.group()) < 10 else None
        else:
            words = self.words.findall(action.lower())
            last = words[-1] if words and len(words[-1]) < 100 else ""
            number = self.by_name.get(last)
            number = int(last) if number is None and re.fullmatch(r"-?\d{1,9}", last) else number
        return number if number in self._allowed() else None

    def _allowed(self) -> list[int]:
        if self.mask is None:
            return self.numbers
        return [n for n, may in zip(self.numbers, self.mask, strict=True) if may]

    def _state(self) -> str:
        """The observation in one line: a text unchanged, numbers with commas."""
        if isinstance(self.seen, str):
            return self.seen
        return ",".join(map(str, _flat(self.seen)))

    def _text(self, is_first: bool = False) -> str:
        state = self._state()
        if self.is_compact:
            has_list = is_first or self.mask is not None
            return f"{','.join(map(str, self._allowed())) if has_list else ''}:{state}="
        drawn = self.world.render() if self.world.render_mode == "ansi" else ""
        picture = f"{marked(drawn).strip()}\n" if isinstance(drawn, str) and drawn else ""
        rules = ""
        if is_first:
            how = "the number or the name" if self.actions else "the number"
            answer = f"{how} of a legal action" if self.numbers else "a text"
            rules = f"This is {self.name}. {self.rules}".strip() + f"\nAnswer with {answer}.\n"
        return f"{rules}{picture}Observation: {state}\n{self._legal()}"

    def _legal(self) -> str:
        if not self.numbers:
            return (
                f"Legal: a text of {self.space.min_length} to {self.space.max_length} characters\n"
            )
        names = dict(zip(self.numbers, self.actions, strict=False))
        legal = (f"{n} ({names[n]})" if n in names else str(n) for n in self._allowed())
        return f"Legal actions: {', '.join(legal)}\n"

    def _check_compact(self) -> None:
        """Raise UserError for one whose first view has characters without a compact sign."""
        unknown = sorted(set(self.reset(0).text) - KNOWN)
        if unknown or not self.numbers:
            why = f"shows {''.join(unknown)!r}" if unknown else "takes texts"
            raise UserError(
                f"gym: {self.name} {why}, which the compact style has no signs for: give a model "
                "that reads words, or style plain"
            )


def marked(drawn: str) -> str:
    """A rendered text with colours written as signs: [x] on a background, (blue x) in a colour."""
    drawn = HIGHLIGHT.sub(lambda found: f"[{ESCAPES.sub('', found[1])}]", drawn)
    drawn = COLOURED.sub(lambda found: f"({COLOURS[int(found[1]) % 10 % 8]} {found[2]})", drawn)
    return ESCAPES.sub("", drawn)


def _made(name: str, options: Mapping[str, Any]) -> Any:
    """The environment, which renders text where it can. Raises UserError."""
    with needs_extra(f"environment gym:{name} needs the package gymnasium", "gym"):
        import gymnasium
    given = {"disable_env_checker": True, **options}
    try:
        made = gymnasium.make(name, **given)
        if "render_mode" not in given and "ansi" in made.metadata.get("render_modes", ()):
            made.close()
            made = gymnasium.make(name, render_mode="ansi", **given)
    except (gymnasium.error.Error, ImportError) as error:
        raise UserError(f"gym: cannot make {name!r}: {error}") from error
    return made


def _numbers(name: str, space: Any) -> list[int]:
    """The actions of a Discrete space; none of a Text space. Raises UserError for another."""
    from gymnasium.spaces import Discrete, Text

    if isinstance(space, Discrete):
        return list(range(int(space.start), int(space.start + space.n)))
    if isinstance(space, Text):
        return []
    raise UserError(
        f"gym: {name} takes actions of {space}: take one with a Discrete or Text space, or wrap it "
        "in an environment of yours"
    )


def _names(name: str, given: Sequence[str], world: Any, base: str, num: int) -> tuple[str, ...]:
    """Names of the actions: given, the environment's own, or known. Raises UserError."""
    own = getattr(world.unwrapped, "get_action_meanings", None)
    found = tuple(given) or (tuple(own()) if callable(own) else ACTIONS.get(base, ()))
    if given and (len(found) != num or not all(isinstance(each, str) for each in found)):
        raise UserError(f"gym: {name} has {num} actions; actions takes a name for each")
    return found if len(found) == num else ()


def _range(world: Any, max_turns: int, illegal: float) -> tuple[float, float] | None:
    """Bounds of an episode's return, where the environment has a table of its moves."""
    table = getattr(world.unwrapped, "P", None)
    if not isinstance(table, Mapping):
        return None
    moves = [move for by in table.values() for each in by.values() for move in each]
    ends = {float(reward) for _, _, reward, over in moves if over}
    steps = {float(reward) for _, _, reward, over in moves if not over} | {float(illegal), 0.0}
    low, high = min(steps) * (max_turns - 1), max(steps) * (max_turns - 1)
    return low + min(ends | steps), high + max(ends | steps)


def _flat(seen: Any) -> Iterable[Any]:
    """The numbers of an observation, in order."""
    if isinstance(seen, Mapping):
        seen = list(seen.values())
    if isinstance(seen, tuple | list):
        return [each for part in seen for each in _flat(part)]
    if hasattr(seen, "tolist"):
        return _flat(seen.tolist())
    if isinstance(seen, float):
        return [f"{seen:.4g}"]
    return [int(seen) if isinstance(seen, bool) else seen]
