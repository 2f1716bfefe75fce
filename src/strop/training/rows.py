"""The rows of a run: the form in which the model reads them, which fit, and notes about them."""

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from strop.data.chat import PLAIN, Chat
from strop.data.given_answers import encode_answer
from strop.data.prompt_rows import each, looked_at, those
from strop.data.prompts import MAX_SPLIT_ROWS, Prompt
from strop.environments.tasks import Task
from strop.support.errors import UserError
from strop.traces.files import Group
from strop.training.services.bounds import Bounds
from strop.training.services.episodes import opening
from strop.training.services.run import RunServices
from strop.training.services.texts import TooLong
from strop.training.settings.config import RunConfig
from strop.training.settings.sections import DataSettings


def chat_of(data: DataSettings, task: Task, tokenizer: Any) -> Chat:
    """How the tokenizer's template is used, with the tools of the task's environment.

    Raises UserError.
    """
    if task.agent and data.renderer == "off":  # its calls of the model bring their tools
        return data.chat()
    tools = () if task.environment is None else task.environment.tools()
    return data.chat().for_tools(tuple(tool.schema for tool in tools), tokenizer)


def put(task: Task, tokenizer: Any, chat: Chat) -> Task:
    """The task with its prompts in the form that the model reads. Raises UserError."""
    chat.check(tokenizer)
    if task.agent:  # an agent makes its own prompts from the rows
        return task

    def as_seen(prompt: Prompt) -> Prompt:
        if prompt.ids:
            return replace(prompt, prompt=tokenizer.decode(prompt.ids))
        if task.environment is None:
            return chat.put(prompt, tokenizer) if chat.speaks(tokenizer) else prompt
        return opening(prompt, tokenizer, chat)

    if task.environment is None and task.traces is None and not chat.speaks(tokenizer):
        return task
    return replace(
        task,
        train=task.train if task.live is not None else each(task.train, as_seen),
        validation=each(task.validation, as_seen),
        heldout=each(task.heldout, as_seen),
        sets={name: each(prompts, as_seen) for name, prompts in task.sets.items()},
    )


def validated(config: RunConfig, task: Task) -> Iterator[Prompt]:
    """The prompts that the run is validated on, set by set."""
    most = config.evaluation.max_prompts if config.evaluation.every else 0
    return itertools.chain.from_iterable(each[:most] for each in task.validations.values())


def longest_given(
    rollout: Any, prompts: Iterable[Prompt], tokenizer: Any, num_ends: int, chat: Chat = PLAIN,
    stops: Sequence[int] = (),
) -> int | None:  # fmt: skip
    """Tokens of the longest answer in the data, with `num_ends` at its end; None where answers are
    sampled. chat: what puts the prompts to the model. stops: tokens that end an answer.
    """
    columns = rollout.given
    if not columns:
        return None
    if rollout.max_tokens or rollout.needs_traces:  # traces: the task gives the length
        return 0
    longest, bounds = 0, Bounds(tokenizer, chat.template)
    for prompt in (chat.put(given, tokenizer) for given in prompts):
        for column in columns:
            most = bounds.answer(prompt, column, longest)
            if most is None or most > longest:
                ids = encode_answer(prompt, column, tokenizer, chat.template, stops)
                longest = max(longest, len(ids) - (bool(ids) and ids[-1] in stops))
    return longest + num_ends


def check_longest(config: RunConfig, services: RunServices) -> None:
    """Raise UserError where a prompt with its answer has no room in the engine.

    An environment's observations and an agent's prompts are not counted, because they are not known
    in advance.
    """
    room, limits, texts = config.engine.most_tokens, services.limits, services.texts
    if not room or services.task.agent:
        return
    longest = 0
    trained = () if services.task.is_recorded else looked_at(services.task.train)
    for prompt in itertools.chain(trained, validated(config, services.task)):
        most = texts.bounds.prompt(prompt)
        if most is None or most > max(longest, room - limits.episode_tokens):
            longest = max(longest, len(texts.first_ids(prompt)))
    if longest:
        total = min(longest + limits.episode_tokens, limits.context_tokens)
        config.engine.check_longest(total)


def settle(config: RunConfig, services: RunServices, rollout: Any) -> None:
    """Refuse rows that the model cannot take before step 1, or drop those that are too long where
    `data.overlong` says so. Raises UserError.
    """
    task = services.task
    if config.data.overlong == "refuse":
        trained = task.train if rollout.given else looked_at(task.train)
        for prompt in itertools.chain(trained, validated(config, task)):
            check_row(services, rollout, prompt)
    else:
        train, left_out = fitting(services, rollout, task.train, "train")
        sets = dict(task.validations)
        for name, prompts in sets.items():  # a resumed run may validate where it did not before
            sets[name], more = fitting(services, rollout, prompts, name)
            left_out += more
        validation = sets.pop("validation", task.validation)
        services.task = replace(task, train=train, validation=validation, sets=sets)
        services.notes += left_out


def fitting(
    services: RunServices, rollout: Any, prompts: Sequence[Prompt], split: str
) -> tuple[Sequence[Prompt], list[str]]:
    """The prompts whose rows are not too long, and a note that counts the others.

    Raises UserError where none is left, and for a row that is wrong otherwise.
    """
    kept = array("q")
    for place, prompt in enumerate(prompts):
        try:
            check_row(services, rollout, prompt)
            kept.append(place)
        except TooLong:
            continue
    left_out = len(prompts) - len(kept)
    if left_out and not kept:
        raise UserError(
            f"data.overlong=drop leaves no row of the split {split}: a prompt may have "
            f"{services.limits.prompt_tokens} tokens, and all {left_out} rows are longer; raise "
            "data.max_prompt_tokens, or lower rollout.max_tokens"
        )
    note = f"{left_out} of {len(prompts)} rows of the split {split} are too long and left out"
    return (those(prompts, kept), [note]) if left_out else (prompts, [])


def check_row(services: RunServices, rollout: Any, prompt: Prompt) -> None:
    """Raise TooLong for a row that does not fit, and UserError for one that cannot be read."""
    if services.task.agent:
        return
    if services.task.is_recorded:
        _check_beside_records(services, prompt)
        return
    if surely_fits(services, rollout, prompt):
        return
    room = services.limits.context_tokens - len(services.texts.first_ids(prompt))
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


def _check_beside_records(services: RunServices, prompt: Prompt) -> None:
    """Like `check_row`, for a group of recorded rollouts or a validation prompt."""
    task, limits = services.task, services.limits
    if prompt.uid < MAX_SPLIT_ROWS:
        if task.traces is not None:  # else the rollouts are posted later
            _check_recorded(services, task.traces.groups[prompt.uid])
        return
    size = len(services.texts.first_ids(prompt))
    if size + limits.answer_tokens > limits.context_tokens:
        raise TooLong(
            f"{prompt.name} is {size} tokens long, and an answer may have {limits.answer_tokens}: "
            f"the model's context has room for {limits.context_tokens}; lower rollout.max_tokens, "
            "shorten or remove it, or leave out all such rows with data.overlong=drop"
        )


def _check_recorded(services: RunServices, group: Group) -> None:
    """Raise TooLong for a group with a call that does not fit, UserError for unknown tokens."""
    most = services.limits.context_tokens
    if group.longest > most:
        raise TooLong(
            f"{group.where} has a call that reads and says {group.longest} tokens, and the model's "
            f"context has room for {most}: remove the rollout, or leave out all such groups with "
            "data.overlong=drop"
        )
    if group.highest_id >= services.texts.num_tokens:
        raise UserError(
            f"group {group.name} has the token {group.highest_id}, and the model knows "
            f"{services.texts.num_tokens}: these rollouts were recorded with another model"
        )


def surely_fits(services: RunServices, rollout: Any, prompt: Prompt) -> bool:
    """Whether a row is known to fit without tokenising it; else its tokens must be checked."""
    limits, bounds = services.limits, services.texts.bounds
    most = bounds.prompt(prompt)
    if most is None or most > limits.prompt_tokens:
        return False
    end = len(services.texts.end_ids)
    for column in rollout.given:
        room = min(limits.answer_tokens, limits.context_tokens - most) - end
        answer = bounds.answer(prompt, column, room)
        if answer is None or answer > room:
            return False
    return True


def add_notes(config: RunConfig, services: RunServices) -> None:
    """Add notes about things that are easily overlooked and spoil a run."""
    if config.data.files and "name" not in config.model.model_fields_set:
        services.notes.append(
            "no --model was given: this trains tiny, the model that ships with strop. It knows "
            "digits and signs, and was made for Countdown puzzles"
        )
    if config.evaluation.every and services.task.validations.keys() - services.judges.keys():
        services.notes += filter(None, [services.grading.sum_note])
    services.notes += services.task.notes
    texts, train = services.texts, services.task.train
    if (seen := len(looked_at(train))) < len(train):
        services.notes.append(
            f"of {len(train)} rows {seen}, evenly spread, were checked; the others are when they "
            "are drawn"
        )
    if (traces := services.task.traces) is not None:
        sizes = sorted(len(traces.groups[prompt.uid].places) for prompt in train)
        services.notes.append(
            f"{len(sizes)} groups of {sizes[0]} to {sizes[-1]} recorded rollouts: a draw takes all "
            "of its group, whatever sampling.num_rollouts says"
        )
        if traces.num_silent:
            services.notes.append(
                f"{traces.num_silent} recorded rollouts are left out: in them nothing was said"
            )
    elif (
        services.task.live is None
        and not services.task.agent
        and (note := plain_text(services.task.train, texts.tokenizer, texts.chat))
    ):
        services.notes.append(note)


def plain_text(prompts: Sequence[Prompt], tokenizer: Any, chat: Chat) -> str:
    """A warning where prompts bypass the chat template and no setting says so; else empty."""
    if not chat.speaks(tokenizer):
        return ""
    seen = looked_at(prompts)
    raw = sum(isinstance(prompt.prompt, str) for prompt in seen)
    if not raw:
        return ""
    return (
        f"{raw} of {len(seen)} prompts are plain text, and go to the model without its chat "
        "template: if it was tuned to chat, give data.prompt_as=messages; if plain text is meant, "
        "data.prompt_as=text"
    )
