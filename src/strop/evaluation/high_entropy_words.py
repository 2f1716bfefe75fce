"""Words after which entropy is high, from the tokens that a run has saved.

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

NUM_WORDS = 174  # the length of the list in ARES's released code
COLUMNS = ("text_T", "mask_T", "entropy_behavior_T")


class HighEntropyWord(NamedTuple):
    """A word, how often it occurs with room for a window after it, and the windows' mean."""

    word: str
    times: int
    entropy: float


def high_entropy_words(
    run: str | Path, num: int = NUM_WORDS, *, width: int = 4, least: int = 10
) -> list[HighEntropyWord]:
    """The words whose following `width` policy tokens have the highest mean entropy, nats.

    A word is a token's text as `mark_windows_after_words` reads it; a word that occurs fewer than
    `least` times is left out. Reads RUN/tokens, which `training.inspect` and
    `training.rollouts_every` fill. Source: none, for arXiv 2510.08457 publishes its list without
    the method. Raises UserError where nothing is saved, or no word occurs so often.
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
        raise UserError(f"no word was said {least} times in the saved tokens of {run}: lower least")
    return sorted(found, key=lambda each: (-each.entropy, each.word))[:num]
