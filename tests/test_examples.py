"""The examples in README.md and docs/EXTENDING.md do what the text says, as they stand there.

`<!-- file: NAME -->` before a block names the file that a reader writes, `<!-- run: NAME -->` the
commands to run, `<!-- output: NAME -->` their output, `<!-- shown: FILE -->` a strategy's code.
"""

import contextlib
import importlib
import io
import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Strop
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

from strop.support.errors import UserError
from strop.tracking.base import TRACKERS
from strop.training.settings import config
from strop.training.settings.assignments import override

ROOT = Path(__file__).parents[1]


def blocks(page: str, kind: str) -> dict[str, str]:
    """The marked blocks of a kind (file, run, output) by name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return dict(re.findall(rf"<!-- {kind}: ([^>]+) -->\n```\w+\n(.*?)```", text, re.S))


@pytest.fixture
def strop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Strop:
    return Strop(monkeypatch, capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder in which modules of earlier tests are not known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [n for n in sys.modules if n.startswith("strop_user_")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def write_files(page: str, folder: Path) -> None:
    for name, text in blocks(page, "file").items():
        (folder / name).write_text(text, encoding="utf-8")


def obey(commands: str, strop: Strop) -> str:
    """Run the lines of a block in this process; returns what they print."""
    said = ""
    for line in commands.replace("\\\n", " ").splitlines():
        program, *words = shlex.split(line)
        if program == "python":
            runpy.run_path(words[0], run_name="__main__")
        else:
            assert program == "strop", line
            answer = strop(*words)
            assert answer.code == 0, answer.err
            said += answer.out
    return said


def all_metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def last_metrics(run: Path) -> dict[str, Any]:
    return all_metrics(run)[-1]


def test_every_marked_block_is_tested() -> None:
    assert set(blocks("README.md", "run")) == {
        "python", "train on puzzles", "real model", "functional"
    }  # fmt: skip
    assert set(blocks("README.md", "output")) == {"functional"}
    assert set(blocks("docs/EXTENDING.md", "run")) == {
        "part", "term", "column", "recipe", "strategy", "environment"
    }  # fmt: skip


TEMPLATE = (
    "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if not enable_thinking %} {% endif %}{% endif %}"
)


def random_qwen3(folder: Path) -> str:
    """A small model of the architecture that the example names, with random weights."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>"]
    known = {letter: number for number, letter in enumerate(letters)}
    by_bytes = Tokenizer(models.BPE(known, []))
    by_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_bytes.decoder = decoders.ByteLevel()
    ends = {"eos_token": "<end>", "pad_token": "<end>"}
    PreTrainedTokenizerFast(
        tokenizer_object=by_bytes, chat_template=TEMPLATE, **ends
    ).save_pretrained(folder)
    small = Qwen3Config(
        vocab_size=len(letters), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=4, eos_token_id=len(letters) - 1,
        bos_token_id=None, pad_token_id=len(letters) - 1, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(small).save_pretrained(folder)
    return str(folder)


def test_a_real_model_by_name(folder: Path, strop: Strop) -> None:
    """As far as no network allows: a small random model and rows of GSM8K's form stand in."""
    row = {"question": "Natalia sold 48 clips, then half as many. How many?",
           "answer": "She sold 48+24 = <<48+24=72>>72.\n#### 72"}  # fmt: skip
    for name, number in (("train", 8), ("test", 2)):
        lines = [json.dumps({**row, "question": f"{n}. {row['question']}"}) for n in range(number)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    command = blocks("README.md", "run")["real model"].strip()
    for name, ours in {
        "Qwen/Qwen3-0.6B": random_qwen3(folder / "model"),
        "hf:openai/gsm8k:main:train": "train.jsonl",
        "hf:openai/gsm8k:main:test": "test.jsonl",
    }.items():
        assert command.count(name) == 1
        command = command.replace(name, ours)
    said = obey(f"{command} training.steps=1 rollout.max_tokens=8 --out run", strop)
    assert "8 prompts" in said
    metrics = last_metrics(folder / "run")
    assert metrics["rewards/frac_unscored"] == 0
    assert metrics["num_rollouts"] == 64
    assert "eval/validation/pass@1" in metrics


def test_own_data_and_rewards(folder: Path, strop: Strop) -> None:
    write_files("README.md", folder)
    said = obey(blocks("README.md", "run")["train on puzzles"], strop)
    assert "grpo on puzzles: 4 prompts" in said
    _, first, *_, metrics = all_metrics(folder / "runs/puzzles")
    assert metrics["step"] == 12
    assert first["rewards/as_written/mean"] < 0.3
    assert metrics["rewards/as_written/mean"] > 0.9
    assert 0 <= metrics["puzzles/products"] <= 1
    assert metrics["rewards/frac_unscored"] == 0
    expected = metrics["rewards/as_written/mean"] + 0.1 * metrics["rewards/short/mean"]
    assert metrics["reward"] == pytest.approx(expected, rel=1e-5)


def test_a_run_from_python(folder: Path) -> None:
    printed, names = io.StringIO(), {"__name__": "readme"}
    with contextlib.redirect_stdout(printed):
        exec(compile(blocks("README.md", "run")["python"], "README.md", "exec"), names)
    run: Any = names["run"]
    assert run.finished
    assert [line["step"] for line in all_metrics(run.folder)] == [*range(21)]
    assert last_metrics(run.folder)["reward"] > 0.6
    assert "tiny (0.33 M parameters" in printed.getvalue()
    assert "pass@8" in printed.getvalue()


def test_functional_prints_what_the_page_shows() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(blocks("README.md", "run")["functional"], "README.md", "exec"), {})
    assert printed.getvalue() == blocks("README.md", "output")["functional"]


def test_a_part_of_ones_own(folder: Path, strop: Strop) -> None:
    write_files("docs/EXTENDING.md", folder)
    obey(blocks("docs/EXTENDING.md", "run")["part"], strop)
    text = (folder / "runs/part/config.toml").read_text(encoding="utf-8")
    assert '"advantage.subtract_group_best.share" = 0.9' in text
    module = importlib.import_module("test_subtract_group_best")
    tests = [name for name in vars(module) if name.startswith("test_")]
    assert len(tests) == 2
    for name in tests:
        getattr(module, name)()


def test_a_loss_term_of_ones_own(folder: Path, strop: Strop) -> None:
    write_files("docs/EXTENDING.md", folder)
    obey(blocks("docs/EXTENDING.md", "run")["term"], strop)
    paths = config.load(folder / "runs/term/config.toml").build().paths()
    assert (paths["terms.unlikely.coef"], paths["terms.unlikely.objective.floor"]) == (0.1, -3)
    part: Any = importlib.import_module("penalise_unlikely_tokens")
    logp_T = torch.tensor([-4.0, -2.0], requires_grad=True)
    objective_T = part.PenaliseUnlikelyTokens(floor=-3.0)(logp_T)
    assert objective_T.tolist() == [-1, 0]
    objective_T.sum().backward()
    assert logp_T.grad is not None
    assert logp_T.grad.tolist() == [1, 0]


def test_a_recipe_of_ones_own(folder: Path, strop: Strop) -> None:
    write_files("docs/EXTENDING.md", folder)
    obey(blocks("docs/EXTENDING.md", "run")["recipe"], strop)
    algorithm = config.load(folder / "runs/recipe/config.toml").build()
    assert [use.label for use in algorithm.selection] == ["drop_truncated_rollouts"]
    assert algorithm.paths()["terms.policy.objective.clip_high"] == 0.3


def test_a_column_with_metric_chart_and_line_of_ones_own(folder: Path, strop: Strop) -> None:
    write_files("docs/EXTENDING.md", folder)
    assert "repeats/mean 0." in obey(blocks("docs/EXTENDING.md", "run")["column"], strop)
    assert 0 <= last_metrics(folder / "runs/column")["repeats/mean"] < 1
    (folder / "repeats.py").write_text("raise SystemExit", encoding="utf-8")  # nothing imports it
    assert strop("report", "runs/column", "--out", "again.html").code == 0
    for page in ("runs/column/report.html", "again.html"):
        assert "<h3>Repeats</h3>" in (folder / page).read_text(encoding="utf-8")


def test_an_environment_of_ones_own(folder: Path, strop: Strop) -> None:
    write_files("docs/EXTENDING.md", folder)
    obey(blocks("docs/EXTENDING.md", "run")["environment"], strop)
    assert last_metrics(folder / "runs/environment")["episode/turns_mean"] > 1


def test_a_strategy_of_ones_own(folder: Path, strop: Strop) -> None:
    write_files("docs/EXTENDING.md", folder)
    obey(blocks("docs/EXTENDING.md", "run")["strategy"], strop)
    algorithm = config.load(folder / "runs/strategy/config.toml").build()
    assert algorithm.rollout.label == "sample_top_two"
    assert algorithm.rollout.part.top_k == 2


def test_the_strategies_that_are_shown_are_those_of_strop() -> None:
    """Line by line, in order; `...` stands for lines that are left out."""
    shown = blocks("docs/EXTENDING.md", "shown")
    assert len(shown) == 3
    for name, text in shown.items():
        source = (ROOT / "src/strop/parts/rollout" / name).read_text(encoding="utf-8")
        place, lines = 0, [line.strip() for line in source.splitlines()]
        for line in map(str.strip, text.splitlines()):
            if line != "...":
                assert line in lines[place:], (name, line)
                place = lines.index(line, place) + 1


def settings_in(text: str) -> list[str]:
    """The words with `=` of every `strop train` in a page, without the examples run above."""
    found = []
    for command in re.findall(r"^ {4}(strop train (?:.*\\\n)*.*)", text, re.M):
        words = shlex.split(command.replace("\\\n", " "), comments=True)[2:]
        found += [w for w in words if re.match(r"[\w.]+=", w)]
    return found


def test_a_tracker_as_its_page_says(strop: Strop, folder: Path) -> None:
    page = "docs/TRACKING.md"
    assert set(blocks(page, "run")) == {"tensorboard"}
    obey(blocks(page, "run")["tensorboard"], strop)
    assert len([*(folder / "runs/tracked/tensorboard").iterdir()]) == 1
    text = (ROOT / page).read_text(encoding="utf-8")
    assert all(f"strop[{kind}]" in text for kind in TRACKERS)


def test_given_answers_as_its_page_says(strop: Strop, folder: Path) -> None:
    page = "docs/GIVEN_ANSWERS.md"
    write_files(page, folder)
    assert set(blocks(page, "run")) == {
        "imitate", "label", "merge", "prefer", "beside", "own columns"
    }  # fmt: skip
    for name, words in (
        ("imitate", "nll"),
        ("label", "done"),
        ("prefer", "ranking_accuracy"),
        ("beside", "done"),
        ("own columns", "done"),
    ):
        assert words in obey(blocks(page, "run")[name], strop)
    exec(compile(blocks(page, "run")["merge"], page, "exec"), {})
    assert (folder / "runs/merged/model.safetensors").is_file()
    text = (ROOT / page).read_text(encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(re.findall(r"```python\n(.*?)```", text, re.S)[-1], page, "exec"), {})
    assert printed.getvalue() == "0.6733, pairs in order: 100%\n"


@pytest.mark.parametrize("page", ["README.md", "docs/NOTATION.md", "docs/RUN_FOLDER.md"])
def test_settings_in_commands_exist(page: str) -> None:
    words = settings_in((ROOT / page).read_text(encoding="utf-8"))
    raw = override({}, words)
    own = raw.pop("algorithm", {})
    config.make(raw)
    for path, value in own.items():
        fitting = 0
        for recipe in ("grpo", "mc_grpo", "entrocraft"):
            with contextlib.suppress(UserError):
                config.make({"recipe": recipe, "algorithm": {path: value}}).build()
                fitting += 1
        assert fitting, f"{path}={value} fits no recipe"


def test_configuration_files_in_the_notation_page_can_be_read(tmp_path: Path) -> None:
    text = (ROOT / "docs/NOTATION.md").read_text(encoding="utf-8")
    found = re.findall(r"(?:^ {4}(?:\[|\w+ = |\"[\w.]+\" = ).*\n(?:^ *\n(?= {4}))?)+", text, re.M)
    assert len(found) == 4
    for number, block in enumerate(found):
        path = tmp_path / f"{number}.toml"
        path.write_text(re.sub(r"^ {4}", "", block, flags=re.M), encoding="utf-8")
        config.load(path).build()
