"""`strop.train`: the same numbers as the command, whatever is passed in place of files."""

import copy
import subprocess
import sys
import threading
from typing import Any

import pyarrow
import pytest
import torch
from short import SHORT, WORDS, even, lines, rows_of, trained
from transformers import AutoModelForCausalLM, AutoTokenizer

import strop
from strop import UserError


def test_importing_the_package_loads_no_library() -> None:
    program = (
        "import sys, strop; assert {'Run', 'train'} <= {*dir(strop)}; "
        "print([name for name in ('torch', 'pydantic', 'rich') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout == "[]\n", said.stderr
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = strop.trian


def test_numbers_are_those_of_the_command(lab: Any, here: Any, strop_command: Any) -> None:
    words = ["--model", lab.model, "--data", lab.data, "--reward", f"{lab.rewards}:even"]
    assert strop_command("train", "grpo", *words, *WORDS, "--out", "by_command").code == 0
    by_files = strop.train(
        "grpo", model=lab.model, data=lab.data, reward=f"{lab.rewards}:even", out="a", **SHORT
    )
    assert lines(by_files.folder) == lines(here / "by_command")
    assert by_files.finished
    assert lines(trained(lab, out="b").folder) == lines(here / "by_command")
    model, tokenizer = (
        kind.from_pretrained(lab.model) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    for weight in model.parameters():  # as a loop of one's own leaves them
        weight.grad = torch.ones_like(weight)
    loaded = trained(lab, out="c", model=model, tokenizer=tokenizer)
    assert lines(loaded.folder) == lines(here / "by_command")
    assert loaded.model is model


def test_a_model_in_memory_is_trained_again(lab: Any, here: Any) -> None:
    """Also after a mistake: a run takes its weights' gradients only until it is closed."""
    model = AutoModelForCausalLM.from_pretrained(lab.model, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(lab.model)
    options = {"tokenizer": tokenizer, "model_dtype": "bfloat16", "training_lr": 0.1}
    template = here / "chat.jinja"
    template.write_text("{% for each in messages %}{{ each.content }}{% endfor %}")
    with pytest.raises(UserError, match="the method has no critic, leave it out"):
        trained(lab, model=model, critic_start="none", model_chat_template=template, **options)
    assert not tokenizer.chat_template
    first = trained(lab, model=model, **options)
    other = copy.deepcopy(model)
    again = [trained(lab, model=each, **options) for each in (model, other)]
    assert lines(again[0].folder) == lines(again[1].folder) != lines(first.folder)


def test_a_models_numbers_are_those_that_the_folder_names(lab: Any, here: Any) -> None:
    """Otherwise a resumed run would go on in another dtype."""
    tokenizer = AutoTokenizer.from_pretrained(lab.model)
    options = {"model_dtype": "bfloat16", "model_attention": "eager", "start": False}
    with trained(lab, model=lab.model, tokenizer=tokenizer, **options) as named:
        assert (named.model.dtype, named.config.model.dtype) == (torch.bfloat16, "bfloat16")
        assert named.model.config._attn_implementation == "eager"
        assert named.config.model.device == "auto"
    model = AutoModelForCausalLM.from_pretrained(lab.model)
    loaded = {"model": model, "tokenizer": tokenizer}
    for name, value, own in (("dtype", "bfloat16", "float32"), ("attention", "eager", "sdpa")):
        kept = f"model.{name}={value}: the model that was given has {own}, which it keeps"
        with pytest.raises(UserError, match=kept):
            trained(lab, **loaded, **{f"model_{name}": value})
        with pytest.raises(UserError, match=kept):
            strop.sample(model, "1+1:", tokenizer=tokenizer, **{f"model_{name}": value})


def test_any_table_of_rows_is_taken(lab: Any, here: Any) -> None:
    rows = rows_of(lab.data)
    by_path = trained(lab, data=lab.data, training_steps=1)
    for given in (pyarrow.Table.from_pylist(rows), iter(rows), tuple(rows)):
        assert lines(trained(lab, data=given, training_steps=1).folder) == lines(by_path.folder)


def test_rewards_are_named_and_weighed(lab: Any, here: Any) -> None:
    run = trained(
        lab, reward=[lambda prompts, **_: [1.0] * len(prompts), even, f"{lab.rewards}:digits"],
        reward_weights=[2, 0.5, 0], training_steps=1,
    )  # fmt: skip
    (line,) = lines(run.folder)
    assert line["rewards/reward/mean"] == 1
    assert line["reward"] == pytest.approx(2 + 0.5 * line["rewards/even/mean"])
    assert "rewards/digits/mean" in line


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": 3}, "data is int: give a path, or rows"),
        ({"data": {"train": []}}, "data_train has no rows: give at least one"),
        ({"data": []}, "data has no rows"),
        ({"data": {"org/set": [{"prompt": "1"}]}}, "data has the name 'org/set': give names of"),
        ({"validation": {"3": [{"prompt": "1"}]}}, "validation has the name '3': give names of"),
        ({"out": ""}, "out is '': give a path"),
        ({"data": ["a.jsonl", {"prompt": "1"}]}, "data row 1 is str: a row is a dict"),
        ({"data": [{"prompt": "1", "when": object()}]}, "data row 1, column when, has a value"),
        ({"data": [{1: "1"}]}, "data row 1 has a column 1: names of columns are text"),
        ({"reward": 3}, "reward is int: give a function"),
        ({"reward": lambda completions, mark, **_: []}, "needs the parameter 'mark'"),
        ({"reward": lambda completions, **_: 1.0}, "it must return a list"),
        ({"model": object()}, "model is object: give a name"),
        ({"tokenizer": 3}, "tokenizer is int: give one that transformers has loaded"),
        ({"training_stesp": 3}, "no option training.stesp, did you mean training_steps"),
        ({"trainingsteps": 3}, "no option trainingsteps"),
        ({"reward_funcs": even}, "reward_funcs is here reward_functions, reward="),
        ({"training_steps": "many"}, "training.steps = 'many'"),
        ({"bound": "clip_both_side"}, "no part 'clip_both_side', did you mean clip_both_sides"),
        ({"recipe": 3}, "recipe is int: give a line such as"),
        ({"out": b"x"}, "out is b'x': give a path, as text or pathlib.Path"),
        ({"out": "a\0b"}, r"out is 'a\\x00b': give a path"),
        ({"callbacks": 5}, "a callback is int: give functions of a step"),
        ({"out": "deep/er/run", "training_lr": "x"}, "training.lr must be a number"),
        (
            {
                "out": "deep",
                "training_best": "eval/validation/x",
                "evaluation_every": 1,
                "data_validation_size": 2,
            },
            "eval/validation/x is no number of the validation",
        ),
    ],
)
def test_mistakes_leave_nothing_behind(lab: Any, here: Any, given: Any, message: str) -> None:
    all_given = {"recipe": "grpo", "model": str(lab.model), "data": rows_of(lab.data),
                 "reward": even, **SHORT, **given}  # fmt: skip
    with pytest.raises(UserError, match=message):
        strop.train(all_given.pop("recipe"), **all_given)
    assert not (here / "runs").exists()
    assert not (here / "deep").exists()


def test_what_cannot_leave_this_process_is_refused(lab: Any, here: Any) -> None:
    lock = threading.Lock()
    with pytest.raises(UserError, match=r"the reward reward cannot be sent .*_thread\.lock"):
        trained(lab, reward=lambda completions, **_: [lock.locked() for _ in completions])
    with pytest.raises(UserError, match="already holds a run"):
        trained(lab, out=trained(lab, training_steps=1).folder)


def test_files_that_are_there_are_not_touched(lab: Any, here: Any) -> None:
    """Neither written over, nor taken away with a run that came to nothing."""
    for name in ("given/rows.jsonl", "data.json", "wandb/other/run"):
        path = here / name.replace("/", "_") / name
        path.parent.mkdir(parents=True)
        path.write_text("mine")
        own = name.partition("/")[0]
        with pytest.raises(UserError, match=rf"has its own {own}, .* another folder with out="):
            trained(lab, out=here / name.replace("/", "_"))
        assert path.read_text() == "mine"
    (here / "begun/rollouts").mkdir(parents=True)  # all that a full disk let a run write
    assert trained(lab, out=here / "begun", training_steps=1).finished
