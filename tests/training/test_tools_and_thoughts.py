"""How a chat template writes calls, tool answers and thoughts into a rollout's tokens."""

import dataclasses
from importlib.resources import files

import pytest
import torch
from fakes.services import rolled_out
from runs import world_of
from scripted_model import TEMPLATE, save_scripted

from strop.batch.batch import Batch
from strop.data.chat import Chat
from strop.method.part import Draw
from strop.support.errors import UserError

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "2*3"}}</tool_call>'
THOUGHT = "<think>hm</think>"


def world_with(model, task, recipe="grpo", **data):
    data = {"task": task, "train_size": 2, "validation_size": 1, "heldout_size": 1} | data
    return world_of({"recipe": recipe, "model": {"name": str(model)}, "data": data})


def played(method, world, num_rollouts=6) -> Batch:
    draws = tuple(Draw(uid, num_rollouts) for uid in world.pool)
    rng = torch.Generator().manual_seed(5)
    return rolled_out(method.rollout.part, draws, world.engine, world.services, rng).batch


def contexts_of(world, batch):
    """The text of each context, rollout by rollout."""
    sequence_T = batch["sequence_T"] if "sequence_T" in batch else batch["rollout_T"]
    decode = world.services.texts.decode
    return [decode(batch["id_T"][sequence_T == n].tolist()) for n in sequence_T.unique().tolist()]


def test_tools_are_shown_and_answer_in_their_role(tmp_path):
    model = save_scripted(tmp_path / "model", {CALL: 0.7, THOUGHT + "6": 0.3}, TEMPLATE)
    options = {"kinds": ["arithmetic"], "max_turns": 3}
    method, world = world_with(model, "tool_questions", task_config=options)
    batch = played(method, world)
    whole = contexts_of(world, batch)
    assert len(whole) == 12
    for text in whole:
        assert text.startswith("tools: calculator\nwrite <tool_call>...</tool_call>\n[user]What is")
    (longest, *_) = sorted(whole, key=len, reverse=True)
    turn = f"[assistant]{CALL}<eos>\n[tool]6\n"
    assert turn + turn in longest
    world.services.close()


def test_calls_in_the_form_of_a_published_template(tmp_path):
    """Qwen 3.5 writes arguments between tags, after a thought that its template has opened."""
    template = (files("trl") / "chat_templates" / "qwen3_5_think.jinja").read_text("utf-8")
    template = template.replace("<|im_end|>", "<eos>")
    call = "<function=calculator>\n<parameter=expression>\n2*3\n</parameter>\n</function>"
    action = f"hm\n</think>\n\n<tool_call>\n{call}\n</tool_call>"
    model = save_scripted(tmp_path / "model", {action: 1.0}, template)
    options = {"kinds": ["arithmetic"], "max_turns": 2}
    method, world = world_with(model, "tool_questions", task_config=options)
    (text, *_) = contexts_of(world, played(method, world, 1))
    answered = "<|im_start|>user\n<tool_response>\n6\n</tool_response><eos>\n"
    again = f"{answered}<|im_start|>assistant\n<think>\n{action}<eos>"
    assert text.endswith(f"<|im_start|>assistant\n<think>\n{action}<eos>\n{again}")
    world.services.close()


def test_tools_in_words_where_the_template_shows_none(tmp_path):
    line = 'call calculator {"expression": "2*3"}'
    bare = TEMPLATE[TEMPLATE.index("{%- set last") :]
    model = save_scripted(tmp_path / "model", {line: 1.0}, bare)
    options = {"kinds": ["arithmetic"], "max_turns": 2}
    method, world = world_with(model, "tool_questions", task_config=options)
    (text, *_) = contexts_of(world, played(method, world))
    assert text.startswith("[user]You have these tools:\n- calculator: Calculates an expression")
    assert "Call one with a line: call NAME {ARGUMENTS AS JSON}\nWhat is" in text
    assert "[tool]6" in text
    world.services.close()


def test_thoughts_stay_or_are_dropped_by_name(tmp_path):
    action = f"{THOUGHT}2*3="
    model = save_scripted(tmp_path / "model", {action: 1.0}, TEMPLATE)
    shown = []
    for thinking in ("all", "template"):
        method, world = world_with(
            model, "calculator", thinking=thinking, task_config={"max_turns": 3}
        )
        batch = played(method, world, 1)
        shown.append(contexts_of(world, batch))
        world.services.close()
    (kept, _), dropped = shown
    one = f"[assistant]{action}<eos>\n[user]6\n"
    assert kept.endswith(f"{one}{one}[assistant]{action}<eos>")
    bare = one.replace(THOUGHT, "")
    assert len(dropped) == 6  # three turns of two rollouts
    start = kept[: kept.index("[assistant]")]
    assert dropped[:3] == [
        f"{start}{prefix}[assistant]{action}<eos>" for prefix in ("", bare, bare + bare)
    ]


def test_answers_of_tools_keep_the_thoughts_that_the_template_keeps(tmp_path):
    """The question is the last message of a user, so nothing is dropped after a tool."""
    model = save_scripted(tmp_path / "model", {THOUGHT + CALL: 1.0}, TEMPLATE)
    options = {"kinds": ["arithmetic"], "max_turns": 3}
    method, world = world_with(model, "tool_questions", thinking="template", task_config=options)
    batch = played(method, world, 1)
    assert "sequence_T" in batch
    assert len(contexts_of(world, batch)) == 2
    world.services.close()


def test_what_cannot_be_is_refused(tmp_path):
    plain = save_scripted(tmp_path / "plain", {"6": 1.0})
    with pytest.raises(UserError, match=r"data\.thinking=template needs a chat template"):
        world_with(plain, "calculator", thinking="template")
    with pytest.raises(UserError, match=r"data\.call_form=json is for calls of tools"):
        world_with(plain, "calculator", call_form="json")
    strange = TEMPLATE.replace("<tool_call>...</tool_call>", "[TOOL_CALLS]")
    model = save_scripted(tmp_path / "strange", {"6": 1.0}, strange)
    with pytest.raises(UserError, match="in a form that strop does not read"):
        world_with(model, "tool_questions")
    _, world = world_with(model, "tool_questions", call_form="json")
    assert world.services.texts.chat.call_form == "json"
    world.services.close()
    chat = Chat(template={"tools": [{}]})
    with pytest.raises(UserError, match="which tools it has"):
        chat.for_tools(({},), None)


def test_strategies_that_need_one_context_refuse_to_drop_thoughts(tmp_path):
    model = save_scripted(tmp_path / "model", {f"{THOUGHT}6": 1.0}, TEMPLATE)
    method, world = world_with(model, "calculator", recipe="arpo", thinking="template")
    with pytest.raises(UserError, match=r"data\.thinking=template: branch_after_turns continues"):
        played(method, world)
    world.services.close()


def test_a_reminder_stands_in_the_last_answer_of_a_tool(tmp_path):
    model = save_scripted(tmp_path / "model", {CALL: 1.0}, TEMPLATE)
    options = {"kinds": ["arithmetic"], "max_turns": 2}
    method, world = world_with(model, "tool_questions", task_config=options)
    part = dataclasses.replace(method.rollout.part, reminder="Left: {left}")
    draws = (Draw(world.pool[0], 1),)
    rng = torch.Generator().manual_seed(5)
    batch = rolled_out(part, draws, world.engine, world.services, rng).batch
    (text,) = contexts_of(world, batch)
    assert "[tool]6\nLeft: 1\n[assistant]" in text
    world.services.close()
