"""Take the answers from the training data, after prompts that say how good they are."""

from dataclasses import dataclass
from typing import ClassVar

from strop.method.part import Draw
from strop.method.services import Sampling, Texts
from strop.parts.rollout.base import COLUMNS, Rollouts
from strop.parts.rollout.read_answers import ReadAnswers
from strop.support.errors import UserError


@dataclass(frozen=True)
class ReadLabelledAnswers(ReadAnswers):
    """The policy imitates good and bad answers alike, and learns to distinguish them.

        prompt = words, {prompt} the row's own and {label} the name of the draw's label

    Reads: draws (label_B); texts.   Writes: as read_answers.
    Source: arXiv 2602.09021 (advantage in the prompt); code OpenDriveLab/kai0.
    Differs from the source: no.
    Nearest part: read_answers; equal to it when words is {prompt}.
    Edges: a draw without a label -> the row's own prompt; a label beyond `labels` -> its number; a
    prompt that has no room for the words -> UserError. Nothing lasts between steps.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "preferred_B")
    # What the policy is shown, with {prompt} and {label}. Default: released code.
    words: str = "{prompt}, Advantage: {label}"
    # Names of the labels 0, 1, ...; none: their numbers. Default: released code.
    labels: tuple[str, ...] = ("negative", "positive")

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{prompt}" not in self.words:
            raise UserError(
                f"read_labelled_answers.words must show {{prompt}}, it is {self.words!r}"
            )

    async def __call__(self, draws: tuple[Draw, ...], texts: Texts, sampling: Sampling) -> Rollouts:
        return await super().__call__(draws, texts, sampling)

    def prompt(self, draw: Draw, texts: Texts) -> tuple[int, ...]:
        """The tokens of the row's prompt with the draw's label."""
        if "label_B" not in draw.columns:
            return super().prompt(draw, texts)
        label = int(draw.columns["label_B"])
        name = self.labels[label] if label < len(self.labels) else str(label)
        ids = texts.reworded_ids(draw.uid, self.words.replace("{label}", name), ())
        if not ids:
            raise UserError(
                f"prompt {draw.uid} has no room for its label: raise data.max_prompt_tokens, or "
                "shorten the row or rollout.words"
            )
        return ids
