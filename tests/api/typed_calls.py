"""Right and wrong calls as type checkers see them; nothing here is run.

`mypy` and `basedpyright` read it: a right call has no error, and a wrong one has one, which the
comment after it suppresses. A comment that suppresses nothing is an error too.
"""

from collections.abc import Sequence
from pathlib import Path

import strop

ROWS = [{"prompt": "3,4:12=", "answer": "3*4"}]


def right(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    return [float(text == wanted) for text, wanted in zip(completions, answer, strict=True)]


def right_calls() -> None:
    run = strop.train("gspo", data=ROWS, reward=right, training_steps=20, rollout_max_tokens=8)
    strop.train("grpo(clip_high=0.3)", training_lr="linear(1e-4, 0)", loss_clip_high=0.3, seed=3)
    strop.train(data=Path("rows.jsonl"), reward=[right, "exact_match"], sampling_num_prompts=4)
    strop.train("grpo", advantage="subtract_group_mean | spread_evenly", data={"a": ROWS})
    strop.train(reward=right, evaluation_reward=right, validation={"easy": ROWS})
    strop.train(reward=right, evaluation_reward={"easy": right, "hard": "exact_match"})
    strop.resume(run, training_steps=40)
    strop.compare(["grpo", "rloo"], seeds=3, data=ROWS, reward=right, training_lr=1e-4)


def wrong_calls() -> None:
    strop.train("grpo", data=5)  # type: ignore[arg-type]
    strop.train("grpo", seeed=1)  # type: ignore[call-arg]
    strop.train("grpo", training_steps="many")  # type: ignore[arg-type]
    strop.train("grpo", reward=1.0)  # type: ignore[arg-type]
    strop.train("grpo", evaluation_reward=1.0)  # type: ignore[arg-type]
    strop.train("grpo", loss_clip_hihg=0.3)  # type: ignore[call-arg]
    strop.train("grpo", data_overlong="cut")  # type: ignore[arg-type]
    strop.train("grpo", loss_past=ROWS)  # type: ignore[arg-type]
    strop.compare(["grpo"], training_stps=3)  # type: ignore[call-arg]
