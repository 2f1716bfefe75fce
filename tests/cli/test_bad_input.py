"""Any wrong input causes one line and exit code 2, and leaves no files behind."""

import shutil

import pytest
from models import save_model

CONFLICT = '''
from dataclasses import dataclass
from typing import ClassVar
from torch import Tensor


@dataclass(frozen=True)
class LearnsFromAll:
    """A baseline that lives on uniform groups."""

    kind: ClassVar[str] = "advantage/baseline"
    facts: ClassVar[frozenset[str]] = frozenset({"learns_from_uniform_groups"})

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B
'''


@pytest.fixture
def refused(strop, lab, tmp_path, monkeypatch):
    """Runs `strop train` with words beside the usual ones; returns the one line of its error."""
    monkeypatch.chdir(tmp_path)

    def train(*words, **replaced):
        usual = lab.arguments("--out", "made")
        for option, value in replaced.items():
            at = usual.index(f"--{option}")
            usual[at : at + 2] = [f"--{option}", str(value)] if value is not None else []
        result = strop("train", *usual, *words)
        assert result.code == 2, (result.out, result.err)
        assert result.err.startswith("error: ")
        assert result.err.count("\n") == 1, result.err
        assert "Traceback" not in result.out + result.err
        assert not (tmp_path / "made").exists()
        assert not (tmp_path / "runs").exists()
        return result.err.strip()

    return train


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["grppo"], ["no recipe 'grppo'", "grpo", "strop recipes"]),
        (["grpo", "dapo"], ["one recipe at a time", "grpo and dapo"]),
        (["model.name=no:fire:one"], ["no:fire:one"]),
        (["grpo(clip_hgh=0.3)"], ["no parameter clip_hgh", "did you mean clip_high"]),
        (["grpo(clip_high='a')"], ["clip_high takes a number", "'a'"]),
        (["grpo(eps=__import__('os'))"], ["no schedule __import__"]),
        (["grpo(eps=print)"], ["eps takes a number, got 'print'"]),
        (["grpo(eps=1"], ["cannot read 'grpo(eps=1'"]),
        (["entrocraft(h_low=liner(0.6, 0.4))"], ["no schedule liner", "did you mean linear"]),
        (["--advantage", "subtract_group_maen | spread_evenly"], ["did you mean subtract_"]),
        (["--advantage", "subtract_group_mean"], ["advantage_T", "credit part", "spread_evenly"]),
        (["--bound", "clip_both_sides | clip_both_sides"], ["room for one part"]),
        (["--bound", '"none.py:Mine"'], ["no file none.py"]),
        (["loss.clip_low=-1"], ["clip_low must be at least 0", "-1"]),
        (["loss.clip_lwo=0.1"], ["no option loss.clip_lwo", "clip_low"]),
        (["training.lr=abc"], ["training.lr must be a number", "'abc'"]),
        (["training.lr=-1"], ["training.lr must be a number >= 0"]),
        (["training.lr=linear(-1e-4, 1)", "training.steps=2"], ["training.lr must be a number"]),
        (["training.stesp=3"], ["no option training.stesp", "did you mean training.steps"]),
        (["training.steps=0"], ["training.steps = 0", "greater than or equal to 1"]),
        (["training.steps=many"], ["training.steps = 'many'", "integer"]),
        (["sampling.num_rollouts=0"], ["num_rollouts must be at least 1"]),
        (["sampling.num_prompts=1000000"], ["is 1000000 * 4: a step has at most 1048576"]),
        (["sampling.num_rollouts=2.5"], ["num_rollouts takes a whole number"]),
        (["rollout.temperature=0"], ["temperature must be at least 0.001"]),
        (["steps=3"], ["no option steps", "did you mean"]),
        (["evaluation.every=1", "evaluation.k=4"], ["evaluation.k has 4", "num_samples (2)"]),
        (["model.dtype=float8"], ["model.dtype must be one of"]),
        (["model.device=gpu"], ["model.device = 'gpu'"]),
        (["model.device=meta"], ["model.device = 'meta': strop trains on cpu and cuda alone"]),
        (["rollout.max_tokens=64"], ["leaves no prompt beside max_tokens=64"]),
        (["data.max_prompt_tokens=2"], ["4 tokens long, the limit is 2"]),
        (["--oout", "x"], ["No such option", "--out"]),
        (["--config", "none.toml"], ["cannot read the configuration none.toml"]),
    ],
)  # fmt: skip
def test_options_and_recipes(words, parts, refused):
    line = refused(*words)
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("recipe = ", "given.toml is not TOML"),
        ("recipes = 'grpo'", "given.toml: no option recipes, did you mean recipe"),
        ("[training]\nlearning_rate = 1", "given.toml: no option training.learning_rate"),
        ("[training]\nsteps = 'three'", "given.toml: training.steps = 'three'"),
        ("recipe = 'dapo'\n[algorithm]\n'loss.clip_low' = 0.1", "belong to its recipe dapo"),
    ],
)
def test_configuration_files(text, part, refused, tmp_path):
    (tmp_path / "given.toml").write_text(text)
    assert part in refused("grpo", "--config", "given.toml")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "data file given.jsonl does not exist: check the path, seen from /"),
        ("", "given.jsonl has no rows"),
        ('{"question": "1"}\n', "has no column 'prompt'"),
        ('{"promtp": "1"}\n', "did you mean 'prompt'"),
        ('{"prompt": "1"}\n{"prompt": \n', "given.jsonl line 2 is not valid JSON"),
        ('{"prompt": "1"}\n\n{"prompt": "2"}\n', "given.jsonl line 2 is empty"),
        ('{"prompt": "' + "1" * 80 + '"}\n{"prompt": "2"}\n', "80 tokens long"),
        ('{"prompt": 3}\n', "row 1 has a prompt of type int"),
        ('{"prompt": [{"role": "user", "content": "1"}]}\n{"prompt": "2"}\n', "no chat template"),
    ],
)
def test_data(content, part, refused, tmp_path):
    if content is not None:
        (tmp_path / "given.jsonl").write_text(content)
    line = refused("data.validation_size=0", data="given.jsonl")
    if "did you mean" in part:
        assert "prompt" in line
    else:
        assert part in line


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (None, "nothing scores the answers"),
        ("none.py:f", "no file none.py: it does not exist"),
        ("given.py:missing", "given.py has no function 'missing'"),
        ("mth_verify", "unknown reward 'mth_verify'"),
        ("broken.py:f", "broken.py:1: SyntaxError"),
        ("given.py:one", "returned 1 scores for 2 completions"),
        ("given.py:nan", "returned nan"),
        ("given.py:column", "the data has no column 'solution'"),
    ],
)
def test_rewards(source, part, refused, tmp_path):
    (tmp_path / "given.py").write_text(
        "def one(completions, **c):\n    return [1.0]\n"
        "def nan(completions, **c):\n    return [float('nan')] * len(completions)\n"
        "def column(completions, solution):\n    return [1.0] * len(completions)\n"
    )
    (tmp_path / "broken.py").write_text("def f(:\n")
    assert part in refused(reward=source)


def test_models(refused, tmp_path, lab):
    assert "the folder has no config.json" in refused(model=tmp_path)
    (tmp_path / "run/checkpoints/step-000002").mkdir(parents=True)
    for given in (tmp_path / "run", tmp_path / "run/checkpoints"):
        line = refused(model=given)
        assert line.endswith(f"; give a model's, such as {tmp_path}/run/checkpoints/step-000002")
    (tmp_path / "file").write_text("")
    for given in (tmp_path / "file", "./nothing"):
        assert f"no model in {given}: it is no folder, seen from {tmp_path}" in refused(model=given)
    (tmp_path / "config.json").write_text("{}")
    assert f"cannot load the model '{tmp_path}'" in refused(model=tmp_path)
    shutil.copytree(lab.model, tmp_path / "half")
    (tmp_path / "half/model.safetensors").unlink()
    assert "cannot load the model" in refused(model=tmp_path / "half")


def test_parts_that_contradict_each_other(refused, tmp_path):
    (tmp_path / "mine.py").write_text(CONFLICT)
    chain = 'subtract_group_mean | "mine.py:LearnsFromAll" | spread_evenly'
    line = refused("dapo", "--advantage", chain)
    assert "drop_uniform_groups and learns_from_all do not go together" in line


def test_folders(strop, lab, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "config.toml").write_text("")
    result = strop("train", *lab.arguments("--out", str(taken)))
    assert (result.code, "already holds a run" in result.err) == (2, True)
    assert [path.name for path in taken.iterdir()] == ["config.toml"]
    result = strop("train", *lab.arguments("--out", str(lab.data)))
    assert (result.code, "is a file" in result.err) == (2, True)
    for words in (["--resume", tmp_path], ["--resume", tmp_path / "none"]):
        result = strop("train", *words)
        assert (result.code, "is not a run" in result.err) == (2, True)
        assert result.err.count("\n") == 1


@pytest.fixture(scope="module")
def run(lab, tmp_path_factory):
    """A finished run of one step."""
    from runs import Runner

    folder = tmp_path_factory.mktemp("run") / "run"
    Runner().whole(lab.raw(training={"steps": 1}), folder)
    return folder


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["grpo"], "leave grpo out"),
        (["seed=3"], "leave seed=3 out; only training.steps"),
        (["training.lr=1"], "leave training.lr=1 out"),
        (["--model", "tiny"], "leave other options out"),
        (["training.steps=0"], "training.steps = 0"),
        (["evaluation.evry=1"], "no option evaluation.evry, did you mean evaluation.every"),
    ],
)
def test_resume_takes_few_options(words, part, strop, run):
    before = (run / "config.toml").read_bytes()
    result = strop("train", "--resume", run, *words)
    assert result.code == 2
    assert part in result.err
    assert result.err.count("\n") == 1
    assert (run / "config.toml").read_bytes() == before


def test_resume_of_swapped_weights(strop, run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    other = save_model(tmp_path / "other", hidden=16)
    place = folder / "checkpoints/step-000001"
    shutil.copy(other / "config.json", place / "config.json")
    (place / "files.json").unlink()  # as one that was written before there were sums
    result = strop("train", "--resume", folder, "training.steps=2")
    assert result.code == 2
    assert "hidden_size 16, the model has 32" in result.err
    assert "steps = 1\n" in (folder / "config.toml").read_text()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--k", "8", "--samples", "4"], "give --samples 8"),
        (
            ["--k", "one"],
            "--k takes whole numbers of at least 1 with commas between them, not 'one'",
        ),
        (["--k", "0"], "at least 1"),
        (["--seed", "9" * 30], "the seed is 999"),
        (["--split", "test"], "no split 'test': there are heldout, validation, train"),
        (["--split", "heldout"], "give --split validation or --split train or --data FILE"),
        (["--step", "7"], "no checkpoint of step 7; it has step-000001"),
        (["--data", "none.jsonl"], "does not exist"),
        (["--temperature", "0"], "temperature must be at least"),
    ],
)
def test_eval(words, part, strop, run):
    result = strop("eval", run, "--trust-files", *words)
    assert result.code == 2
    assert part in result.err
    assert result.err.count("\n") == 1


def test_eval_and_sample_of_no_run(strop, tmp_path):
    for command in ("eval", "sample"):
        result = strop(command, tmp_path, *(["1+1="] if command == "sample" else []))
        assert result.code == 2
        assert "neither a run (config.toml) nor a model (config.json)" in result.err
    result = strop("report", tmp_path, "--out", tmp_path / "page.html")
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_the_folder_of_a_comparison_names_a_run_inside(strop, run, tmp_path):
    comparison = tmp_path / "comparison"
    shutil.copytree(run, comparison / "runs" / "grpo-0")
    for words in (
        ["inspect", comparison], ["eval", comparison], ["sample", comparison, "1+1="],
        ["export", comparison, tmp_path / "model"], ["train", "--resume", comparison],
    ):  # fmt: skip
        result = strop(*words)
        assert result.code == 2
        assert result.err.endswith(f", such as {comparison / 'runs' / 'grpo-0'}\n"), result.err
