"""Answer a chain of prompts, each shown the skills that worked in the answers before it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer, Request
from strop.method.part import Draw
from strop.method.services import Grading, Sampling, Texts
from strop.parts.rollout._library import PYTHON, calls, skills_in
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble
from strop.support.errors import UserError


@dataclass
class Chain:
    """A rollout of a draw: the prompts that follow, and its skills: name -> (text, stage)."""

    place: int
    draw: Draw
    seeds: Sequence[int]
    skills: dict[str, tuple[str, int]] = field(default_factory=dict)
    rows: list[tuple[Answer, int, bool]] = field(default_factory=list)

    def goes_on(self, stage: int) -> bool:
        """Whether the chain has an answer at this stage."""
        return stage < len(_uids(self.draw)) and not self.rows[-1][0].failed


@dataclass(frozen=True)
class AnswerWithSkills(SamplingFields):
    """A rollout is a chain of tasks: it may call the skills of earlier tasks in later ones.

        stage 0: y_0 ~ pi(. | x_0);   stage m: y_m ~ pi(. | words(library, x_m))
        library: the skills of all answers of the chain so far with outcome >= 1

    A skill is a match of `skill` in an answer, with its `name`. A later answer calls it if `call`
    with its name occurs outside the skills that the answer defines, none of which has that name; a
    skill that is only its name is called wherever it occurs. Each task is a row in the group of its
    own prompt, so the G chains of a draw share a baseline at each stage.

    Reads: draws (chain_similar_prompts gives them their chain); texts, rng; the reward (of each
    stage).   Writes: the token, turn, rollout and prompt tables, stage_B, chain_B [B] int, called_B
    [B] int (sum of 2^stage of the stages whose skills it calls), skilful_B [B] bool (it defines or
    calls one).
    Source: arXiv 2512.17102 (sequential rollout, skill library).
    Differs from the source: one answer per task, without a second try after an error.
    Nearest part: sample_two_attempts, which stays at one prompt.
    Edges: nothing saved, or no room for the library -> the prompt alone; a failed request ends its
    chain. Of two skills of one name the later one stays. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "stage_B", "chain_B", "called_B", "skilful_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("chain_B", "int", "answers of one chain of prompts share it", "key", random="key:3"),
        Column("called_B", "int", "stages of its chain whose skills it calls", "sum of 2^stage",
               random="key:2"),
        Column("skilful_B", "bool", "it defines or calls a skill", random="flag:0.7"),
    )  # fmt: skip
    # Regular expression of a skill, with a group `name`. Default: ours (functions of Python).
    skill: str = PYTHON
    # How a skill is called. Default: ours (functions of Python).
    call: str = "{name}("
    # The prompt, made of {library} and {prompt}. Default: ours (the least that is needed).
    words: str = "{library}\n{prompt}"

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            named = "name" in re.compile(self.skill).groupindex
        except re.error as error:
            raise UserError(f"rollout.skill is no regular expression: {error}") from error
        if not named or "{name}" not in self.call:
            raise UserError(
                "rollout.skill needs a group (?P<name>...) that names a skill, and rollout.call "
                "the word {name}"
            )

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        grading: Grading, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        requests = self.requests(draws, texts, sampling, rng)
        owners = [(place, d) for place, d in enumerate(draws) for _ in range(d.num_rollouts)]
        longest = max((len(_uids(draw)) for draw in draws), default=1)
        seeds = torch.randint(2**62, (len(owners), longest), generator=rng).tolist()
        chains = [Chain(place, d, own) for (place, d), own in zip(owners, seeds, strict=True)]
        going = chains
        for stage in range(longest if chains else 0):
            answers = await engine.generate_all(requests)
            graded = [Draw(_uids(chain.draw)[stage], 1) for chain in going]
            outcomes = grading.grade(assemble(graded, answers)).outcome_B.tolist()
            for chain, answer, outcome in zip(going, answers, outcomes, strict=True):
                self._note(chain, stage, answer, outcome, texts)
            going = [chain for chain in going if chain.goes_on(stage + 1)]
            requests = [self._request(chain, stage + 1, texts, sampling) for chain in going]
        return _written(draws, chains), None

    def _note(self, chain: Chain, stage: int, answer: Answer, outcome: float, texts: Texts) -> None:
        """Record what an answer calls and defines; its skills are stored if it is right."""
        text = texts.decode(answer.ids, special=False)
        found = skills_in(text, self.skill)
        rest = re.sub(self.skill, "", text)
        called = {
            of
            for name, (code, of) in chain.skills.items()
            if (code == name or name not in found)
            and calls(text if code == name else rest, name, self.call)
        }
        flags = sum(1 << of for of in called)
        chain.rows.append((answer, flags, bool(found or called)))
        if outcome >= 1:
            chain.skills |= {name: (code, stage) for name, code in found.items()}

    def _request(self, chain: Chain, stage: int, texts: Texts, sampling: Sampling) -> Request:
        """The next prompt of a chain with its library."""
        uid, ids = _uids(chain.draw)[stage], tuple[int, ...]()
        if chain.skills:
            library = texts.encode("\n".join(code.rstrip() for code, _ in chain.skills.values()))
            ids = texts.reworded_ids(uid, self.words.replace("{library}", "{answer}"), library)
        return self.request(sampling, ids or texts.prompt_ids(uid), chain.seeds[stage - 1])


def _uids(draw: Draw) -> tuple[int, ...]:
    """The prompts of a chain."""
    return (draw.uid, *draw.columns.get("chain", ()))


def _written(draws: Sequence[Draw], chains: Sequence[Chain]) -> Batch:
    """The batch: the chains of a draw stage by stage."""
    groups, rows = list[Draw](), list[tuple[int, Chain]]()
    for place, draw in enumerate(draws):
        own = [chain for chain in chains if chain.place == place]
        for stage in range(max(len(chain.rows) for chain in own)):
            here = [(stage, chain) for chain in own if stage < len(chain.rows)]
            number = draw.draw
            if stage:  # several draws may lead to one prompt: each has a group of its own there
                number += (draw.uid << 30) + (stage << 20)
            uid = _uids(draw)[stage]
            groups.append(draw._replace(uid=uid, num_rollouts=len(here), draw=number))
            rows += here
    taken = [chain.rows[stage] for stage, chain in rows]
    batch = assemble(groups, [row[0] for row in taken])
    keys = [chain.rows[0][0].request.seed for _, chain in rows]
    return batch.set(
        stage_B=torch.tensor([stage for stage, _ in rows], dtype=torch.int64),
        chain_B=torch.tensor(keys, dtype=torch.int64),
        called_B=torch.tensor([row[1] for row in taken], dtype=torch.int64),
        skilful_B=torch.tensor([row[2] for row in taken], dtype=torch.bool),
    )
