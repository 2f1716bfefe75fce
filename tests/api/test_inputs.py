"""Tables, functions and models that a script passes: their conversion, and what is refused."""

import os
import shutil
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest
import torch
from models import tokenizer
from short import column, even, lines, rows_of, trained

import strop
from strop import UserError
from strop.api.inputs import files_of, sections_of, task_of, with_parts
from strop.api.options import combined
from strop.environments import Environment
from strop.environments.built_in.corridor import Corridor
from strop.environments.replay import Replay
from strop.rewards import pickled
from strop.support import loading
from strop.traces.files import open_traces
from strop.training.learner.models import load

ROWS = [
    {"prompt": "1+2=", "answer": "3", "level": 1},
    {"prompt": [{"role": "user", "content": "2+2="}], "answer": None, "level": 2},
]


def written(given: Any, folder: Path) -> list[dict[str, Any]]:
    (path,) = files_of(given, folder / "given/data.jsonl")
    return rows_of(Path(path))


TENTH = """
from dataclasses import dataclass
from typing import ClassVar
from torch import Tensor
from strop.method.algorithm import Algorithm
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.recipes.grpo import grpo

SHARE = 0.1

@dataclass(frozen=True)
class Tenth:
    kind: ClassVar[str] = "advantage/baseline"
    share: float = SHARE
    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B * SHARE

def mine() -> Algorithm:
    return grpo().replace(advantage=[Tenth(share=0.3), SpreadEvenly()])
"""


@pytest.mark.parametrize("way", ["object", "line", "recipe"])
def test_parts_of_a_notebook_travel_with_the_run(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way they are given; a second run of the same part has its own copy."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(TENTH, vars(main))
    monkeypatch.setattr(loading, "_unpickled", {})
    method = {
        "object": lambda: (main.mine(), []),
        "line": lambda: ("grpo", ["advantage='__main__:Tenth'(share=0.3) | spread_evenly"]),
        "recipe": lambda: ('"__main__:mine"', []),
    }
    for folder in (tmp_path / "a b" / "given", tmp_path / "second" / "given"):
        kept = with_parts(combined(*method[way](), {}), folder)
        first = f'"{folder}/Tenth.pickle:Tenth"(share=0.3)'
        assert kept.stages["advantage"] == [first, "spread_evenly"]
        assert kept.complete().stages["advantage"] == [first, "spread_evenly"]
        assert "__main__" not in kept.to_toml()
    vars(main).clear()
    (part,) = (use.part for use in kept.build().algorithms[0].advantage if use.label == "tenth")
    assert part(torch.tensor([1.0])).tolist() == pytest.approx([0.1])
    plain = combined("grpo", [], {})
    assert with_parts(plain, tmp_path) is plain


PLAYED = """
from strop.environments import Environment, Observation

RIGHT = {answer!r}

class Guess(Environment):
    max_turns = 2
    max_tokens = 1
    def reset(self, seed):
        self.turn = 0
        return Observation("1=")
    def step(self, action):
        self.turn += 1
        return Observation("1=", float(action in RIGHT), self.turn == 2)
"""


def played(monkeypatch: pytest.MonkeyPatch, answer: str = "0123") -> type:
    """The class of an environment that a cell of a notebook has just defined."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(PLAYED.format(answer=answer), vars(main))
    return vars(main)["Guess"]


@pytest.mark.parametrize("way", ["class", "name", "option"])
def test_an_environment_of_a_notebook_travels_with_the_run(
    way: str, lab: Any, here: Path, strop_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell goes on with the run, and another one that repeats its file has its own copy, which
    a process beside it plays.
    """
    kind = played(monkeypatch)
    given = {"class": {"task": kind}, "name": {"task": "environment:__main__:Guess"},
             "option": {"data_task": kind}}[way]  # fmt: skip
    given |= {"data": None, "reward": None}
    run = trained(lab, training_steps=2, **given)
    assert run.config.data.task == f"{run.folder}/given/Guess.pickle:Guess"
    assert run.config.data.task_config == {}
    whole = lines(trained(lab, out="whole", **given).folder)
    monkeypatch.delitem(vars(sys.modules["__main__"]), "Guess")
    result = strop_command("train", "--resume", run.folder, "training.steps=3", "--quiet")
    assert result.code == 0, result.err
    assert lines(run.folder) == whole
    assert any(line["reward"] for line in whole)
    again = trained(lab, "grpo", config=run.folder / "config.toml", model=None, data=None,
                    reward=None, out="again", training_steps=1, data_env_workers=1)  # fmt: skip
    assert again.config.data.task == "again/given/Guess.pickle:Guess"


def test_an_environment_of_a_notebook_in_a_mixture_travels_with_the_run(
    lab: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under its name among the others, also where it was given none."""
    kind = played(monkeypatch)
    given: dict[str, Any] = {
        "data": None, "reward": None, "training_steps": 1, "data_env_workers": 1,
        "data_train_size": 2, "data_task_config": {"corridor": {"style": "compact"}},
    }  # fmt: skip
    for out, task, label in (("a", ["corridor", kind], "main___Guess"),
                             ("b", "corridor + mine=__main__:Guess", "mine")):  # fmt: skip
        run = trained(lab, out=out, task=task, **given)
        assert run.config.data.task == f"corridor + {label}={out}/given/Guess.pickle:Guess"
        assert f"sources/{label}/share" in lines(run.folder)[-1]


def test_a_cell_that_is_run_again_defines_another_environment(
    lab: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a folder of the same name held the first one."""
    given = {"data": None, "reward": None, "training_steps": 1, "out": "run"}
    for answer, most in (("", 0.0), ("0123456789+-*/():,= ", 2.0)):
        run = trained(lab, task=played(monkeypatch, answer), **given)
        assert lines(run.folder)[-1]["reward"] == pytest.approx(most, abs=0.5)
        run.close()
        shutil.rmtree(run.folder)


def test_an_environment_around_one_of_a_notebook(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(monkeypatch)
    options = {"environment": "__main__:Guess", "max_tokens": 9}
    task = "strop.environments.action_block:ActionBlock"
    kept = with_parts(combined("grpo", [], {"data": {"task": task, "task_config": options}}), here)
    assert kept.data.task == task
    assert kept.data.task_config == {**options, "environment": f"{here}/Guess.pickle:Guess"}


def test_environments_that_cannot_travel_are_refused(
    lab: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inside(Environment):
        pass

    played(monkeypatch)
    sys.modules["__main__"].RIGHT = threading.Lock()
    for task, message in (
        (Inside, "Inside is defined inside something else: define the environment at the top"),
        ("__main__:Guess", r"Guess cannot be kept with the run \(TypeError: cannot pickle"),
        ("__main__:Gess", "__main__ has no Gess, did you mean Guess?"),
        (int, "environment builtins:int|builtins:int is no environment"),
        (3, "task is int: give a name, such as 'corridor', the class of an environment, or the"),
    ):
        with pytest.raises(UserError, match=message):
            trained(lab, task=task, data=None, reward=None, out="run")
        assert not (here / "run").exists()
    assert task_of(Corridor) == "corridor"
    assert task_of(Replay) == "strop.environments.replay:Replay"


def test_tables_become_the_rows_that_they_hold(tmp_path: Path) -> None:
    texts = [{"prompt": "1", "answer": "2"}, {"prompt": "3", "answer": None}]
    assert written(ROWS, tmp_path) == ROWS
    assert written(pandas.DataFrame(texts), tmp_path) == texts
    assert written(pandas.Series(texts), tmp_path) == texts
    same = pandas.DataFrame([["1", "2"]], columns=["prompt", "prompt"])
    with pytest.raises(UserError, match="data has two columns of one name"):
        written(same, tmp_path)
    numbers = pandas.DataFrame({"prompt": ["1", "2"], "n": [1.5, float("nan")], "m": [1, 2]})
    assert written(numbers, tmp_path)[1] == {"prompt": "2", "n": None, "m": 2}
    assert written(datasets.Dataset.from_list(texts), tmp_path) == texts
    assert files_of(["a.jsonl", Path("b.csv")], tmp_path / "x") == ("a.jsonl", "b.csv")
    both = datasets.DatasetDict(train=datasets.Dataset.from_list(texts))
    with pytest.raises(UserError, match="data is a DatasetDict with train: give a path, or rows"):
        written(both, tmp_path)
    many = datasets.Dataset.from_dict({"prompt": ["1"] * 20_001})
    (folder,) = files_of(many, tmp_path / "many.jsonl")
    assert len(datasets.load_from_disk(folder)) == 20_001
    dates = pandas.DataFrame({"prompt": ["1"], "at": [pandas.Timestamp(2026, 1, 1)]})
    with pytest.raises(UserError, match=r"data row 1, column at, has a value that no .* Timestamp"):
        written(dates, tmp_path)


def test_sources_and_validation_sets_by_name(lab: Any, here: Path) -> None:
    """Rows or files by name are sources with weights, and sets with scores of their own."""
    hard = [{"prompt": "9*9=", "answer": "81"}]
    run = trained(lab, data={"easy": str(lab.data), "hard": hard}, data_weights=[1, 2],
                  validation={"few": hard, "same": str(lab.data)}, data_validation_size=0,
                  training_steps=1, evaluation_every=1, sampling_num_prompts=8)  # fmt: skip
    line = lines(run.folder)[-1]
    assert line["sources/hard/epoch"] + 12 * line["sources/easy/epoch"] == pytest.approx(8)
    assert {"eval/few/pass@1", "eval/same/pass@1"} <= line.keys()
    assert run.evaluate(split="few", samples=1, k=1)["pass@1"] in (0.0, 1.0)
    with pytest.raises(UserError, match="data is a dict with prompt: give a path, or rows"):
        trained(lab, data={"prompt": ["1", "2"]}, out="columns")


def test_functions_travel_with_what_they_refer_to(tmp_path: Path) -> None:
    table = {"3": 1.0}

    class Judge:
        def __init__(self, bonus: float) -> None:
            self.bonus = bonus

        def __call__(self, completions: list[str], **columns: Any) -> list[float]:
            return [table.get(text, 0.0) + self.bonus for text in completions]

    assert pickled.names_of([even, lambda: 0, lambda: 1, Judge(1)]) == [
        "even", "reward", "reward_2", "Judge",
    ]  # fmt: skip
    source = pickled.write(Judge(0.5), tmp_path / "judge.pickle")
    assert pickled.read(source.removeprefix("pickled:"))(["3", "4"]) == [1.5, 0.5]
    (tmp_path / "bad.pickle").write_bytes(b"no")
    with pytest.raises(UserError, match=r"the reward function in .*bad\.pickle cannot be read"):
        pickled.read(str(tmp_path / "bad.pickle"))
    with pytest.raises(UserError, match="the file is gone"):
        pickled.read(str(tmp_path / "none.pickle"))


def test_a_reward_that_fails_or_hangs_costs_its_answers_alone(lab: Any, here: Path) -> None:
    """One prompt in four each way, whatever the policy answers; all four are in the one step."""

    def awkward(completions: list[str], how: list[str], **columns: Any) -> list[float]:
        assert os.getpid() != ours
        if "exception" in how:
            raise ValueError("as the row says")
        if "timeout" in how:
            time.sleep(60)
        return [2.0] * len(completions)

    ours = os.getpid()
    ways = {"1+1=": "exception", "1+2=": "timeout", "2+1=": "done", "2+2=": "done"}
    run = trained(lab, data=[{"prompt": prompt, "how": how} for prompt, how in ways.items()],
                  reward=awkward, training_steps=1, reward_timeout_seconds=0.5,
                  sampling_num_prompts=4, training_rollouts_every=1)  # fmt: skip
    prompts, ends, rewards = (column(run.rollouts, name) for name in ("prompt", "exit", "reward"))
    assert sorted(prompts) == sorted([*ways] * 4)
    assert [end if end in ways.values() else "done" for end in ends] == [*map(ways.get, prompts)]
    assert rewards == [2.0 if ways[prompt] == "done" else 0.0 for prompt in prompts]
    (line,) = lines(run.folder)
    assert (line["exit/exception"], line["exit/timeout"], line["reward"]) == (0.25, 0.25, 1.0)


def test_a_shell_goes_on_with_what_a_script_gave(lab: Any, here: Any, strop_command: Any) -> None:
    run = trained(lab, training_steps=2)
    result = strop_command("train", "--resume", run.folder, "training.steps=3", "--quiet")
    assert result.code == 0, result.err
    assert lines(run.folder) == lines(trained(lab, out="whole").folder)
    assert rows_of(run.folder / "given/data.jsonl") == rows_of(lab.data)


def test_models_that_cannot_be_trained_are_refused(lab: Any, here: Any) -> None:
    class Adapted:
        peft_config = ()

    with pytest.raises(UserError, match="model has adapters already: give the model without them"):
        trained(lab, model=Adapted())
    frozen = load(str(lab.model)).model
    frozen.get_input_embeddings().requires_grad_(False)
    with pytest.raises(UserError, match=r"1 weights .* frozen, the first is model.embed_tokens"):
        trained(lab, model=frozen)
    assert not Path("runs").exists()
    trained(lab, model=frozen, model_lora_rank=2, training_steps=1)
    with pytest.raises(UserError, match="tokenizer goes with a model that is loaded"):
        strop.evaluate(str(lab.model), data=rows_of(lab.data), reward=even, tokenizer=tokenizer())


def test_recorded_rollouts_are_a_task_of_their_own(tmp_path: Path) -> None:
    turn = strop.TurnRecord((3,), (4, 1), (-0.5, -1.0))
    rollouts = [strop.Rollout.from_turns([turn], reward, "g") for reward in (1.0, 0.0)]
    given, _ = sections_of(tmp_path, None, None, rollouts, None, None, "")
    assert given["data"] == {"task": f"traces:{tmp_path / 'traces.jsonl'}"}
    found = open_traces(str(tmp_path / "traces.jsonl")).rollouts(0)
    assert [(each.turns, each.reward, each.group) for each in found] == [
        ((turn,), 1.0, "g"), ((turn,), 0.0, "g"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="leave task out"):
        sections_of(tmp_path, None, None, rollouts, None, None, "countdown")
    with pytest.raises(UserError, match="data 2 is dict, and others are rollouts"):
        sections_of(tmp_path, None, None, [rollouts[0], {"prompt": "1"}], None, None, "")
