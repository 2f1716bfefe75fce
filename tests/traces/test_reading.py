"""Rollouts are read in the formats of their makers; errors name file and line."""

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from strop.data.read import open_source
from strop.environments.tasks import load_task
from strop.support.errors import UserError
from strop.support.exits import Exit
from strop.traces.files import Traces, open_traces
from strop.traces.reading import FORMATS, rollout_of, row_of
from strop.traces.records import Rollout, TurnRecord

RECORDED = Path(__file__).with_name("recorded")
FIRST = TurnRecord((5, 6), (7, 8), (-0.5, -0.25))
SECOND = TurnRecord((5, 6, 7, 8, 9), (10, 11), (-1.0, -0.125))
HELPER = TurnRecord((12, 13), (14,), (-0.75,))


def read(name: str) -> list[Rollout]:
    traces = open_traces(str(RECORDED / name))
    return [each for uid in range(len(traces.groups)) for each in traces.rollouts(uid)]


def told(record: TurnRecord) -> tuple[Any, ...]:
    """What is compared of a call."""
    return (record.prompt_ids, record.output_ids, record.output_log_probs, record.ended)


def test_openenv() -> None:
    one, other = read("openenv.jsonl")
    assert told(one.turns[0]) == told(FIRST)
    assert one.turns[1].output_mask == (True, True, False)
    assert one.turns[1].ended == "length"
    assert (one.reward, one.group) == (0.5, "sum")
    assert other.reward is None
    assert other.place.endswith("openenv.jsonl line 2")


def test_verifiers() -> None:
    """A graph: a conversation, one whose history was edited, and an attempt that was given up."""
    one, unjudged, late, others = read("verifiers.jsonl")
    prompt = (5, 6, 20)
    assert [told(each) for each in one.turns] == [
        (prompt, (7, 8), (-0.5, -0.25), "stop"),
        ((*prompt, 7, 8, 21, 9, 20), (10, 11), (-1.0, -0.125), "stop"),
        ((5, 12, 20), (13,), (-2.0,), "length"),
    ]
    assert one.reward == 1.25
    assert one.rewards == {"right": 1.0, "short": 0.25}
    assert {each.group for each in (one, unjudged, late, others)} == {"sum"}
    assert unjudged.reward is None
    assert (late.reward, late.exit) == (0.0, Exit.TIMEOUT)
    assert others.reward is None  # an agent that is not trained


def test_verifiers_tells_why_and_keeps_a_compaction_that_was_gone_on_from() -> None:
    def said(token: int, parent: int | None, *links: dict[str, Any]) -> dict[str, Any]:
        return {"sampled": True, "parent": parent, "token_ids": [1, token], "mask": [0, 1],
                "logprobs": [-1.0], "semantic_parents": [*links]}  # fmt: skip

    tried = said(3, 0, {"node": 0, "type": "compaction_attempt"})
    resumed = said(4, None, {"node": 1, "type": "compaction"})
    errors = [{"message": "first"}, {"message": "second"}, {"type": "B", "message": None}]
    row = {"task": {}, "nodes": [said(2, None), tried, resumed], "errors": errors}
    found = rollout_of(row, "here")
    assert [each.output_ids for each in found.turns] == [(2,), (3,), (4,)]
    assert found.why == "B"
    assert rollout_of({**row, "errors": errors[:2]}, "here").why == "second"
    other = said(4, None, {"node": 1, "type": "subagent_return"})
    alone = rollout_of({**row, "nodes": [said(2, None), tried, other]}, "here")
    assert [each.output_ids for each in alone.turns] == [(2,), (4,)]


def test_harbor() -> None:
    detail, context, trajectory = read("harbor.jsonl")
    assert detail.turns == (FIRST, SECOND)
    assert context.turns == (FIRST, SECOND, HELPER)
    # neither the step that was copied nor the one without a call
    assert trajectory.turns == (FIRST, SECOND, HELPER)
    assert [each.reward for each in (detail, context, trajectory)] == [1, 0, 1]


def test_harbor_trials() -> None:
    well, late, gone = read("harbor_trials.jsonl")
    assert well.turns == late.turns == gone.turns == (FIRST, SECOND)
    assert (well.reward, well.rewards) == (1.0, {"reward": 1.0, "speed": 0.5})
    assert (late.reward, late.exit) == (0.0, Exit.TIMEOUT)
    assert late.why == "AgentTimeoutError: late"
    assert (gone.reward, gone.why) == (None, "RuntimeError: gone")
    assert well.group == "sum"


def test_agentlightning() -> None:
    """Events of two rollouts, mixed; those without a group are of one task by their prompt."""
    one, other = read("agentlightning.jsonl")
    assert told(one.turns[0]) == told(FIRST)
    assert one.turns[0].versions == (3, 3)
    assert told(one.turns[1])[:3] == told(SECOND)[:3]
    assert one.turns[1].ended == "length"
    assert len(one.turns) == 2  # not the call that failed
    assert (one.reward, other.reward) == (1.0, 0.0)
    assert other.turns[0].output_ids == (7, 3)
    assert len(open_traces(str(RECORDED / "agentlightning.jsonl")).groups) == 1


def test_events_keep_fields_of_our_own() -> None:
    text = (RECORDED / "agentlightning.jsonl").read_text()
    events = [*map(json.loads, text.splitlines())]
    mine = [{**each, "group": "a", "reward": 0.25} for each in events[:1]]
    found = rollout_of({"events": [*mine, {**events[0], "columns": {"n": 1}}]}, "here")
    assert (found.group, found.reward, found.columns) == ("a", 0.25, {"n": 1})
    with pytest.raises(UserError, match="here: no exit 'lost'"):
        rollout_of({"events": [{**events[0], "exit": "lost"}]}, "here")


def test_events_of_one_rollout_are_found_by_any_name(tmp_path: Path) -> None:
    text = (RECORDED / "agentlightning.jsonl").read_text().splitlines()
    events = [{**json.loads(line), "rollout_id": ["a"]} for line in text]
    (one,) = open_traces(str(lines(tmp_path / "t.jsonl", *events))).rollouts(0)
    assert len(one.turns) == 3


def test_a_rollout_of_a_script_ends_by_an_exit() -> None:
    with pytest.raises(UserError, match=r"has the rewards \{\} and the exit 'done': give"):
        Rollout.from_turns([FIRST], reward=1.0, exit="done")


def test_a_single_request_is_a_rollout_of_one_call() -> None:
    event = json.loads((RECORDED / "agentlightning.jsonl").read_text().splitlines()[0])
    alone = rollout_of({**event["data"], "reward": 1}, "here")
    assert told(alone.turns[0]) == told(FIRST)
    response = {
        "choices": [{"prompt_token_ids": [5, 6], "token_ids": [7, 8],
                     "logprobs": {"token_logprobs": [-0.5, -0.25]}}]
    }  # fmt: skip
    completion = rollout_of({"request": {}, "response": response}, "here")
    assert completion.turns == (FIRST,)
    assert completion.reward is None


def test_our_own_form_is_read_as_it_was_written() -> None:
    turn = TurnRecord((5,), (7, 8), (-0.5, -0.25), (True, False), (3, 4), ended="length",
                      reward=0.5, valid=False, entropies=(0.1, 0.2))  # fmt: skip
    whole = Rollout(
        (turn,), 1.5, "g", Exit.TURN_LIMIT, "slow", {"right": 1.0}, {"answer": "8"}, "x"
    )
    row = json.loads(json.dumps(row_of(whole)))
    assert rollout_of(row, "x") == whole
    assert row_of(Rollout((FIRST,))) == {
        "reward": None,
        "turns": [{"prompt_ids": (5, 6), "output_ids": (7, 8), "output_log_probs": (-0.5, -0.25)}],
    }


OURS = {"turns": [{"prompt_ids": [1], "output_ids": [2]}]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": 1}, "f line 1 is a rollout of no known format: it has a"),
        ({"turns": []}, "f line 1: has no turns"),
        ({"turns": [{"prompt_ids": [1]}]}, "f line 1: turn 1: a turn record lacks output_ids"),
        ({"turns": [{"text": "hi"}]}, "turn 1: a turn record has the field 'text'"),
        ({**OURS, "exit": "don"}, "no exit 'don' (did you mean 'done'?)"),
        ({**OURS, "exit": 3}, "exit is 3: give a name"),
        ({**OURS, "reward": "1"}, "reward is '1': give a number"),
        ({**OURS, "rewrad": 1.0}, "it has the field 'rewrad' and no reward: rename the field"),
        (
            {"turns": [{"prompt_ids": [1], "output_ids": [2, 3], "output_mask": ["0", True]}]},
            "turn 1: a turn record has '0' in output_mask: give true and false",
        ),
        ({**OURS, "reward": True}, "reward is True: give a number"),
        ({**OURS, "reward": 10**400}, "has the reward 1000"),
        ({**OURS, "reward": 1, "rewards": [1]}, "has the rewards [1] and the exit"),
        (
            {"turns": [{"prompt_ids": [1], "output_ids": [2], "versions": [2**63]}]},
            "turn 1: a turn record has 9223372036854775808 in versions",
        ),
        (
            {"turns": [{"prompt_ids": [1], "output_ids": [2], "entropies": [10**400]}]},
            "in entropies: leave out what is not known",
        ),
        (
            {"turns": [{"prompt_token_ids": [1], "completion_token_ids": []}]},
            "turn 1: it has no token ids: text alone cannot be trained on",
        ),
        (
            {"turns": [{"node_id": "a", "prompt_token_ids": [1], "completion_token_ids": [2],
                        "per_token_logps": [-1.0], "loss_mask": [1, 1]}]},
            "the loss_mask of a has tokens of the prompt",
        ),
        (
            {"turns": [{"node_id": "a", "prompt_token_ids": [1, 2], "completion_token_ids": [3],
                        "loss_mask": [0]}]},
            "the loss_mask of a is of 1 tokens, prompt and completion have 3",
        ),
        ({"turns": [{"prompt_token_ids": [1]}]}, "OpenEnv's TrainingTrace and cannot be read as"),
        (
            {"schema_version": 2, "turns": [{"prompt_token_ids": [1]}]},
            "schema_version of the trace is 2",
        ),
        (
            {"task": {}, "nodes": [{"sampled": True, "token_ids": [1, 2], "mask": []}]},
            "turn 1: it has no token ids",
        ),
        (
            {"task": {}, "nodes": [{"sampled": True, "token_ids": [1, 2], "mask": [0, 1],
                                    "logprobs": [-1, -2]}]},
            "message 0 has 2 logprobs and 1 sampled",
        ),
        (
            {"task": {}, "nodes": [{"sampled": True, "token_ids": [1], "mask": [1], "parent": 1},
                                   {"token_ids": [2], "parent": 0}]},
            "message 0 is below itself",
        ),
        (
            {"task": {}, "nodes": [{"sampled": True, "token_ids": [1], "mask": [1], "parent": -1}]},
            "message 0 is below message -1",
        ),
        (
            {"task": {}, "nodes": [{"message": {}}, {"sampled": True, "token_ids": [1, 2],
                                                     "mask": [0, 1], "parent": 0}]},
            "message 0 has no token ids",
        ),
        (
            {"prompt_token_ids": [[1]], "completion_token_ids": [[2], [3]]},
            "prompts of 1, completions of 2 and logprobs of 2 turns",
        ),
        (
            {"agent_result": None, "task_name": "t", "trial_name": "t__1"},
            "trial t__1 has no rollout_details",
        ),
        (
            {"agent_result": {"rollout_details": [
                {"prompt_token_ids": [[1]], "completion_token_ids": [[2]]}]},
             "task_name": "t", "verifier_result": {"rewards": {"a": 1, "b": 0}}},
            "the verifier gave a, b and no `reward`",
        ),
        (
            {"schema_version": "ATIF-v1.8", "steps": [{"source": "agent", "message": "x"}]},
            "turn 1: it has no token ids",
        ),
        ({"request": {}, "response": []}, "in the pieces of a stream"),
        ({"request": {}, "response": {"choices": [{}, {}]}}, "the response has 2 choices"),
        ({"request": {}, "response": {"choices": []}}, "turn 1: it has no token ids"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_with_its_place(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        rollout_of(row, "f line 1")
    assert str(error.value).startswith("f line 1")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "row",
    [
        {"task": {}, "nodes": [{"message": {}, "token_ids": [1]}], "errors": [{"message": "x"}]},
        {"agent_result": None, "task_name": "t", "exception_info": {"exception_type": "E"}},
        {"events": [{"event_type": "model_request", "data": {"status": "error"}}]},
        {"turns": []},
    ],
)
def test_rollouts_in_which_nothing_was_said_are_left_out(
    row: dict[str, Any], tmp_path: Path
) -> None:
    traces = open_traces(str(lines(tmp_path / "t.jsonl", numbered(2), row, numbered(3))))
    assert traces.num_silent == 1
    assert len(traces.rollouts(0)) == 2


def test_rollouts_without_any_reward_are_refused(tmp_path: Path) -> None:
    unscored = {"turns": numbered(2)["turns"]}
    with pytest.raises(UserError, match=r"no rollout of .*t\.jsonl has a reward"):
        open_traces(str(lines(tmp_path / "t.jsonl", unscored, unscored))).check_rewards()
    open_traces(str(lines(tmp_path / "t.jsonl", unscored, numbered(2)))).check_rewards()
    with pytest.raises(UserError, match="line 1: it has rewards and no reward"):
        open_traces(str(lines(tmp_path / "t.jsonl", {**unscored, "rewards": {"right": 1}})))


def test_a_row_is_of_one_format_alone() -> None:
    for path in sorted(RECORDED.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found = [each.name for each in FORMATS if each.is_of(row)]
            assert len(found) == (0 if "event_type" in row else 1), (path.name, found)


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def numbered(output: int, group: str = "", prompt: int = 1) -> dict[str, Any]:
    row = {"turns": [{"prompt_ids": [prompt], "output_ids": [output]}], "reward": 1}
    return {**row, "group": group} if group else row


def test_groups_are_named_or_begin_alike(tmp_path: Path) -> None:
    rows = numbered(2, "b"), numbered(3), numbered(4, "a"), numbered(5, "b", 9), numbered(6)
    traces = open_traces(str(lines(tmp_path / "t.jsonl", *rows)))
    outputs = [[each.turns[0].output_ids[0] for each in traces.rollouts(n)] for n in range(3)]
    assert outputs == [[2, 5], [3, 6], [4]]
    assert [group.prompt for group in traces.groups] == [(1,), (1,), (1,)]
    assert [group.highest_id for group in traces.groups] == [9, 6, 4]
    assert len(open_traces(str(tmp_path / "t.jsonl"), most=2).groups) == 2


def test_columns_belong_to_the_group(tmp_path: Path) -> None:
    rows = [{**numbered(2, "g"), "columns": {"outcome": each}} for each in ("won", "lost")]
    with pytest.raises(UserError, match=r"t\.jsonl line 2 has other columns than .* group 'g'"):
        open_traces(str(lines(tmp_path / "t.jsonl", *rows)))


def test_a_group_knows_its_longest_call(tmp_path: Path) -> None:
    def row(*calls: tuple[int, int]) -> dict[str, Any]:
        turns = [{"prompt_ids": [1] * read, "output_ids": [2] * said} for read, said in calls]
        return {"turns": turns, "reward": 1, "group": "g"}

    rows = row((2, 1)), row((9, 2), (1, 2)), row((2, 3), (2, 3)), row((10, 1))
    (group,) = open_traces(str(lines(tmp_path / "t.jsonl", *rows))).groups
    assert (group.longest, group.most_output) == (11, 6)
    assert group.where.endswith("line 2")  # the first that is so long
    path = lines(tmp_path / "two.jsonl", rows[0], {**rows[2], "group": "h"})
    assert [each.most_output for each in open_traces(str(path)).groups] == [1, 6]
    assert load_task(f"traces:{path}").max_tokens == 6


def test_files_folders_patterns_and_packed_files(tmp_path: Path) -> None:
    one = lines(tmp_path / "a.jsonl", numbered(2, "g"), numbered(3, "g"))
    (tmp_path / "b.json").write_text(json.dumps([numbered(4, "g")]), encoding="utf-8")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(one.read_bytes()))
    deep = tmp_path / "job" / "trial"
    deep.mkdir(parents=True)
    shutil.copy(tmp_path / "b.json", deep / "result.json")

    def outputs(given: Path) -> list[int]:
        traces: Traces = open_traces(str(given))
        return [each.turns[0].output_ids[0] for each in traces.rollouts(0)]

    assert outputs(one) == [2, 3]
    assert outputs(tmp_path) == [2, 3, 4, 2, 3]
    assert outputs(tmp_path / "*.json*") == [2, 3, 4, 2, 3]
    assert outputs(tmp_path / "job" / "**" / "result.json") == [4]
    assert outputs(tmp_path / "*") == [2, 3, 4, 2, 3]  # the folder "job" is no file
    packed = open_traces(str(tmp_path / "c.jsonl.gz"))
    (tmp_path / "notes.txt").write_text("none of it", encoding="utf-8")
    assert outputs(tmp_path) == [2, 3, 4, 2, 3]
    (tmp_path / "UP").mkdir()
    (tmp_path / "UP" / "A.JSONL").write_bytes(one.read_bytes())
    (tmp_path / "UP" / "B.JSONL.GZ").write_bytes(gzip.compress(one.read_bytes()))
    assert outputs(tmp_path / "UP") == [2, 3, 2, 3]
    assert packed.rollouts(0)[1].place == f"{tmp_path}/c.jsonl.gz line 2"
    assert open_traces(str(tmp_path / "b.json")).rollouts(0)[0].place.endswith("b.json row 1")
    assert packed.crc() == open_traces(str(one)).crc() != open_traces(str(tmp_path)).crc()


def test_what_is_no_file_of_rollouts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t\.jsnl does not exist.*seen from /"):
        open_traces(str(tmp_path / "t.jsnl"))
    with pytest.raises(UserError, match="has no file with rollouts"):
        open_traces(str(tmp_path))
    (tmp_path / "t.csv").write_text("a", encoding="utf-8")
    with pytest.raises(UserError, match=r"ends in '\.csv'"):
        open_traces(str(tmp_path / "t.csv"))
    (tmp_path / "t.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="has no rollouts: give at least one"):
        open_traces(str(tmp_path / "t.jsonl"))
    (tmp_path / "t.jsonl").write_text(json.dumps(OURS) + "\n{\n", encoding="utf-8")
    with pytest.raises(UserError, match="line 2 is not valid JSON"):
        open_traces(str(tmp_path / "t.jsonl"))
    (tmp_path / "t.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"t\.json is not valid JSON"):
        open_traces(str(tmp_path / "t.json"))
    (tmp_path / "t.json").write_text("[3]", encoding="utf-8")
    with pytest.raises(UserError, match="has a int in place of a rollout"):
        open_traces(str(tmp_path / "t.json"))
    (tmp_path / "t.jsonl.gz").write_bytes(b"no")
    with pytest.raises(UserError, match="cannot be unpacked"):
        open_traces(str(tmp_path / "t.jsonl.gz"))


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    one = lines(tmp_path / "t.jsonl", numbered(2))
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=r"cannot read .*t\.jsonl: Permission denied"):
        open_traces(str(one))
    with pytest.raises(UserError, match=r"cannot read the data file .*t\.jsonl: Permission denied"):
        open_source(one)
