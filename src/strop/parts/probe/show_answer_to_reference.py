"""Let the reference read what the policy does not see: the right answer, a hint, an example."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result
from strop.method.services import Texts
from strop.parts.probe._answers import answer_of

WORDS = ("{prompt}\n\nA right solution is:\n{answer}\n\nSolve it once more, in your own words.",
         "{answer}\n{prompt}")  # fmt: skip


@dataclass(frozen=True)
class ShowAnswerToReference:
    """The reference judges the policy's tokens with more in its prompt than the policy had.

        logp_ref_t = log pi_ref(token t | words filled with prompt and answer, tokens before t)

    So the policy's own weights, as they were when the run began, are a teacher of the policy.
    All that the step reads from the reference follows these prompts: its likelihood of the drawn
    token and its whole distribution.

    Reads: uid_P [P] int; texts (with the prompts' rows).   Writes: prompt_ref_PL [P, L] int.
    Source: arXiv 2601.18734 (the teacher's prompt has a verified solution); 2601.19897 (a
    demonstration).
    Differs from the source: other words.
    Nearest part: sample_with_hints, where the policy itself reads the hint.
    Edges: no room for the words in the context, or a row whose answer is empty -> the plain prompt;
    of several answers the first counts; prompts without the column -> UserError.
    """

    writes: ClassVar[tuple[str, ...]] = ("prompt_ref_PL",)
    # Text that the reference reads, in a chat in place of the last message; {prompt} is the
    # prompt's text, {answer} the answer. Default: ours (one that the model can read).
    words: str = ""
    # Column of the prompt's row that is shown. Default: ours (the usual name).
    column: str = "answer"

    def __call__(self, uid_P: Tensor, texts: Texts) -> Result:
        words = self.words or texts.first_known(WORDS, "probes.words")
        shown = [self._ids(texts, uid, words) for uid in uid_P.tolist()]
        width = max((len(ids) for ids in shown), default=0)
        rows = [[*ids, *[-1] * (width - len(ids))] for ids in shown]
        prompt_PL = torch.tensor(rows, dtype=torch.int64, device=uid_P.device)
        share = sum(map(bool, shown)) / max(len(shown), 1)
        return Result(prompt_PL.view(len(shown), width), metrics={"reference/shown": share})

    def _ids(self, texts: Texts, uid: int, words: str) -> tuple[int, ...]:
        if "{answer}" not in words:
            return texts.reworded_ids(uid, words, ())
        otherwise = "set probes.column to another, or probes.words to a text without {answer}"
        answer = answer_of(texts, uid, self.column, "show_answer_to_reference", otherwise)
        return texts.reworded_ids(uid, words, answer) if answer else ()
