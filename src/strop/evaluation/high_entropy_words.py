"""Words behind which entropy is high, from the tokens that a run has kept.

    " ".join(found.word for found in high_entropy_words("runs/grpo-1"))

`ares_aepo(variant="code", words=...)` takes such a list.
"""

from pathlib import Path
from typing import NamedTuple

import torch

from strop.batch import segments
from strop.parts.reward._open_windows import means_after, word_of
from strop.support.errors import UserError
from strop.tracking.rollouts_file import read_table

NUM_WORDS = 174  # as many as the list of the released code of ARES has
COLUMNS = ("text_T", "mask_T", "entropy_behavior_T")


class HighEntropyWord(NamedTuple):
    """A word, how often the policy said it with room for a window behind, and the windows' mean."""

    word: str
    times: int
    entropy: float


def high_entropy_words(
    run: str | Path, num: int = NUM_WORDS, *, width: int = 4, least: int = 10
) -> list[HighEntropyWord]:
    """The words whose following `width` policy tokens have the highest mean entropy, nats.

    A word is a token's text as `mark_windows_after_words` reads it; one said fewer than `least`
    times is left out. Of RUN/tokens, which `training.inspect` and `training.rollouts_every` fill.
    Source: none, the list of arXiv 2510.08457 is published without its making. Raises UserError
    where nothing is kept, or no word was said so often.
    """
    texts, entropies, rollouts = list[str](), list[float](), list[int]()
    number = 0
    for path in sorted(Path(run).glob("tokens/step-*.parquet")):
        for row in read_table(path, COLUMNS).to_pylist():
            number += 1
            for text, before, entropy in zip(*(row[name] for name in COLUMNS), strict=True):
                if before and entropy is not None:
                    texts.append(word_of(text))
                    entropies.append(entropy)
                    rollouts.append(number)
    if not texts:
        raise UserError(f"{run} has no tokens with entropies: give a run with training.inspect")
    mean_N, whole_N = means_after(
        torch.tensor(entropies, dtype=torch.float64), torch.tensor(rollouts), width
    )
    words = sorted(set(texts))
    place = {word: n for n, word in enumerate(words)}
    key_N = torch.tensor([place[text] for text in texts])
    counts = segments.count(key_N, len(words), whole_N).tolist()
    means = segments.mean(mean_N, key_N, len(words), whole_N).tolist()
    found = [
        HighEntropyWord(*each)
        for each in zip(words, counts, means, strict=True)
        if each[1] >= least and len(each[0].split()) == 1
    ]
    if not found:
        raise UserError(f"no word was said {least} times in what {run} has kept: make least less")
    return sorted(found, key=lambda each: (-each.entropy, each.word))[:num]
