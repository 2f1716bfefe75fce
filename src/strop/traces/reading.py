"""Reads recorded rollouts in the formats of several packages; a row's fields tell its format.

Beside the fields of its format a row may have those of `strop.Rollout` that describe its result:
`reward`, `rewards`, `group`, `exit`, `why` and `columns`. They override the format's own.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from strop.support.errors import UserError, did_you_mean
from strop.support.exits import Exit
from strop.traces.records import Rollout, TurnRecord, record_of

Row = Mapping[str, Any]
OWN = ("reward", "rewards", "group", "exit", "why", "columns")
LACKS_IDS = (
    "has no token ids: text alone cannot be trained on, so let the server return them "
    "(return_token_ids)"
)


class NothingSaid(UserError):
    """A rollout that ended before the model was called, so that it has nothing to train on.

    group: the group that it names, if any.
    """

    group = ""


class Format(NamedTuple):
    """A format of rollouts: its name in messages, a test whether a row has it, and its reader.

    read: returns the arguments of a `Rollout`.
    """

    name: str
    is_of: Callable[[Row], bool]
    read: Callable[[Row], dict[str, Any]]


def rollout_of(row: Row, place: str) -> Rollout:
    """The rollout of a row. Raises UserError, or NothingSaid, that begins with `place`."""
    format = next((each for each in FORMATS if each.is_of(row)), None)
    if format is None:
        raise UserError(
            f"{place} is a rollout of no known format: it has {', '.join(map(str, row)) or 'no'} "
            f"fields; there are {', '.join(each.name for each in FORMATS)}"
        )
    try:
        fields = format.read(row) | _own(row)
        if fields["turns"]:
            return Rollout(**fields, place=place)
    except UserError as error:
        why = str(error).removeprefix(f"{place} ")
        raise type(error)(f"{place}: {why}") from error
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        why = f"{type(error).__name__} {error}".strip()
        raise UserError(
            f"{place} has the fields of {format.name} and cannot be read as that: {why}"
        ) from error
    silent = NothingSaid(f"{place}: has no turns: the model was not called")
    silent.group = fields.get("group", "")
    raise silent


def row_of(rollout: Rollout) -> dict[str, Any]:
    """The row from which this rollout can be read back, without fields that have defaults."""
    usual = Rollout(rollout.turns)
    fields = {name: getattr(rollout, name) for name in OWN}
    fields["exit"] = rollout.exit.label
    kept = {
        name: value for name, value in fields.items()
        if name == "reward" or getattr(rollout, name) != getattr(usual, name)
    }  # fmt: skip
    return {**kept, "turns": [_turn_row(turn) for turn in rollout.turns]}


def _turn_row(turn: TurnRecord) -> dict[str, Any]:
    return {
        each.name: value
        for each in fields(turn)
        if (value := getattr(turn, each.name)) != each.default
    }


def _own(row: Row) -> dict[str, Any]:
    """The row's own fields about the rollout's end. Raises UserError for an unknown exit."""
    fields = {name: row[name] for name in OWN if row.get(name) is not None}
    if isinstance(exit := fields.get("exit"), str):
        causes = {cause.label: cause for cause in Exit}
        if exit not in causes:
            hint = did_you_mean(exit, causes)
            raise UserError(f"no exit {exit!r}{hint}: there are {', '.join(causes)}")
        fields["exit"] = causes[exit]
    if "exit" in fields and not isinstance(fields["exit"], Exit):
        raise UserError(f"exit is {fields['exit']!r}: give a name, such as done")
    if isinstance(reward := fields.get("reward"), bool) or not isinstance(
        reward, int | float | None
    ):
        raise UserError(f"reward is {reward!r}: give a number, or null for none")
    if isinstance(fields.get("rewards"), Mapping):
        fields["rewards"] = _numbers(fields["rewards"])
    if "group" in fields:
        fields["group"] = str(fields["group"])
    return fields


def _numbers(rewards: Mapping[str, Any]) -> dict[str, float]:
    """Rewards by name; those of verifiers, with score and weight, as their product."""
    found = {}
    for name, value in rewards.items():
        if isinstance(value, Mapping):
            value = float(value["score"]) * float(value.get("weight", 1.0))
        if value is not None:
            found[str(name)] = float(value)
    return found


def _turns(made: Iterable[TurnRecord]) -> tuple[TurnRecord, ...]:
    """The records that a generator makes one by one, so that an error names the turn."""
    turns: list[TurnRecord] = []
    try:
        turns.extend(made)  # after an error it has those before
    except UserError as error:
        raise UserError(f"turn {len(turns) + 1}: {error}") from error
    return tuple(turns)


def _call(
    prompt: Any, output: Any, logps: Any = None, mask: Any = None, **others: Any
) -> TurnRecord:
    """Make a record. Raises UserError where ids are missing."""
    if not prompt or not output:
        raise UserError(f"it {LACKS_IDS}")
    return TurnRecord(
        tuple(prompt), tuple(output), tuple(logps or ()),
        tuple(bool(each) for each in mask or ()), **others,
    )  # fmt: skip


# strop's own, and TRL's, whose records have the same fields


def _is_ours(row: Row) -> bool:
    return isinstance(row.get("turns"), list) and not _is_openenv(row)


def _ours(row: Row) -> dict[str, Any]:
    if row.get("rewards") and "reward" not in row:
        raise UserError("it has rewards and no reward: add their total as reward")
    for name in row:  # other fields are the user's own, but a misspelt reward would not count
        near = difflib.get_close_matches(str(name).lower(), OWN, n=1, cutoff=0.8)
        if near and near[0] not in row:
            raise UserError(f"it has the field {name!r} and no {near[0]}: rename the field")
    return {"turns": _turns(map(record_of, row["turns"]))}


# OpenEnv 0.10: `TrainingTrace`


def _is_openenv(row: Row) -> bool:
    turns = row.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    return isinstance(first, Mapping) and "prompt_token_ids" in first


def _openenv(row: Row) -> dict[str, Any]:
    """Read a row whose mask covers prompt and completion."""

    def make(turn: Row) -> TurnRecord:
        prompt, output = turn["prompt_token_ids"], turn["completion_token_ids"]
        mask = turn.get("loss_mask") or ()
        if any(mask[: len(prompt)]):
            raise UserError(f"the loss_mask of {turn.get('node_id')} has tokens of the prompt")
        if mask and len(mask) != len(prompt) + len(output):
            raise UserError(
                f"the loss_mask of {turn.get('node_id')} is of {len(mask)} tokens, prompt and "
                f"completion have {len(prompt) + len(output)}"
            )
        return _call(
            prompt, output, turn.get("per_token_logps"), mask[len(prompt) :],
            ended=_ended(_first_choice(turn.get("response") or {})),
        )  # fmt: skip

    version = row.get("schema_version", 1)
    if version != 1:
        raise UserError(f"schema_version of the trace is {version!r}: 1 can be read")
    return {"turns": _turns(map(make, row["turns"]))}


# verifiers 0.4: `Trace` of v1, a graph of messages


def _is_verifiers(row: Row) -> bool:
    return isinstance(row.get("nodes"), list) and isinstance(row.get("task"), Mapping)


def _verifiers(row: Row) -> dict[str, Any]:
    """Read one call per sampled message; its prompt is the path from the root up to it."""
    nodes: Sequence[Row] = row["nodes"]
    ended = {
        call.get("node"): _ended(call)
        for call in row.get("calls") or ()
        if call.get("node") is not None
    }
    rejected = _rejected(nodes)
    turns = _turns(
        _sampled(nodes, number, ended.get(number, "stop"))
        for number, node in enumerate(nodes)
        if node.get("sampled") and number not in rejected
    )
    return {"turns": turns, **end_of_trace(row)}


def end_of_trace(row: Row) -> dict[str, Any]:
    """The result of a trace of verifiers: all fields of a `Rollout` but its turns."""
    rewards, task = row.get("rewards") or {}, row["task"]
    judged = bool(rewards) and all(each is not None for each in rewards.values())
    kept = row.get("dropped") is None  # else it says why nothing is to be learned from it (0.4.1)
    learns = (row.get("agent") or {}).get("trainable", True)  # else the agent is not the policy
    data = task.get("data") or {}
    names = (task.get("key"), task.get("hash"), data.get("id"), data.get("idx"))
    errors = row.get("errors") or ()
    return {
        "reward": sum(_numbers(rewards).values()) if judged and kept and learns else None,
        "rewards": _numbers(rewards),
        "group": next((str(name) for name in names if name is not None), ""),
        "exit": Exit.TIMEOUT if row.get("is_timeout") else Exit.DONE,
        "why": str(errors[-1].get("message") or errors[-1].get("type") or "") if errors else "",
    }


def _rejected(nodes: Sequence[Row]) -> set[int]:
    """Messages of compactions that the agent abandoned; verifiers trains none of them."""
    links = [(number, link) for number, node in enumerate(nodes)
             for link in node.get("semantic_parents") or ()]  # fmt: skip
    accepted = {link["node"] for _, link in links if link["type"] == "compaction"}
    tried = {number for number, link in links if link["type"] == "compaction_attempt"}
    return tried - accepted - {node.get("parent") for node in nodes}


def _sampled(nodes: Sequence[Row], number: int, ended: str) -> TurnRecord:
    """The call of a sampled message: its output begins with the first sampled token."""
    node = nodes[number]
    before, at = list[Sequence[int]](), node.get("parent")
    while at is not None:
        if len(before) == len(nodes):
            raise UserError(f"message {number} is below itself: its parents must lead to a root")
        if at < 0:
            raise UserError(f"message {number} is below message {at}: messages count from 0")
        # An empty list is none: without spans of messages the next reply has their tokens.
        if (ids_at := nodes[at].get("token_ids")) is None:
            raise UserError(f"message {at} {LACKS_IDS}")
        before.append(ids_at)
        at = nodes[at].get("parent")
    ids, mask = node.get("token_ids") or [], node.get("mask") or []
    places = [place for place, sampled in enumerate(mask) if sampled]
    if not places:
        return _call((), ())
    first, last = places[0], places[-1] + 1
    logps = iter(node.get("logprobs") or ())
    if node.get("logprobs") and len(node["logprobs"]) != len(places):
        raise UserError(
            f"message {number} has {len(node['logprobs'])} logprobs and {len(places)} sampled "
            "tokens: keep one for each"
        )
    own = mask[first:last] if node.get("logprobs") else ()
    logp = [next(logps) if sampled else 0.0 for sampled in own]
    prompt = [*itertools.chain.from_iterable(reversed(before)), *ids[:first]]
    return _call(prompt, ids[first:last], logp, mask[first:last], ended=ended)


# Harbor 0.25: `RolloutDetail`, records that contain some, and trajectories (ATIF)


def _is_detail(row: Row) -> bool:
    ids = row.get("completion_token_ids")
    return isinstance(ids, list) and all(isinstance(each, list) for each in ids)


def _detail(row: Row) -> dict[str, Any]:
    """Read a row with one list per turn for each of prompts, completions and logprobs."""
    return {"turns": _turns(_of_detail(row))}


def _of_detail(row: Row) -> Iterator[TurnRecord]:
    prompts, outputs = row.get("prompt_token_ids") or [], row["completion_token_ids"]
    logps = row.get("logprobs") or [()] * len(outputs)
    if not len(prompts) == len(outputs) == len(logps):
        raise UserError(
            f"it has prompts of {len(prompts)}, completions of {len(outputs)} and logprobs of "
            f"{len(logps)} turns: give each for all"
        )
    return itertools.starmap(_call, zip(prompts, outputs, logps, strict=True))


def _is_context(row: Row) -> bool:
    return isinstance(row.get("rollout_details"), list)


def _context(row: Row) -> dict[str, Any]:
    """Read the main agent's turns, then those of each of its helpers."""
    return {"turns": _turns(call for each in row["rollout_details"] for call in _of_detail(each))}


def _is_trial(row: Row) -> bool:
    return "agent_result" in row and "task_name" in row


def _trial(row: Row) -> dict[str, Any]:
    """Read the result of a trial, result.json. Without a verdict it has no score."""
    agent, failed = row["agent_result"] or {}, row.get("exception_info") or {}
    details = agent.get("rollout_details") or []
    if not details and not failed:
        raise UserError(
            f"trial {row.get('trial_name')} has no rollout_details: let the agent keep them "
            "(collect_rollout_details)"
        )
    rewards = _numbers((row.get("verifier_result") or {}).get("rewards") or {})
    late = failed.get("exception_type") == "AgentTimeoutError"
    return _context({"rollout_details": details}) | {
        "reward": _of_trial(rewards),
        "rewards": rewards,
        "group": row["task_name"],
        "exit": Exit.TIMEOUT if late else Exit.DONE,
        "why": ": ".join(filter(None, map(failed.get, ("exception_type", "exception_message")))),
    }


def _of_trial(rewards: Mapping[str, float]) -> float | None:
    """The reward among a verifier's numbers. Raises UserError where that is ambiguous."""
    if not rewards:
        return None
    if len(rewards) > 1 and "reward" not in rewards:
        raise UserError(f"the verifier gave {', '.join(rewards)} and no `reward`: add a reward")
    return rewards["reward"] if "reward" in rewards else next(iter(rewards.values()))


def _is_atif(row: Row) -> bool:
    return str(row.get("schema_version")).startswith("ATIF") and isinstance(row.get("steps"), list)


def _atif(row: Row) -> dict[str, Any]:
    """Read the steps of the agent, then of its helpers, without copies of an earlier trajectory."""
    return {"turns": _turns(_of_trajectory(row))}


def _of_trajectory(row: Row) -> Iterator[TurnRecord]:
    for step in row["steps"]:
        asked = step.get("llm_call_count") != 0 and not step.get("is_copied_context")
        if step.get("source") == "agent" and asked:
            metrics = step.get("metrics") or {}
            ids = (metrics.get("prompt_token_ids"), metrics.get("completion_token_ids"))
            yield _call(*ids, metrics.get("logprobs"))
    for helper in row.get("subagent_trajectories") or ():
        yield from _of_trajectory(helper)


# agent-lightning 1.0: `ModelRequestData`, alone or as the data of events


def _is_request(row: Row) -> bool:
    return isinstance(row.get("request"), Mapping) and "response" in row


def _request(row: Row) -> dict[str, Any]:
    return {"turns": _turns(map(_of_request, [row]))}


def _of_request(data: Row) -> TurnRecord:
    """A call of /v1/chat/completions or /v1/completions whose response has token ids."""
    response = data["response"]
    if isinstance(response, list):
        raise UserError("the response is kept in the pieces of a stream: keep it whole")
    choice = _first_choice(response)
    prompt = response.get("prompt_token_ids") or choice.get("prompt_token_ids")
    output, version = choice.get("token_ids") or (), data.get("model_version")
    versions = () if version is None else (version,) * len(output)
    return _call(prompt, output, _logps(choice), versions=versions, ended=_ended(choice))


def _logps(choice: Row) -> list[float]:
    logprobs = choice.get("logprobs") or {}
    if logprobs.get("content") is not None:
        return [each["logprob"] for each in logprobs["content"]]
    return list(logprobs.get("token_logprobs") or ())


def is_event(row: Row) -> bool:
    """Whether the row is one event of a rollout, whose other events have rows of their own."""
    return "event_type" in row and "rollout_id" in row


def _is_events(row: Row) -> bool:
    return isinstance(row.get("events"), list)


def _events(row: Row) -> dict[str, Any]:
    """Read the successful calls of a rollout's events, and its last reward. Of fields of our own
    the last event that has one counts.
    """
    calls = [
        event["data"] for event in row["events"]
        if event["event_type"] == "model_request" and event["data"].get("status", "ok") == "ok"
    ]  # fmt: skip
    rewards = [e["data"]["value"] for e in row["events"] if e["event_type"] == "reward"]
    outcome = {"reward": rewards[-1]} if rewards else {}
    own = {name: event[name] for event in row["events"] for name in OWN if name in event}
    return {"turns": _turns(map(_of_request, calls)), **outcome, **_own(own)}


def _first_choice(response: Row) -> Row:
    """The only choice of a response; an empty one where it has none."""
    choices = response.get("choices") or [{}]
    if len(choices) > 1:
        raise UserError(f"the response has {len(choices)} choices: keep each as a rollout")
    return choices[0]


def _ended(choice: Row) -> str:
    return "length" if choice.get("finish_reason") == "length" else "stop"


FORMATS = (
    Format("turns (strop, TRL)", _is_ours, _ours),
    Format("OpenEnv's TrainingTrace", _is_openenv, _openenv),
    Format("verifiers' Trace", _is_verifiers, _verifiers),
    Format("Harbor's TrialResult", _is_trial, _trial),
    Format("Harbor's AgentContext", _is_context, _context),
    Format("Harbor's RolloutDetail", _is_detail, _detail),
    Format("ATIF", _is_atif, _atif),
    Format("agent-lightning's ModelRequestData", _is_request, _request),
    Format("agent-lightning's events", _is_events, _events),
)
