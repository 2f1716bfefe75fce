"""The rows of a run as its model takes them: in which form, which fit, and what to say of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strop.errors import UserError
from strop.rollout._observation_tokens import known_ids
from strop.tasks.chat import Chat
from strop.tasks.encode import encode_answer
from strop.tasks.task import Prompt, Task
from strop.training.config import RunConfig
from strop.training.limits import TooLong
from strop.training.models import Loaded

if TYPE_CHECKING:
    from strop.training.services.run import RunServices


def put(task: Task, tokenizer: Any, chat: Chat) -> Task:
    """The task with its prompts as the model is to see them. Raises UserError."""
    chat.check(tokenizer)

    def each(prompts: Sequence[Prompt]) -> list[Prompt]:
        if task.environment is None:
            return [chat.put(prompt, tokenizer) for prompt in prompts]
        return [opening(prompt, tokenizer, chat) for prompt in prompts]

    return replace(
        task,
        train=each(task.train),
        validation=each(task.validation),
        heldout=each(task.heldout),
    )


def opening(prompt: Prompt, tokenizer: Any, chat: Chat) -> Prompt:
    """What an environment shows first, as the model is addressed.

    Raises UserError for text with characters that the tokenizer does not know.
    """
    text = str(prompt.prompt)
    if not chat.speaks(tokenizer):
        known_ids(tokenizer, text)
        return prompt
    said = [{"role": "user", "content": text.strip()}]
    return chat.put(replace(prompt, prompt=said), tokenizer)


def longest_given(rollout: Any, prompts: Sequence[Prompt], loaded: Loaded) -> int | None:
    """Tokens of the longest answer that the data give; None where answers are sampled."""
    columns = rollout.given
    if not columns:
        return None
    if rollout.max_tokens:
        return 0
    return max(
        (len(encode_answer(prompt, column, loaded.tokenizer)) + len(loaded.end_ids)
         for prompt in prompts for column in columns), default=1,
    )  # fmt: skip


def longest_sampled(config: RunConfig, services: "RunServices", rollout: Any) -> int:
    """Tokens of the longest prompt with its answer that the engine is asked for; 0 where none is.

    What an environment says between actions is not counted: it is not known before.
    """
    task, evaluation, limits = services.task, config.evaluation, services.limits
    validated = task.validation[: evaluation.max_prompts if evaluation.every else 0]
    asked = (*(() if rollout.given else task.train), *validated)
    prompts = (len(services.texts.prompt_ids(prompt.uid)) for prompt in asked)
    longest = max(prompts, default=-limits.episode_tokens)
    return min(longest + limits.episode_tokens, limits.context_tokens)


def settle(config: RunConfig, services: "RunServices", rollout: Any) -> None:
    """Find a row that the run cannot take before step 1, or leave it out where that is asked for.

    Raises UserError.
    """
    task, evaluation = services.task, config.evaluation
    if config.data.overlong == "refuse":
        checked = task.validation[: evaluation.max_prompts if evaluation.every else 0]
        for prompt in (*task.train, *checked):
            check_row(services, rollout, prompt)
    else:
        train, left_out = fitting(services, rollout, task.train, "train")
        validation: Sequence[Prompt] = task.validation
        if evaluation.every:
            validation, more = fitting(services, rollout, validation, "validation")
            left_out += more
        services.task = replace(task, train=train, validation=validation)
        services.notes += left_out


def fitting(
    services: "RunServices", rollout: Any, prompts: Sequence[Prompt], split: str
) -> tuple[list[Prompt], list[str]]:
    """The prompts whose rows are not too long, and how many others there were, in words.

    Raises UserError where none is left, and for a row that is wrong otherwise.
    """
    kept = []
    for prompt in prompts:
        try:
            check_row(services, rollout, prompt)
            kept.append(prompt)
        except TooLong:
            continue
    left_out = len(prompts) - len(kept)
    if left_out and not kept:
        raise UserError(
            f"data.overlong=drop leaves no row of the split {split}: a prompt may have "
            f"{services.limits.prompt_tokens} tokens, and all {left_out} rows are longer; raise "
            "data.max_prompt_tokens, or lower rollout.max_tokens"
        )
    told = f"{left_out} of {len(prompts)} rows of the split {split} are too long and left out"
    return kept, [told] if left_out else []


def check_row(services: "RunServices", rollout: Any, prompt: Prompt) -> None:
    """Raise TooLong for a row that does not fit, and UserError for one that cannot be read."""
    room = services.limits.context_tokens - len(services.texts.prompt_ids(prompt.uid))
    for column in rollout.given:
        size = len(services.texts.answer_ids(prompt.uid, column))
        if size == 0:
            raise UserError(
                f"the row of {prompt.name} has no {column}: fill it in or remove the row"
            )
        if size > room:
            raise TooLong(
                f"the {column} of {prompt.name} is {size} tokens long, and behind the "
                f"prompt the model's context has room for {room}: shorten or remove the row, or "
                "leave out all such rows with data.overlong=drop"
            )


def tell(config: RunConfig, services: "RunServices") -> None:
    """Note what is easily overlooked, and spoils a run."""
    if config.data.files and "name" not in config.model.model_fields_set:
        services.notes.append(
            "no --model was given: this trains tiny, the model that ships with strop. It knows "
            "digits and signs, and was made for Countdown puzzles"
        )
    texts = services.texts
    if told := plain_text(services.task.train, texts.tokenizer, texts.chat):
        services.notes.append(told)


def plain_text(prompts: Sequence[Prompt], tokenizer: Any, chat: Chat) -> str:
    """A warning where prompts pass a chat template by and nobody has said so; else empty."""
    raw = sum(isinstance(prompt.prompt, str) for prompt in prompts)
    if not raw or not chat.speaks(tokenizer):
        return ""
    return (
        f"{raw} of {len(prompts)} prompts are plain text, and go to the model without its chat "
        "template: if it was tuned to chat, give data.prompt_as=messages; if plain text is meant, "
        "data.prompt_as=text"
    )
