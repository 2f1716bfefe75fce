"""Make a chain of operations faster by fusing some of them into one's own kernel.

A program has a size and is a chain of operations, each with a cost. A library runs each operation
alone; a kernel runs several in a row, writes no intermediate results, and has a tile, which should
fit the program's size. Times come from a model, not from a clock, so they never vary:

    library: sum over its operations of (LAUNCH + cost)
    kernel:  LAUNCH + (its costs - SAVED for each inner boundary) * (1 + MISFIT * |tile - best|)
    speedup = library alone / (kernel + library for the other operations)

A kernel over operations in reverse order runs and is wrong; one that begins at operation 0 is
defined and never called (a decoy): its result is right, but it is the library's. Every turn is a
new kernel for the same program and is answered with its profile. The reward is 1 for a right kernel
of at least `target` speedup; `measures` holds correct, speedup, profiled (the kernel's share of the
time) and decoy, for recipes such as dr_kernel.

In the plain style an action says `fuse 1 to 3 tile 64`. In the compact style `1,2,3:4=` shows the
operations and the size, an action is first operation, tile (one of - + * /, for sizes 1 to 4), last
operation, as `1*3`, and later turns show `:10,18=`, the last kernel's time and the library's.
"""

import random
import re
from collections.abc import Mapping

from strop.environments.base import Environment, Observation, check_number, check_style

LAUNCH, SAVED, MISFIT = 6, 4, 1.0
COSTS = range(5, 10)  # of an operation; each more than SAVED
TILES = ("16", "64", "256", "1024")
SIGNS = "-+*/"
PLAIN = re.compile(r"fuse (\d) to (\d) tile (\d+)")
COMPACT = re.compile(r"(\d)([-+*/])(\d)")


class KernelTiming(Environment):
    """Options: length (operations, 2 to 9), max_turns, target (speedup from which a kernel is worth
    its reward), style.
    """

    def __init__(
        self, length: int = 3, max_turns: int = 3, target: float = 1.5, style: str = "plain"
    ) -> None:
        check_style(style)
        check_number("kernel_timing: length", length, 2, 9)
        check_number("kernel_timing: max_turns", max_turns, 1)
        check_number("kernel_timing: target", target, 0.0, whole=False)
        self.length, self.max_turns, self.target = length, max_turns, target
        self.is_compact = style == "compact"
        self.max_tokens = 3 if self.is_compact else 64
        self.reward_range = (0.0, float(max_turns))
        self.costs: tuple[int, ...] = ()
        self.best = self.turn = 0

    def reset(self, seed: int) -> Observation:
        """Draw a program."""
        draw = random.Random(seed)
        self.costs = tuple(draw.choice(COSTS) for _ in range(self.length))
        self.best, self.turn = draw.randrange(len(TILES)), 0
        shown = ",".join(map(str, self.costs))
        if self.is_compact:
            operations = ",".join(map(str, range(1, self.length + 1)))
            return Observation(f"{operations}:{self.best + 1}=", state=self._state(""))
        return Observation(
            f"A program of size {self.best + 1} runs {self.length} operations in a row, of the "
            f"costs {shown}. Fuse some of them, from first to last, into one kernel, as in: fuse 1 "
            f"to 2 tile 64. Tiles are {', '.join(TILES)}, for sizes 1 to {len(TILES)}.\n",
            state=self._state(""),
        )

    def step(self, action: str) -> Observation:
        """Time the kernel that an action writes."""
        self.turn += 1
        done = self.turn == self.max_turns
        kernel = self._read(action)
        if kernel is None:
            text = ":=" if self.is_compact else "That is no kernel for this program.\n"
            failed = {"correct": 0.0, "decoy": 0.0}
            return Observation("" if done else text, 0.0, done, state=self._state(text),
                               valid=False, measures=failed)  # fmt: skip
        found = self.profile(*kernel)
        fast = found["correct"] > 0 and not found["decoy"] and found["speedup"] >= self.target
        text = self._result_text(found)
        return Observation(
            "" if done else text, float(fast), done, state=self._state(text), measures=found
        )

    def profile(self, first: int, tile: int, last: int) -> dict[str, float]:
        """The modelled times of a kernel over operations first to last, counted from 1."""
        library = float(sum(LAUNCH + cost for cost in self.costs))
        if first == 0:
            return {"correct": 1.0, "speedup": 1.0, "profiled": 0.0, "decoy": 1.0, "time": library}
        low, high = sorted((first, last))
        inside = self.costs[low - 1 : high]
        moved = sum(inside) - SAVED * (len(inside) - 1)
        kernel = LAUNCH + moved * (1 + MISFIT * abs(tile - self.best))
        time = library - sum(LAUNCH + cost for cost in inside) + kernel
        return {"correct": float(first <= last), "speedup": library / time,
                "profiled": kernel / time, "decoy": 0.0, "time": time}  # fmt: skip

    def _read(self, action: str) -> tuple[int, int, int] | None:
        """First operation, tile and last operation of a kernel; None: it does not compile."""
        if self.is_compact:
            found = COMPACT.match(action)
            first, tile, last = found.groups() if found else ("", "", "")
            tiles: tuple[str, ...] = tuple(SIGNS)
        else:
            matches = PLAIN.findall(action.lower())
            first, last, tile = matches[0] if len(set(matches)) == 1 else ("", "", "")
            tiles = TILES
        if tile not in tiles or int(first) > self.length or not 1 <= int(last) <= self.length:
            return None
        return int(first), tiles.index(tile), int(last)

    def _result_text(self, found: Mapping[str, float]) -> str:
        library = sum(LAUNCH + cost for cost in self.costs)
        if self.is_compact:
            return f":{round(found['time'])},{library}="
        right = "Right" if found["correct"] else "Wrong"
        return (
            f"{right} result. {found['time']:g} against {library} of the library: speedup "
            f"{found['speedup']:.2f}, {found['profiled']:.0%} of the time in your kernel.\n"
        )

    def _state(self, shown: str) -> str:
        return f"{self.costs},{self.best},{self.turn},{shown}"
