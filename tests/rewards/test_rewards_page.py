"""The examples of docs/REWARDS.md do what the page says, as they stand there."""

import re
from pathlib import Path

import commands
import pyarrow.parquet as pq
import pytest
from commands import Strop, server
from judge_server import serve
from test_examples import blocks, last_metrics, obey
from test_reward_model import save
from verifiers_stand_in import write_verifiers

from strop.data.row_layouts import LAYOUTS
from strop.rewards.code import RunTests
from strop.rewards.judge import JudgeSettings
from strop.rewards.source import BUILT_IN

PAGE = "docs/REWARDS.md"
TEXT = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
RUN = blocks(PAGE, "run")


@pytest.fixture
def strop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Strop:
    return Strop(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in blocks(PAGE, "file").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def rows_of(run: str) -> list[dict[str, object]]:
    (path,) = Path("runs", run, "rollouts").glob("*.parquet")
    return pq.read_table(path).to_pylist()


def trained(name: str, strop: Strop) -> tuple[list[dict[str, object]], dict[str, float]]:
    """The rollouts and the last metrics of an example's run."""
    obey(RUN[name], strop)
    return rows_of(name), last_metrics(Path("runs", name))


def test_every_example_is_tested() -> None:
    assert set(RUN) == {
        "trl", "verl", "openrlhf", "verifiers", "model", "judge", "code", "gsm8k", "profiles",
        "factory", "task", "flaws",
    }  # fmt: skip


def answers(row: dict[str, object]) -> tuple[str, str]:
    """What was said to a sum, and the right answer."""
    return str(row["completion"]).strip(), {"3+5=": "8", "2+9=": "11"}[str(row["prompt"])]


def test_trl(strop: Strop) -> None:
    rows, metrics = trained("trl", strop)
    assert len(rows) == 8
    assert all(row["answer_given"] == answers(row)[0] for row in rows)
    assert [row["reward"] for row in rows] == [float(a == b) for a, b in map(answers, rows)]
    mean = sum(len(str(row["completion"])) for row in rows) / 8
    assert metrics["sums/mean_length"] == pytest.approx(mean)


def test_profiles(strop: Strop) -> None:
    rows, metrics = trained("profiles", strop)
    for row in rows:
        right, length = len(set(answers(row))) == 1, len(str(row["completion"]))
        speed = min(1.0 + length / 10, 3.0)
        expected = 0.5 * (1.0 + speed + min(length / 6, 1.0)) if right and length else 0.0
        assert row["reward"] == pytest.approx(expected)
    assert 0 <= metrics["profile/dropped_fraction"] <= 1


def test_verl(strop: Strop) -> None:
    rows, metrics = trained("verl", strop)
    right = [a == b for a, b in map(answers, rows)]
    assert [row["reward"] for row in rows] == [1.0 if r else -1.0 for r in right]
    assert [row["compute_score/acc"] for row in rows] == right
    assert [row["compute_score/pred"] for row in rows] == [answers(row)[0] for row in rows]
    assert metrics["rewards/compute_score/acc"] == pytest.approx(sum(right) / 8)


def test_openrlhf(strop: Strop) -> None:
    rows, metrics = trained("openrlhf", strop)
    assert [row["reward"] for row in rows] == [float(a == b) for a, b in map(answers, rows)]
    lengths = [len(str(row["completion"])) for row in rows]
    assert [row["reward_func/answer_length"] for row in rows] == lengths
    assert metrics["rewards/reward_func/answer_length"] == pytest.approx(sum(lengths) / 8)


def test_verifiers(strop: Strop) -> None:
    rows, _ = trained("verifiers", strop)
    assert [row["reward/right"] for row in rows] == [float(a == b) for a, b in map(answers, rows)]
    for prompt in ("3+5=", "2+9="):
        group = [row for row in rows if row["prompt"] == prompt]
        least = min(len(str(row["completion"])) for row in group)
        assert [row["reward/shortest"] for row in group] == pytest.approx(
            [0.1 * (len(str(row["completion"])) == least) for row in group]
        )


def test_factory(strop: Strop) -> None:
    rows, metrics = trained("factory", strop)
    tokens = [int(str(row["length"])) for row in rows]
    assert [row["reward"] for row in rows] == [-min(max((n - 2) / 4, 0), 1) for n in tokens]
    assert "rewards/get_soft_limit/mean" in metrics


def test_task(strop: Strop, folder: Path) -> None:
    write_verifiers(folder)
    rows, metrics = trained("task", strop)
    right = [float(a == b) for a, b in map(answers, rows)]
    short = [1 - min(len(answers(row)[0]), 10) / 10 for row in rows]
    assert [row["SumTask/right"] for row in rows] == right
    assert [row["SumTask/turns"] for row in rows] == [1.0] * 8
    assert [row["reward"] for row in rows] == pytest.approx(
        [a + 0.1 * b for a, b in zip(right, short, strict=True)]
    )
    assert metrics["rewards/SumTask/short"] == pytest.approx(sum(short) / 8)
    assert metrics["rewards/frac_unscored"] == 0


def test_flaws(strop: Strop) -> None:
    """Every command of the path, each with a step of few answers."""
    small = "evaluation.every=0 sampling.num_prompts=2 training.rollouts_every=1"
    text = RUN["flaws"].replace("num_rollouts=16", "num_rollouts=2").replace("000120", "000001")
    for number in ("60", "120", "100"):
        text = text.replace(f"training.steps={number}", f"training.steps=1 {small}")
    text = text.replace("evaluation.every=40", "").replace("000060", "000001")
    obey(text.replace("fapo ", "fapo sampling.num_rollouts=2 rollout.max_tokens=12 "), strop)
    (path,) = Path("runs/fapo/rollouts").glob("*.parquet")
    assert "reward/flaw" in pq.read_table(path).column_names
    assert "flaws/frac_right" in last_metrics(Path("runs/fapo"))
    assert "judge/frac_right" in last_metrics(Path("runs/judge"))


def test_model(strop: Strop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "SMALL", server())  # whose copies have what the model needs
    save(folder / "my-reward-model")
    rows, metrics = trained("model", strop)
    scores = {row["prompt"] + row["completion"]: row["reward"] for row in rows}
    assert len(set(scores.values())) == len(scores) > 1
    assert metrics["rewards/frac_unscored"] == 0
    assert "rewards/my-reward-model/mean" in metrics


def test_judge(strop: Strop, folder: Path) -> None:
    def judged(body: dict[str, object]) -> str:
        text = str(body["messages"])
        assert "Reference answer: " in text
        return "Poor.\nScore: 2" if "3+5" in text else "Score: 5"

    with serve(judged) as served:
        path = folder / "judge.toml"
        path.write_text(path.read_text().replace("http://127.0.0.1:8000/v1", served.url))
        rows, metrics = trained("judge", strop)
    assert {(row["prompt"], row["reward"]) for row in rows} == {("3+5=", 0.25), ("2+9=", 1.0)}
    assert {row["judge"] for row in rows} == {"Poor.\nScore: 2", "Score: 5"}
    assert metrics["rewards/frac_unscored"] == 0


def test_code(strop: Strop) -> None:
    rows, _ = trained("code", strop)
    # Whatever compiles passes the first of two tests, "8 == 3" never holds.
    assert {row["reward/run_tests"] for row in rows} <= {0.0, 0.5}
    assert {row["reward/run_python"] for row in rows} == {0.0}  # nothing of six letters prints
    for row in rows:
        case = "case 2" if row["reward/run_tests"] else "case 1"
        assert str(row["run_tests/failure"]).startswith(case)


def test_gsm8k(strop: Strop) -> None:
    rows, metrics = trained("gsm8k", strop)
    assert {row["prompt"] for row in rows} == {"3+5=", "600+400="}
    assert metrics["rewards/frac_unscored"] == 0


def test_tables_hold_every_name() -> None:
    for name in (*BUILT_IN, *(f"`{reader}`" for reader in LAYOUTS if reader != "auto")):
        assert name in TEXT
    for key in JudgeSettings.model_fields:
        assert f"`{key}`" in TEXT
    for option in RunTests.__init__.__annotations__.keys() - {"return"}:
        assert re.search(rf"`{option}`\s\(", TEXT)
