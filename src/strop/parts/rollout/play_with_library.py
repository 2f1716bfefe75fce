"""Play episodes with a Python tool, and with the functions that earlier episodes have written."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.method.part import Draw, require, require_one_of
from strop.method.services import Episodes, Log, Sampling, Texts
from strop.parts.rollout import _library as library
from strop.parts.rollout._episode import Episode
from strop.parts.rollout._library import Library, skills_in, whole
from strop.parts.rollout._playing import PLAYED, PlayingFields, written
from strop.parts.rollout.base import Rollouts

TOOL = "python"
WORDS = "These functions are there and can be called:\n{answer}\n\n{prompt}"
State = dict[str, Any]


@dataclass
class Desk:
    """What an episode has at hand: stored functions, and the programs of its actions so far."""

    shown: dict[str, str] = field(default_factory=dict)
    programs: list[list[str]] = field(default_factory=list)

    def own(self, log: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """The functions of its actions that ran without an error. log: of each, whether it did."""
        return {
            name: code
            for programs, turn in zip(self.programs, log, strict=False)
            for program in programs if turn.get("valid")
            for name, code in skills_in(program).items()
        }  # fmt: skip

    def prepared(self, game: Episode, action: Any) -> Any:
        """An action whose programs begin with the known functions that they do not define."""
        made, at_hand = getattr(action, "calls", ()), self.shown | self.own(game.seat.turn_log)
        self.programs.append([each.arguments["code"] for each in made if _runs(each)])
        sent = tuple(_with(each, at_hand) if _runs(each) else each for each in made)
        return action if sent == made else type(action).of(str(action), action.content, sent)


@dataclass(frozen=True)
class PlayWithLibrary(PlayingFields):
    """The policy may call functions that it wrote in other episodes, found by the task's words.

        shown(x) = the `top` functions of the library nearest to prompt x (BM25)
        library <- library and the functions of actions that ran without an error

    It needs an environment with the tool `python`. The shown functions, and those that the episode
    has defined, are put before the code of a call. The library stays the same during a step, so
    that all rollouts of a prompt see the same. Functions that were shown are credited with the
    episode's reward and its gain over the prompt's earlier ones; `prune` drops those that do not
    help; of two whose names have the same words the shorter stays. Metrics: library/functions,
    /shown, /reused, /egl (new functions / calls, over the run), /egl_step (of this call alone).

    Reads: draws, texts, episodes, state.   Writes: what play_turns does.
    Source: arXiv 2411.01747 (act and keep), 2512.10696 (count, prune), 2601.18226 (merge, EGL).
    Differs from the source: 1. functions are kept between calls, variables are not; 2. nothing is
    reranked or rewritten by a model; 3. prune="lift" and the defaults are ours.
    Nearest part: play_turns; equal to it while the library is empty.
    Edges: no room for the functions -> the prompt alone; unscored episodes do not count. The
    library is in the checkpoint; an evaluation plays without it, by play_turns.
    """

    writes: ClassVar[tuple[str, ...]] = PLAYED
    # Functions shown. Default: ours (ReMe: 5, then reranked).
    top: int = 3
    # Rule that drops functions: "lift", "utility" or "none". Default: ours (lift; ReMe's is
    # utility).
    prune: str = "lift"
    # Showings from which a function may be dropped. Default: ours (not stated).
    least: int = 5
    # Share of successes below which "utility" drops one. Default: ours (not stated).
    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "top", "least", low=1)
        require(self, "share", low=0.0, high=1.0)
        require_one_of(self, "prune", ("lift", "utility", "none"))

    def init(self) -> State:
        """An empty library. Raises UserError without the package that finds functions."""
        library.nearest({"none": {"text": "def none"}}, "none", 1)
        return {"library": {}, "played": (), "prompts": {}, "written": 0, "calls": 0, "steps": 0}

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        episodes: Episodes, log: Log, rng: torch.Generator, state: State,
    ) -> Rollouts:  # fmt: skip
        uids = [draw.uid for draw in draws for _ in range(draw.num_rollouts)]
        known: Library = state["library"]
        shown, openings = self._found(dict.fromkeys(uids), known, texts)
        desks = [Desk({name: known[name]["text"] for name in shown[uid]}) for uid in uids]
        with self.opened(uids, draws, engine, texts, sampling, episodes) as scene:
            scene.openings = openings
            scene.prepared = lambda game, action: desks[game.number].prepared(game, action)
            shape = (len(uids), max(len(scene.world.roles), 1))
            seeds = torch.randint(2**62, shape, generator=rng).tolist()
            games = await self.play_all(uids, seeds, scene)
            batch = written(draws, games, scene.world, log)
        played = tuple(_record(g, d) for g, d in zip(games, desks, strict=True) if not g.unscored)
        new = len({name for each in played for name in each["wrote"]} - known.keys())
        called = sum(each["calls"] for each in played)
        state = {**state, "played": (*state["played"], *played),
                 "written": state["written"] + new, "calls": state["calls"] + called}  # fmt: skip
        metrics = {
            "library/functions": float(len(known)),
            "library/shown": sum(len(each["shown"]) for each in played) / max(len(played), 1),
            "library/reused": sum(each["reused"] for each in played) / max(len(played), 1),
            "library/egl": state["written"] / max(state["calls"], 1),
            "library/egl_step": new / max(called, 1),
        }
        return batch, state, metrics

    def update(self, state: State) -> State:
        """The library of the next step."""
        known: Library = {name: dict(each) for name, each in state["library"].items()}
        step = state["steps"] + 1
        before, prompts = state["prompts"], dict(state["prompts"])
        for each in state["played"]:
            num, total = before.get(each["uid"], (0, 0.0))
            library.count(known, each["shown"], each["outcome"], total / num if num else None)
            num, total = prompts.get(each["uid"], (0, 0.0))
            prompts[each["uid"]] = (num + 1, total + each["outcome"])
        dropped = [
            name for name, each in known.items()
            if library.is_useless(each, self.prune, self.least, self.share)
        ]  # fmt: skip
        for name in dropped:
            del known[name]
        for each in state["played"]:
            for name, code in each["wrote"].items():
                library.add(known, name, code, step, each["version"])
        return {**state, "library": known, "played": (), "prompts": prompts, "steps": step}

    def _found(
        self, uids: Mapping[int, None], known: Library, texts: Texts
    ) -> tuple[dict[int, list[str]], dict[int, tuple[int, ...]]]:
        """The functions that each prompt is shown, and its tokens with them."""
        found: dict[int, list[str]] = {uid: [] for uid in uids}
        openings = {}
        for uid in uids if known else ():
            names = library.nearest(known, texts.question(uid), self.top)
            heads = texts.encode("\n".join(library.head_of(known[n]["text"]) for n in names))
            ids = texts.reworded_ids(uid, WORDS, heads) if names else ()
            if ids:
                found[uid], openings[uid] = names, ids
        return found, openings


def _runs(call: Any) -> bool:
    """Whether a call runs a program."""
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    return call.name == TOOL and not call.problem and isinstance(arguments.get("code"), str)


def _with(call: Any, at_hand: Mapping[str, str]) -> Any:
    """The call with the functions before its code that it does not define itself."""
    code = call.arguments["code"]
    before = "\n".join(text for name, text in at_hand.items() if name not in skills_in(code))
    given = {**call.arguments, "code": f"{before}\n{code}"}
    return dataclasses.replace(call, arguments=given) if before else call


def _record(game: Episode, desk: Desk) -> dict[str, Any]:
    """The result of an episode: its outcome, the functions that it was shown, and those that it
    wrote, each with those that it calls.
    """
    programs = [program for each in desk.programs for program in each]
    own = desk.own(game.seat.turn_log)
    versions = [event.version for turn in game.seat.turns for event in turn.events]
    return {
        "uid": game.uid, "outcome": float(game.seat.earned), "shown": tuple(desk.shown),
        "reused": any(library.calls(p, n) for p in programs for n in desk.shown),
        "calls": len(programs), "version": max(versions, default=0),
        "wrote": {name: whole(name, desk.shown | own) for name in own},
    }  # fmt: skip
