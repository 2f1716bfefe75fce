"""The commands as a user types them, one after the other on the same run."""

import inspect
import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import ended
from models import Lab, without_times
from runs import Runner

from strop.api.session import CHANGEABLE
from strop.cli import evaluate, train
from strop.cli.main import app
from strop.evaluation.samples import Estimate
from strop.training.settings import config


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """With two layers, which here write no newlines."""
    return Lab.make(tmp_path_factory.mktemp("lab"), layers=2)


@pytest.fixture(scope="module")
def run(lab, tmp_path_factory):
    """A finished run of two steps."""
    folder = tmp_path_factory.mktemp("run") / "run"
    Runner().whole(lab.raw(training={"steps": 2, "save_every": 1}), folder)
    return folder


def test_the_help_names_all_that_may_change_when_a_run_is_resumed():
    (option,) = train.Resume.__metadata__
    for name in CHANGEABLE:
        shown = name.replace("process", "...").replace("collector", "...")
        assert f"`{shown}{'...' * shown.endswith('.')}=...`" in option.help


def test_empty_lines_are_no_prompts(strop, run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("1+1=\n\n2+2=\n"))
    result = strop("sample", run, "-n", "1", "--max-tokens", "1")
    assert (result.code, len(result.out.splitlines())) == (0, 2)


def test_train_says_what_it_does_and_where_everything_is(strop, lab, tmp_path):
    folder = tmp_path / "run"
    result = strop(
        "train", "grpo", *lab.arguments("--out", str(folder), "evaluation.every=2", "seed=4")
    )
    assert (result.code, result.err) == (0, "")
    assert "grpo on train: 10 prompts" in result.out
    assert "steps 1 to 3" in result.out
    assert "step 3/3" in result.out
    assert f"Next: strop eval {folder}" in result.out
    assert {path.name for path in folder.iterdir()} == {
        "config.toml", "data.json", "environment.json", "metrics.jsonl", "rollouts", "tokens",
        "checkpoints", "report.html", "relatives.json", "end.json",
    }  # fmt: skip
    assert [line["step"] for line in without_times(folder)] == [0, 1, 2, 3]
    split = result.out.partition("Next: ")[2].split()[2:]
    assert split[1:3] == ["--split", "validation"]  # its data has no held-out rows
    page = (folder / "report.html").read_text()
    assert "grpo" in page
    assert "http-equiv" in page


def test_the_options_of_the_command_line_win_over_the_file(strop, lab, run, tmp_path):
    words = ["--config", run / "config.toml", "--out", tmp_path / "other", "loss.clip_high=0.3"]
    result = strop("train", *words, "training.steps=1", "seed=9", "--quiet")
    assert result.code == 0, result.err
    made = config.load(tmp_path / "other/config.toml")
    assert (made.training.steps, made.seed, made.training.lr) == (1, 9, 0.01)
    assert made.algorithm["terms.policy.objective.clip_high"] == 0.3
    assert "step 1/1" not in result.out


def test_the_file_of_a_run_repeats_it(strop, run, tmp_path):
    result = strop("train", "--config", run / "config.toml", "--out", tmp_path / "again")
    assert result.code == 0, result.err
    assert without_times(tmp_path / "again") == without_times(run)


def test_parts_of_a_file_and_stages_on_the_command_line(strop, lab, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom torch import Tensor\n\n"
        "@dataclass(frozen=True)\nclass Plain:\n    kind = 'loss/bound'\n    scale: float = 1.0\n\n"
        "    def __call__(self, log_ratio_T: Tensor, advantage_T: Tensor) -> Tensor:\n"
        "        return self.scale * log_ratio_T.exp() * advantage_T\n"
    )
    folder = tmp_path / "run"
    result = strop(
        "train", "dr_grpo", *lab.arguments("training.steps=1", "--out", str(folder)),
        "--bound", f'"{tmp_path}/mine.py:Plain"(scale=2.0)',
        "--advantage", "subtract_group_mean(leave_one_out=True) | spread_evenly",
    )  # fmt: skip
    assert result.code == 0, result.err
    made = config.load(folder / "config.toml")
    assert made.algorithm["terms.policy.objective.scale"] == 2.0
    assert "advantage.divide_by_group_std.eps" not in made.algorithm


def test_runs_without_a_name_get_the_next_number(strop, lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        words = lab.arguments("training.steps=1", "training.rollouts_every=0", "--quiet")
        assert strop("train", "rloo(num_prompts=2)", *words).code == 0
        assert Path(f"runs/rloo-{number}/report.html").exists()


def test_resume_of_a_finished_run_says_so_and_takes_more_steps(strop, lab, tmp_path):
    folder = tmp_path / "run"
    assert strop("train", *lab.arguments("training.steps=1", "--out", str(folder))).code == 0
    result = strop("train", "--resume", folder)
    assert result.code == 0
    assert f"{folder} is complete: 1 steps" in result.out
    assert f"strop train --resume {folder} training.steps=2" in result.out
    words = ["training.steps=3", "evaluation.every=3", "evaluation.num_samples=4"]
    result = strop("train", "--resume", folder, *words)
    assert result.code == 0, result.err
    assert "sampling the first answers, of step 2 ..." in result.out
    lines = without_times(folder)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert "eval/validation/pass@4" in lines[-1]
    made = config.load(folder / "config.toml")
    assert (made.training.steps, made.evaluation.num_samples) == (3, 4)


def test_eval_prints_a_table_or_json_with_the_same_numbers(strop, run):
    words = ["eval", run, "--trust-files", "--split", "train", "--samples", "4", "--k", "1,4"]
    result = strop(*words, "--json")
    assert (result.code, result.err) == (0, "")
    found = json.loads(result.out)
    for name in ("mean@n", "pass@1", "pass@4", "maj@1", "maj@4", "entropy"):
        assert {name, f"{name}/low", f"{name}/high"} <= found.keys()
        assert found[f"{name}/low"] <= found[name] <= found[f"{name}/high"]
    assert found["num_rollouts"] == 40
    assert json.loads(strop(*words, "--json").out) == found
    table = strop(*words).out
    assert f"{found['mean@n']:.3f}" in table
    assert f"{found['entropy/low']:.3f} to {found['entropy/high']:.3f}" in table
    assert "mean@4" in table


def test_eval_takes_other_data_rewards_and_checkpoints(strop, run, lab, tmp_path):
    data = tmp_path / "other.jsonl"
    data.write_text('{"prompt": "7*"}\n{"prompt": "8*"}\n')
    words = ["--samples", "3", "--k", "1,3", "--json"]
    files = ["--data", data, "--reward", f"{lab.rewards}:even"]
    result = strop("eval", run, *files, *words)
    assert result.code == 0, result.err
    new = json.loads(result.out)
    assert new["num_rollouts"] == 6
    old = json.loads(strop("eval", run, *files, *words, "--step", "1").out)
    assert old["entropy"] != new["entropy"]
    model = json.loads(strop("eval", lab.model, *files, *words, "--max-tokens", "6").out)
    assert model["entropy"] not in (old["entropy"], new["entropy"])


def test_sample_prints_answers(strop, run, monkeypatch):
    result = strop("sample", run, "3+4:", "-n", "3", "--max-tokens", "5")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert -10 < float(line.split()[0]) < 0
    assert strop("sample", run, "3+4:", "-n", "3", "--max-tokens", "5").out == result.out
    assert strop("sample", run, "3+4:", "-n", "3", "--seed", "1").out != result.out


def test_sample_reads_prompts_line_by_line(strop, run, monkeypatch):
    typed = iter(["1+1:", "2+2:"])

    def read(*_):
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    result = strop("sample", run, "-n", "2")
    assert result.code == 0
    assert len(result.out.splitlines()) == 4  # without the sign that a terminal shows


def test_report_of_several_runs(strop, run, tmp_path):
    page = tmp_path / "page.html"
    result = strop("report", run, run, "--out", page)
    assert (result.code, result.out) == (0, f"wrote {page}\n")
    assert page.read_text().startswith("<!doctype html>")


def test_a_report_of_all_that_lies_in_a_comparison_is_of_its_runs(strop, run, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/grpo.toml").write_text("")
    words = ("report", run, tmp_path / "runs/grpo.toml", "--out", tmp_path / "page.html")
    assert "grpo.toml is not a run" in strop(*words).err
    (tmp_path / "plan.json").write_text("{}")
    assert strop(*words).code == 0


def test_version_and_help(strop):
    assert strop("--version").out.startswith("strop ")
    text = strop().out
    for command in ("train", "eval", "sample", "report", "recipes", "parts"):
        assert command in text
    result = strop("train", "--help")
    assert result.code == 0
    assert "130" in result.out


def test_help_has_no_paragraph_that_is_shown_as_code():
    for command in app.registered_commands:
        assert not re.search(r"^ ", inspect.getdoc(command.callback), re.M), command.name


def test_the_installed_command_runs():
    command = [Path(sys.executable).parent / "strop", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("strop ")


def test_the_shipped_model_trains_from_a_shell(tmp_path):
    """A process of its own, on a folder of its own."""
    words = [
        "train", "entrocraft", "training.steps=2",
        "sampling.num_prompts=2", "sampling.num_rollouts=4", "evaluation.num_samples=2",
        "evaluation.max_prompts=4", "training.lr=1e-4",
    ]  # fmt: skip
    result = ended(words, tmp_path)
    assert result.code == 0, result.err
    assert result.err == ""
    folder = tmp_path / "runs/entrocraft-1"
    lines = without_times(folder)
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert all(math.isfinite(v) for line in lines for v in line.values())
    assert {"rewards/correct/mean", "entropy_control/low"} <= lines[1].keys()
    assert "eval/validation/pass@1" in lines[0]
    assert f"{config.load(folder / 'config.toml').recipe}" == "entrocraft"


def test_scores_without_a_value_or_an_interval_are_shown(capsys):
    none = math.nan
    estimates = {"one": Estimate(0.5, none, none, 1), "none": Estimate(none, none, none, 1)}
    evaluate._show(SimpleNamespace(estimates=estimates, num_left_out=0), "it", 4)
    said = capsys.readouterr().out
    assert "nan" not in said
    assert "0.500" in said


def test_a_model_of_given_answers_is_sampled_and_scored_within_its_context(lab, strop, tmp_path):
    """Its run has no most tokens of an answer, and those of any data are more than the context."""
    data, folder = tmp_path / "given.jsonl", tmp_path / "sft"
    rows = [{"prompt": f"{n}+1:", "completion": f"{n}", "answer": f"{n}"} for n in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--model", lab.model, "--data", data, "training.steps=1", "sampling.num_prompts=2"]
    result = strop("train", "sft", *words, "data.validation_size=1", "--out", folder)
    assert result.code == 0, result.err
    again = f"strop eval {folder} --split validation --reward NAME"
    assert f"Next: {again}\n" in result.out
    found = strop(*again.replace("NAME", "exact_match").split()[1:], "--k", "1", "--samples", "2")
    assert found.code == 0, found.err
    found = strop("sample", folder, "1+1:", "-n", "1")
    assert found.code == 0, found.err
    for prompt, most in (("1+1:", "64"), ("1" * 60, "8")):
        found = strop("sample", folder, prompt, "--max-tokens", most)
        assert found.code == 2
        assert "--max-tokens" in found.err
        assert "rollout.max_tokens" not in found.err
