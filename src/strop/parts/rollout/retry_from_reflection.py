"""Play every episode, let the policy say where it went wrong, and play it again from there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine, gather
from strop.engines.base import Request
from strop.method.part import Draw, require, require_one_of
from strop.method.services import Episodes, Log, Sampling, Texts
from strop.parts.rollout._episode import Episode
from strop.parts.rollout._playing import PLAYED, PlayingAlone, Scene, written
from strop.parts.rollout._reflections import WORDS, Attempt, Report, form_of, read_report, rows_of
from strop.parts.rollout._rows import with_parents
from strop.parts.rollout.base import TOKENS_DISCARDED, Rollouts


@dataclass(frozen=True)
class RetryFromReflection(PlayingAlone):
    """An episode, the policy's own diagnosis of it, and a retry that the diagnosis guides.

        base: the draw's rollouts; reflection ~ pi(. | episode, ask) names a turn k, from 0
        retry: the first k actions again, then pi(. | beginning, guide, observation_k, ...)
        rows: base; the retry without its guide, of the same group, with base as its parent
        and, if R' >= 1 and (R' > R or it took fewer turns), alone in groups of their own and worth
        1: the reflection, and the retry with its guide, what it took over being given

    A reflection that is not valid, or finds nothing to change, brings no retry; the latter with
    R >= 1 is kept like those. form "number": the first number in it is k; "json": see `ask`; "auto"
    is "json" where the model's tokenizer has its characters, else "number".
    Metrics: retry/valid (reflections), /tried, /better (retries), /base, /again (mean rewards).
    Reads: draws.   Writes: as play_turns, stage_B (0 base, 1 retry, 2 reflection, 3 guided).
    Source: arXiv 2601.03715; code: shiweijiezero/R3L.
    Differs from the source: a reflection continues the episode; there it reads a log of it.
    Nearest part: play_turns, whose rollouts are the base; sample_two_attempts for single answers.
    Edges: R is the environment's own; no room for a reflection or a retry -> none. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = (*PLAYED, "stage_B")
    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # How a reflection says its turn: "json", "number" or "auto". Default: paper, where it can be.
    form: str = "auto"
    # Said behind an episode, {prompt} and {reward} in it; empty: the form's. Default: ours.
    ask: str = ""
    # First text of a retry, {report} and {text} (the turn's own) in it;
    # empty: the form's. Default: ours.
    guide: str = ""
    # Most tokens of a reflection; 0: an action's. Default: ours (released code: 4096, actions 512).
    reflection_tokens: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "form", ("auto", *WORDS))
        require(self, "reflection_tokens", low=0)

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        episodes: Episodes, log: Log, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        form = self.form if self.form != "auto" else form_of(texts)
        uids = [draw.uid for draw in draws for _ in range(draw.num_rollouts)]
        with self.opened(uids, draws, engine, texts, sampling, episodes) as scene:
            seeds = torch.randint(2**62, (len(uids), 1), generator=rng).tolist()
            more = torch.randint(2**62, (len(uids), 3), generator=rng).tolist()
            games = await self.play_all(uids, seeds, scene)
            tries = [Attempt(game, own) for game, own in zip(games, more, strict=True)]
            await self._reflect(tries, form, scene)
            await self._retry([each for each in tries if each.report], form, scene)
            groups, rows = rows_of(draws, tries)
            batch = written(groups, [row.episode for row in rows], scene.world, log)
        batch = with_parents(batch, [row.parent for row in rows], [row.fork_at for row in rows])
        stage_B = torch.tensor([row.stage for row in rows], dtype=torch.int64)
        return batch.set(stage_B=stage_B), None, _metrics(tries)

    async def _reflect(self, tries: Sequence[Attempt], form: str, scene: Scene) -> None:
        """Ask for a reflection on every episode, and read what they say."""
        texts, episodes, limits = scene.texts, scene.episodes, scene.limits
        words = self.ask or WORDS[form][0]
        requests: dict[int, Request] = {}
        for number, each in enumerate(tries):
            seat = each.base.seat
            if each.base.unscored:
                continue
            earned = words.replace("{reward}", f"{seat.earned:g}")
            each.asked = earned.replace("{prompt}", texts.question(each.base.uid))
            given = episodes.observation_ids(each.asked, seat.ids[-1])
            each.context = (*seat.ids, *given)
            most = self.reflection_tokens or limits.answer_tokens
            room = min(most, limits.context_tokens - len(each.context))
            if room > 0:
                requests[number] = self._behind(each.context, room, each.seeds[0], scene)
        answers = await scene.engine.generate_all(list(requests.values()))
        for number, answer in zip(requests, answers, strict=True):
            each = tries[number]
            each.reflection = answer.events
            if not answer.failed:
                text = texts.decode(answer.ids, special=False)
                each.report = read_report(text, form, len(each.base.seat.turns))

    async def _retry(self, tries: Sequence[Attempt], form: str, scene: Scene) -> None:
        """Play again from the turns that the reports name."""
        texts, episodes, limits = scene.texts, scene.episodes, scene.limits
        games: list[tuple[Episode, Request]] = []
        for each in tries:
            if each.report is None or each.report.is_perfect:
                continue
            turn, seat = each.report.turn, each.base.seat
            kept = each.base.branched(each.base.number, each.seeds[1], turn).seat
            at = len(kept.ids) - len(kept.turns[-1].given)
            text = self._guide(each.report, form, kept.turn_log[-1]["observation"])
            if turn:
                given = episodes.observation_ids(text, seat.ids[at - 1])
            else:
                given = texts.reworded_ids(each.base.uid, text, ())
            room = min(
                limits.answer_tokens, limits.episode_tokens - kept.used,
                limits.context_tokens - at - len(given),
            )  # fmt: skip
            if given and room > 0:
                ids = (*seat.ids[:at], *given)
                request = self._behind(ids, room, each.seeds[1], scene)
                games.append((each.begin_again(scene.world, text, given), request))
        await gather(self.play(game, request, scene) for game, request in games)

    def _guide(self, report: Report, form: str, shown: str) -> str:
        """The text that a retry reads at its start."""
        words = self.guide or WORDS[form][1]
        words = words.replace("{text}", shown if report.turn else "{prompt}")
        return words.replace("{report}", report.text)

    def _behind(self, ids: Sequence[int], room: int, seed: int, scene: Scene) -> Request:
        """A request that continues these tokens, with which an episode begins."""
        return self.request(scene.sampling, ids, seed, room, keep=True)


def _metrics(tries: Sequence[Attempt]) -> dict[str, float]:
    """Metrics of reflections and retries."""
    asked = [each for each in tries if each.reflection]
    valid = sum(each.report is not None for each in asked)
    scored = [each for each in tries if not each.base.unscored]
    retries = [each.retry for each in tries if each.retry is not None]
    again = [each.seat.earned for each in retries if not each.unscored]
    drawn = [sum(len(event.ids) for event in each.reflection) for each in tries]
    thrown = sum(n for n, each in zip(drawn, tries, strict=True) if not each.examples())
    return {
        "retry/valid": valid / max(len(asked), 1),
        "retry/tried": len(retries),
        "retry/better": sum(each.is_better for each in tries),
        "retry/base": sum(each.base.seat.earned for each in scored) / max(len(scored), 1),
        "retry/again": sum(again) / max(len(again), 1),
        TOKENS_DISCARDED: thrown,
    }
