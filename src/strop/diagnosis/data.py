"""Examines rows and lengths of data, and tries reward functions: `strop doctor --data --reward`."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strop.diagnosis.finding import Finding, mean, shortened
from strop.rewards.answers import REFERENCES, references
from strop.support.errors import UserError

SHOWN, TRIED, MEASURED = 3, 4, 5000  # rows shown, given to the rewards, and tokenised


@dataclass(frozen=True)
class Ingredients:
    """What a run is made of, beside its model.

    longest: tokens of the longest answer or episode; kept: those that the context has to keep after
    every prompt: a whole answer, or one token where answers are read from the data. rewards: specs.
    """

    name: str
    prompts: Sequence[Any]
    longest: int
    kept: int
    rewards: tuple[Any, ...]


def ingredients(settings: Any, tokenizer: Any) -> Ingredients:
    """The task of a run. Raises UserError.

    With a tokenizer, the prompts are in the form in which its model will see them.
    """
    from strop.data.chat import PLAIN
    from strop.environments.data_files import load_data
    from strop.environments.tasks import load_task
    from strop.rewards.source import RewardSpec, reward_names
    from strop.training.rows import chat_of, longest_given, put
    from strop.training.services.texts import new_tokens

    data, reward = settings.data, settings.reward
    if data.files:
        task = load_data(data.files, reader=data.reader, prompt_column=data.prompt_column,
                         columns=data.columns)  # fmt: skip
    else:
        task = load_task(data.task, num_train=data.train_size or None,
                         config=data.task_config)  # fmt: skip
    chat = PLAIN
    if tokenizer is not None:
        chat = chat_of(data, task, tokenizer)
        task = put(task, tokenizer, chat)
    named = zip(reward_names(reward.functions), reward.functions, strict=True)
    rewards = tuple(RewardSpec(name, source) for name, source in named) or task.rewards
    longest = kept = 0
    for part in (each.rollout.part for each in settings.build().algorithms):
        given = None if tokenizer is None else longest_given(part, task.train, tokenizer, 1, chat)
        tokens = new_tokens(part, task, given)[1]
        longest, kept = max(longest, tokens), max(kept, tokens if given is None else 1)
    return Ingredients(task.name, task.train, longest, kept, rewards)


def lengths(settings: Any, prompts: Sequence[Any], tokenizer: Any) -> list[int]:
    """Tokens of the first `MEASURED` prompts. Raises UserError for one that cannot be encoded."""
    from strop.data.encode import encode_prompt

    template = settings.data.chat().template
    return [len(encode_prompt(p, tokenizer, template)) for p in prompts[:MEASURED]]


def form(settings: Any, prompts: Sequence[Any], tokenizer: Any) -> Finding:
    """Whether prompts use the model's chat template."""
    from strop.training.rows import plain_text

    question = "Are the prompts in the form that the model knows?"
    note, _, advice = plain_text(prompts, tokenizer, settings.data.chat()).partition(": ")
    if note:
        return Finding(question, "note", f"{note}.", advice)
    messages = sum(not isinstance(prompt.prompt, str) for prompt in prompts)
    answer = f"{messages} of {len(prompts)} go through its chat template."
    if not getattr(tokenizer, "chat_template", None):
        answer = "They are plain text, and it has no chat template."
    return Finding(question, "ok", answer, numbers={"messages": messages})


def facts(name: str, prompts: Sequence[Any]) -> dict[str, Any]:
    """The number of rows, the columns with their share of missing values, and the first prompts
    that differ.
    """
    first: dict[str, Any] = {}
    for prompt in prompts:
        if len(first) < SHOWN:
            first.setdefault(_text(prompt.prompt), prompt)
    names = list(dict.fromkeys(column for p in prompts for column in p.columns))
    return {
        "name": name,
        "rows": len(prompts),
        "columns": {
            column: sum(p.columns.get(column) is None for p in prompts) / len(prompts)
            for column in names
        },
        "first": [
            {"prompt": text,
             "columns": {k: shortened(str(v), 60) for k, v in p.columns.items()}}
            for text, p in first.items()
        ],
    }  # fmt: skip


def duplicates(prompts: Sequence[Any]) -> Finding:
    """Whether a prompt appears in several rows."""
    counts = Counter(_text(p.prompt) for p in prompts)
    extra = len(prompts) - len(counts)
    numbers = {"rows": len(prompts), "distinct": len(counts)}
    if not extra:
        return Finding("Are prompts repeated?", "ok", "No.", numbers=numbers)
    text, times = counts.most_common(1)[0]
    return Finding(
        "Are prompts repeated?", "note", f"{extra} of {len(prompts)} rows repeat an earlier "
        f"prompt; {shortened(text, 60)!r} comes {times} times.", "remove them unless they are "
        "meant: rows carved off for validation may then also be trained on", numbers,
    )  # fmt: skip


def longest_taken(settings: Any, context: int | None, kept: int) -> int:
    """Tokens of the longest prompt that a run takes. kept: as in `Ingredients`."""
    context = context or 2**20
    return min(context - kept, settings.data.max_prompt_tokens or context)


def fits(settings: Any, found: list[int], context: int, kept: int) -> Finding:
    """Whether the prompts leave room for an answer. kept: as in `Ingredients`."""
    limit = longest_taken(settings, context, kept)
    long = sum(length > limit for length in found)
    numbers = {"min": min(found), "mean": mean(found), "max": max(found), "limit": limit,
               "too_long": long, "measured": len(found)}  # fmt: skip
    answer = f"{len(found)} prompts have {min(found)} to {max(found)} tokens, {mean(found):.1f} on "
    answer += f"average; the limit is {limit} (context {context}, of which {kept} for an answer)."
    if limit < 1:
        return Finding(
            "Do the prompts fit?",
            "problem",
            f"Answers of {kept} tokens leave no room in a context of {context}.",
            "lower rollout.max_tokens",
            numbers,
        )
    if not long:
        return Finding("Do the prompts fit?", "ok", answer, numbers=numbers)
    if settings.data.overlong == "drop" and long < len(found):
        return Finding("Do the prompts fit?", "note", f"{answer} {long} are too long and will be "
                       "left out.", numbers=numbers)  # fmt: skip
    return Finding("Do the prompts fit?", "problem", f"{answer} {long} are too long.", "remove "
                   "these rows, lower rollout.max_tokens, raise data.max_prompt_tokens, or leave "
                   "them out with data.overlong=drop", numbers)  # fmt: skip


def try_rewards(
    prompts: Sequence[Any], specs: Sequence[Any], timeout_seconds: float, tokenizer: Any = None
) -> tuple[list[dict[str, Any]], Finding]:
    """Scores of dummy answers to the first rows, and the finding from them. Raises UserError.

    The dummies: an empty text, the reference where a row has one, and the prompt itself.
    """
    from strop.rewards.grader import Grader

    prompts = prompts[:TRIED]
    columns = {name: [p.columns.get(name) for p in prompts]
               for name in dict.fromkeys(c for p in prompts for c in p.columns)}  # fmt: skip
    table = []
    with Grader(specs, timeout_seconds=timeout_seconds) as grader:
        grader.check(columns)
        for kind, texts in _dummies(prompts).items():
            ids = [tuple(tokenizer(text)["input_ids"]) if tokenizer and text else ()
                   for text in texts]  # fmt: skip
            grades = grader.grade(
                [p.prompt for p in prompts], texts, ids, columns, groups=range(len(texts)),
                prompt_texts=[_text(p.prompt) for p in prompts],
            )  # fmt: skip
            for m, spec in enumerate(grader.specs):
                messages = [f.message for f in grades.failures if f.reward == spec.name]
                scores = [None if v != v else float(v) for v in grades.scores_BM[:, m]]
                table.append(
                    {
                        "reward": spec.name,
                        "answer": kind,
                        "scores": scores,
                        "failures": messages,
                        "ms_per_row": 1e3 * grades.seconds / len(texts),
                    }
                )
    return table, _reward_finding(table, [p.prompt for p in prompts])


def _reward_finding(table: list[dict[str, Any]], prompts: Sequence[Any] = ()) -> Finding:
    from strop.rewards.trial import hint

    question = "Do the reward functions work?"
    failed = [row for row in table if row["failures"]]
    if failed:
        first = failed[0]
        return Finding(
            question, "problem", f"{first['reward']} fails on {len(first['failures'])} rows with "
            f"the answer '{first['answer']}': {shortened(first['failures'][0], 200)}",
            hint(prompts, first["failures"][0]) or "a model writes anything: give an answer that "
            "cannot be parsed the score 0",
            {"trial": table},
        )  # fmt: skip
    rewards: dict[str, dict[str, list[float | None]]] = {}  # scores by reward, by answer
    for row in table:
        rewards.setdefault(row["reward"], {})[row["answer"]] = row["scores"]
    notes: dict[tuple[str, str], list[str]] = {}  # names of the rewards that each is about
    for name, scores in rewards.items():
        if (doubt := _doubt(scores)) is not None:
            notes.setdefault(doubt, []).append(name)
    if not notes:
        return Finding(question, "ok", "They score all dummy answers.", numbers={"trial": table})
    answers = []
    for (what, _), names in notes.items():
        answers.append(what if len(rewards) == 1 else f"{', '.join(names)}: {what}")
    advice = "; ".join(advice for _, advice in notes)
    return Finding(question, "note", " ".join(answers), advice, {"trial": table})


def _doubt(scores: dict[str, list[float | None]]) -> tuple[str, str] | None:
    """What is odd about one reward's scores of the dummy answers, and what to do; None: nothing."""
    if "reference" in scores and not any((score or 0.0) > 0 for score in scores["reference"]):
        return ("No reference answer scores above 0.", "right when the reward wants a form around "
                "it (a tag, a box); else check the comparison")  # fmt: skip
    if len({v for values in scores.values() for v in values}) == 1:
        advice = "check that a right answer gets another score"
        return "Every dummy answer has the same score.", advice
    return None


def _dummies(prompts: Sequence[Any]) -> dict[str, list[str]]:
    kinds = {"empty": ["" for _ in prompts], "prompt": [_text(p.prompt) for p in prompts]}
    values = references(*([p.columns.get(name) for p in prompts] for name in REFERENCES))
    if values is not None and any(value is not None for value in values):
        kinds["reference"] = ["" if v is None else _string(v) for v in values]
    return kinds


def _string(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _text(prompt: Any) -> str:
    """The prompt as text; for messages, their contents."""
    if isinstance(prompt, str):
        return prompt
    return " / ".join(str(message["content"] or "") for message in prompt)


def lines(found: dict[str, Any], table: Sequence[dict[str, Any]]) -> list[str]:
    """Rows and scores as text."""
    columns = ", ".join(name + (f" ({share * found['rows']:.0f} missing)" if share else "")
                        for name, share in found["columns"].items())  # fmt: skip
    lines = [
        f"{found['name']}: {found['rows']} rows; columns beside the prompt: {columns or 'none'}"
    ]
    lines += [f"  {shortened(row['prompt'])}" for row in found["first"]]
    for row in table:
        scores = ", ".join("none" if v is None else f"{v:g}" for v in row["scores"])
        lines.append(
            f"{row['reward']} on {row['answer']}: {scores}  ({row['ms_per_row']:.1f} ms a row)"
        )
    return lines


def check_given(settings: Any) -> None:
    """Raise UserError when data is given twice."""
    if settings.data.files and settings.data.task not in ("", "countdown"):
        raise UserError("give data files or a task, not both")
