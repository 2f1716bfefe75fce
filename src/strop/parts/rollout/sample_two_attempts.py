"""Answer every prompt, then ask for a second attempt with the first one in sight."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from strop.batch.columns import Column
from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer, Request
from strop.method.part import Draw
from strop.method.services import Episodes, Player, Sampling, Texts
from strop.parts.rollout._rows import rows_by_draw
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble

FIRST, SECOND = 0, 1  # stage_B
# The words between attempts: for a model that can read them, and for one of few characters.
WORDS = (
    "\nThere may be a mistake in the answer above. Look for it, and answer once more, without it.\n"
    "{prompt}",
    "\n{prompt}",
)


@dataclass(frozen=True)
class SampleTwoAttempts(SamplingFields):
    """Each rollout of a draw becomes a conversation of two answers, a row of the batch each.

        stage 0: y1 ~ pi(. | x);   stage 1: y2 ~ pi(. | x, y1, words)

    The first answer and the words are part of the second row's prompt, mask_T false, so each row
    is scored, and learns, by its own answer. Both have the same limit of tokens. The stages are the
    roles 0 and 1, which may have weights of their own (`roles.play`).
    Reads: draws; texts and episodes (how words follow an answer); rng.   Writes: the token, turn,
    rollout and prompt tables, stage_B, and conversation_B [B] int, the same for both rows.
    Source: arXiv 2409.12917, sec. 5 (the wording of the instruction is free).
    Differs from the source: attempts are rows of their own, with the same gradient.
    Nearest part: sample_independently, whose rollouts are the first attempts.
    Edges: no room in the context for a second attempt, or a first one whose request failed -> the
    first alone. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "stage_B", "conversation_B")
    knows_roles: ClassVar[bool] = True
    declares: ClassVar[tuple[Column, ...]] = (
        Column("conversation_B", "int", "attempts at one prompt that see each other share it",
               "key", random="key:4"),
    )  # fmt: skip
    # What is said between the attempts; {prompt} is the prompt. Default: ours (a request to find
    # the mistake, as in the source, with the prompt; the prompt alone where the model's tokenizer
    # has no letters for it).
    words: str = ""

    async def __call__(
        self,
        draws: tuple[Draw, ...],
        engine: AsyncEngine,
        texts: Texts,
        sampling: Sampling,
        episodes: Episodes,
        rng: torch.Generator,
    ) -> Rollouts:
        asked = self.requests(draws, texts, sampling, rng)
        who = [sampling.players(request.seed) for request in asked]
        asked = [
            replace(request, weights=of(FIRST).weights)
            for request, of in zip(asked, who, strict=True)
        ]
        seeds = torch.randint(2**62, (len(asked),), generator=rng).tolist()
        uids = [draw.uid for draw in draws for _ in range(draw.num_rollouts)]
        words = self.words or texts.first_known(WORDS, "rollout.words")
        first = await engine.generate_all(asked)
        again: dict[int, Request] = {}
        for row, answer in enumerate(first):
            text = words.replace("{prompt}", texts.question(uids[row]))
            said_ids = episodes.observation_ids(text, answer.sequence[-1])
            given = (*answer.sequence, *said_ids)
            room = min(answer.request.max_tokens, sampling.context_tokens - len(given))
            if room > 0 and not answer.failed:
                again[row] = self.request(
                    sampling, given, seeds[row], room, weights=who[row](SECOND).weights
                )
        second = dict(zip(again, await engine.generate_all(list(again.values())), strict=True))
        rows: list[tuple[int, Answer]] = []
        players: list[Player] = []
        wide = []
        for draw, own in rows_by_draw(draws):
            anew = [row for row in own if row in again]
            rows += [(FIRST, first[row]) for row in own] + [(SECOND, second[row]) for row in anew]
            players += [who[row](FIRST) for row in own] + [who[row](SECOND) for row in anew]
            wide.append(draw._replace(num_rollouts=len(own) + len(anew)))
        batch = assemble(wide, [answer for _, answer in rows], players)
        key_of = {again[row].seed: asked[row].seed for row in again}
        keys = [key_of.get(seed, seed) for seed in (answer.request.seed for _, answer in rows)]
        return batch.set(
            stage_B=torch.tensor([stage for stage, _ in rows], dtype=torch.int64),
            conversation_B=torch.tensor(keys, dtype=torch.int64),
        ), None
