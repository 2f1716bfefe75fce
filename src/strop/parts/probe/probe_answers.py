"""Force an answer after every step, and measure how sure and how right it is by then."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.part import require
from strop.method.services import Answer, Sampling, Texts
from strop.parts.probe._answers import prefixes
from strop.support.errors import UserError

NUM_TOP = 20  # likeliest tokens that the source's engine reports
Top = Sequence[Mapping[int, float]]
OPENINGS = ("\n\n**Final Answer**\n\\boxed{", "=")  # the first that the tokenizer can write
COLUMNS = ("answer", "answers")


@dataclass(frozen=True)
class ProbeAnswers:
    """After each step several answers are forced; sure and right ones raise the potential.

        potential_t = 1.5 acc conf + 0.5 acc - conf    in [-1, 1], at step ends; NaN elsewhere
        conf = mean over answers of exp(-mean over their tokens of H)
        acc = mean over answers and over the reference's tokens m of p(reference_m at place m);
              of several references, the largest mean over tokens counts for each answer

    H and p are of the 20 likeliest tokens, before the temperature; positions that an answer does
    not have, and tokens that are not among the 20, count as p = 0.

    Reads: batch (the tokens), step_end_T [T] bool; texts (with the prompts' rows),
    sampling.   Writes: potential_T [T] float.
    Source: arXiv 2601.03823; code only: cii030/SPAE-RL (a probe example).
    Differs from the source: the example takes log p = -10 for a token that is not among the 20, and
    has one reference.
    Nearest part: estimate_values_by_continuing, which finishes answers and grades them.
    Edges: no room for an answer within the context, a row without a reference, or a failed request
    -> NaN; prompts without the reference's column -> UserError.
    """

    writes: ClassVar[tuple[str, ...]] = ("potential_T",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "potential_T",
            "float",
            "potential after the step that it ends; NaN: none",
            random="uniform",
        ),
    )
    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    needs: ClassVar[frozenset[str]] = frozenset({"top"})  # of the engine
    # Text that asks for the answer; empty: a heading and the start of a box, or "=" if the
    # tokenizer lacks these characters. Default: paper (the former).
    opening: str = ""
    # Column of the prompt's row with the right answer, or with a list of right ones; empty: answer,
    # or answers if there is none. Default: ours (the usual names).
    reference: str = ""
    # Answers after each step. Default: paper (5).
    num_answers: int = 5
    # Most tokens of an answer. Default: paper (10).
    max_tokens: int = 10
    # Temperature of the answers' softmax. Default: paper (0.6).
    temperature: float = 0.6

    def __post_init__(self) -> None:
        require(self, "num_answers", "max_tokens", low=1)
        require(self, "temperature", low=0.0)

    def __call__(
        self,
        batch: Batch,
        step_end_T: Tensor,
        texts: Texts,
        sampling: Sampling,
        rng: torch.Generator,
    ) -> Tensor:
        opening = texts.encode(self.opening or texts.first_known(OPENINGS, "probes.opening"))
        num_top = min(NUM_TOP, texts.num_tokens)
        rows, requests, references = [], [], []
        seeds = torch.randint(2**62, (int(step_end_T.sum()), self.num_answers), generator=rng)
        for place, (uid, _, ids) in enumerate(prefixes(batch, step_end_T, after=True)):
            right = self._references(texts, uid)
            asked = (*ids, *opening)
            if not right or len(asked) >= sampling.context_tokens:
                continue
            rows.append(place)
            references.append(right)
            requests += [
                sampling.request(
                    asked, self.max_tokens, seed, temperature=self.temperature, num_top=num_top,
                    want=frozenset({"top"}),
                )
                for seed in seeds[place].tolist()
            ]  # fmt: skip
        finished = iter(sampling.sample(requests))
        potential_N = torch.full((seeds.shape[0],), torch.nan)
        for place, right in zip(rows, references, strict=True):
            found = [next(finished) for _ in range(self.num_answers)]
            if not any(each.failed for each in found):
                potential_N[place] = potential([_top(each) for each in found], *right)
        potential_T = torch.full(step_end_T.shape, torch.nan, device=step_end_T.device)
        potential_T[step_end_T] = potential_N.to(potential_T.device)
        return potential_T

    def _references(self, texts: Texts, uid: int) -> list[tuple[int, ...]]:
        row = texts.row(uid)
        column = self.reference or next((name for name in COLUMNS if name in row), COLUMNS[0])
        if column not in row:
            raise UserError(
                f"probe_answers reads the column {column}, which the prompts do not have: "
                f"set probes.reference to one of {', '.join(row) or 'none'}"
            )
        given = row[column]
        several = given if isinstance(given, list | tuple) else [given]
        found = [texts.encode(str(text)) for text in several if text is not None]
        return [ids for ids in found if ids]


def _top(finished: Answer) -> Top:
    assert finished.ids, "a request that does not fail draws at least one token"
    return [place for event in finished.events for place in event.top]


def potential(answers: Sequence[Top], *references: Sequence[int]) -> float:
    """The potential of answers given by the log-probabilities of each place's likeliest tokens."""
    sure = right = 0.0
    for tops in answers:
        entropy = [-sum(math.exp(x) * x for x in top.values() if x > -math.inf) for top in tops]
        sure += math.exp(-sum(entropy) / len(entropy)) / len(answers)
        right += max(_agreement(tops, reference) for reference in references) / len(answers)
    return 1.5 * right * sure + 0.5 * right - sure


def _agreement(tops: Top, reference: Sequence[int]) -> float:
    """Mean over the reference's tokens of their probability at the answer's places."""
    places = zip(tops, reference, strict=False)
    return sum(math.exp(top.get(token, -math.inf)) for top, token in places) / len(reference)
