"""Play episodes in which a repair takes the failed turn's place, as if it had been written so."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine, gather
from strop.engines.base import Answer, Request
from strop.method.part import Draw, require
from strop.method.services import Episodes, Log, Sampling, Texts
from strop.parts.rollout._mending import MOST_TURNS, Mending, spliced
from strop.parts.rollout._playing import PLAYED, PlayingAlone, Scene, written
from strop.parts.rollout.base import Rollouts


@dataclass(frozen=True)
class RewriteFailedTurns(PlayingAlone):
    """A call that failed and the repair after it become one turn without the error.

        failed: the environment did not understand the turn (valid_K), and it was not the last
        repair ~ pi(. | episode, failed turn, error); it stands for the failed turn from its call
        on where both calls are alike to `likeness`, else as a whole; the error goes, the episode
        is brought back to before the turn, and the new one is played; again where it fails

    A repair without a call is played behind the error, and nothing more is repaired; one that is
    the last turn there may be is dropped, and the episode ends with the failure. After max_tries
    repairs of a turn the error stays, with `hint` from the second on, and nothing more is repaired.
    Metrics: repair/failed (turns), /tried, /kept (repairs), /whole (of the kept ones).
    Reads: draws; texts, episodes (calls).   Writes: as play_turns.
    Source: arXiv 2601.15141; code: Tianshi-Xu/Open-CLEANER.
    Differs from the source: the environment says what failed, there patterns in its text.
    Nearest part: play_turns; equal to it when share is 0.
    Edges: log-probabilities of a repair are not known (another context). Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = PLAYED
    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Share of the rollouts whose failed turns are repaired. Default: released code (1).
    share: float = 1.0
    # Repairs of a turn, at most. Default: released code (3).
    max_tries: int = 3
    # Likeness of two calls from which the reasoning stays; above 1: never. Default: paper (0.5).
    likeness: float = 0.5
    # Text with which a call begins; not there: it is the whole turn; empty: as is every turn.
    # Default: released code.
    marker: str = "<tool_call>"
    # Said behind an error that stays; {tries}: repairs. Default: ours (released code: a sentence).
    hint: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "share", low=0.0, high=1.0)
        require(self, "max_tries", low=0)
        require(self, "likeness", low=0.0)

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        episodes: Episodes, log: Log, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        uids = [draw.uid for draw in draws for _ in range(draw.num_rollouts)]
        with self.opened(uids, draws, engine, texts, sampling, episodes) as scene:
            seeds = torch.randint(2**62, (len(uids), 1), generator=rng).tolist()
            own = torch.randint(2**62, (len(uids),), generator=rng).tolist()
            coins = torch.rand(len(uids), generator=rng).tolist()
            games = self.begin(uids, seeds, scene)
            going = [
                Mending(
                    game, torch.Generator().manual_seed(seed), coin < self.share, game.seat.seed
                )
                for game, seed, coin in zip(games, own, coins, strict=True)
            ]
            await gather(self._play(each, scene) for each in going)
            batch = written(draws, [each.episode for each in going], scene.world, log)
        kept, whole = (sum(getattr(each, name) for each in going) for name in ("kept", "whole"))
        return (
            batch,
            None,
            {
                "repair/failed": sum(each.num_failed for each in going),
                "repair/tried": sum(sum(each.tries.values()) for each in going),
                "repair/kept": kept,
                "repair/whole": whole,
            },
        )

    async def _play(self, each: Mending, scene: Scene) -> None:
        """Play an episode to its end, with repairs."""
        request = self.first_turn(each.episode, scene)
        while request is not None:
            answer: Answer | None = await scene.engine.generate(request)
            if answer is None or each.episode.lost(answer.events):
                return
            if (answer := self._taken(each, answer, scene)) is None:
                return
            request = self._next(each, await scene.act(each.episode, answer), scene)

    def _taken(self, each: Mending, answer: Answer, scene: Scene) -> Answer | None:
        """The action that is played: what was drawn, or the repaired turn; None: neither."""
        if not each.is_trying:
            return answer
        each.is_trying = False
        episodes, limits, decode = scene.episodes, scene.limits, scene.texts.decode
        if self.marker and not episodes.tool_calls(episodes.action_texts([answer.ids]))[0]:
            each.mends = False
            return answer
        if len(each.episode.seat.turns) >= scene.limits_of(each.episode).turns:
            each.stop_at_failed()
            return None
        failed = each.replace_failed(scene.world)
        events, each.was_whole = spliced(failed, answer.events, self.marker, self.likeness, decode)
        if sum(len(event.ids) for event in events) > limits.answer_tokens:
            events, each.was_whole = spliced(failed, answer.events, "", self.likeness, decode)
        return Answer(answer.request, tuple(events))

    def _next(self, each: Mending, answer: Any, scene: Scene) -> Request | None:
        """The next action of an episode: its next turn, or a repair of this one."""
        turn = len(each.episode.seat.turns) - 1
        each.num_turns += 1
        each.mends &= each.num_turns <= MOST_TURNS
        tries = each.tries.get(turn, 0)
        failed = not (answer.valid or answer.done or answer.truncated)
        each.num_failed += failed and tries == 0
        if not failed:
            each.kept += tries > 0
            each.whole += tries > 0 and each.was_whole
        elif each.mends and tries < self.max_tries:
            start = self.next_turn(each.episode, answer, scene)
            if start is not None:
                each.tries[turn], each.is_trying = tries + 1, True
                start = replace(start, seed=each.seed())
            return start
        elif each.mends:
            each.mends = False
            if tries > 1:
                hint = self.hint.replace("{tries}", str(tries))
                answer = replace(answer, text=answer.text + hint)
        start = self.next_turn(each.episode, answer, scene)
        return None if start is None else replace(start, seed=each.own_seed)
