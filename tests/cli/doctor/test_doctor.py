"""`strop doctor`: each diagnosis on a run made for it, a trial of rewards, the memory estimate."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Strop
from models import Lab
from options import known_options

from strop.catalogue import catalogue
from strop.method import notation
from strop.training.learner import models

PAGE = Path(__file__).parents[3] / "docs" / "COMING_FROM_TRL_AND_VERL.md"
PROJECT = Path(__file__).parents[3] / "pyproject.toml"
HEALTHY = {
    "loss": 0.01, "grad_norm": 0.3, "learning_rate": 1e-4, "reward": 0.5,
    "frac_reward_zero_std": 0.25, "groups/frac_all_0": 0.125, "groups/frac_all_1": 0.125,
    "groups/frac_mixed": 0.75, "groups/frac_rollouts_with_gradient": 1.0,
    "groups/frac_updates_empty": 0.0, "entropy": 0.8, "completions/clipped_ratio": 0.0,
    "rewards/frac_unscored": 0.0, "sampling/sampling_logp_difference/mean": 1e-6,
    "data/rollouts_sampled": 16, "data/rollouts_kept": 16,
}  # fmt: skip
PROMPTS = 8  # in the pool; two a step, so an epoch has four steps


def make_run(folder: Path, num_steps: int = 12, **changed: Any) -> Path:
    """A run whose metrics are HEALTHY, changed by values or functions of the step."""
    (folder / "rollouts").mkdir(parents=True)
    config = f'recipe = "grpo"\n[training]\nsteps = {num_steps}\n'
    (folder / "config.toml").write_text(config, encoding="utf-8")
    lines = []
    for step in range(1, num_steps + 1):
        whole = {**HEALTHY, "num_tokens": 100 * step, "data/epoch": 2 * step / PROMPTS, **changed}
        values = {k: v(step) if callable(v) else v for k, v in whole.items()}
        lines.append({"step": step, **values})
        rows = [_row(step, uid, n) for uid in _uids(step) for n in range(4)]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"rollouts/step-{step:06d}.parquet")
    write(folder, lines)
    return folder


def write(folder: Path, lines: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _uids(step: int) -> list[int]:
    first = 2 * (step - 1) % PROMPTS
    return [first, first + 1]


def _row(step: int, uid: int, n: int) -> dict[str, Any]:
    """Prompt 0 is solved by every rollout, prompt 1 by none, the others by half."""
    reward = 1.0 if uid == 0 else 0.0 if uid == 1 else float(n % 2)
    advantage = 0.0 if uid < 2 else reward - 0.5
    return {"step": step, "uid": uid, "draw": 0, "prompt": f"prompt {uid}", "reward": reward,
            "advantage": advantage, "scored": True}  # fmt: skip


@pytest.fixture
def ask(strop: Strop) -> Any:
    """Calls doctor with --json: exit code and the findings by the first words of the question."""

    def call(*words: str | Path) -> tuple[int, dict[str, Any]]:
        result = strop("doctor", *words, "--json")
        return result.code, {f["question"]: f for f in json.loads(result.out)["findings"]}

    return call


STANDS_STILL = "Does reward stand still because steps are too large?"


@pytest.mark.parametrize(
    ("reward", "moved", "status"),
    [
        (lambda step: 0.5 + 0.01 * (-1) ** step, 0.05, "note"),
        (lambda step: 0.5 + 0.01 * (-1) ** step, 0.01, "ok"),  # small steps
        (lambda step: 0.01 * step, 0.05, "ok"),  # it learns
        (lambda step: 0.5, 0.0, "unknown"),  # one update
    ],
)
def test_a_plateau_of_large_steps(
    ask: Any, tmp_path: Path, reward: Any, moved: float, status: str
) -> None:
    run = make_run(tmp_path / "run", 36, reward=reward, approx_kl=moved, num_rollouts=16)
    found = ask(run)[1][STANDS_STILL]
    assert found["status"] == status
    if status == "unknown":
        assert found["answer"] == "Each step has one update, so nothing is seen to move."
    if status == "note":
        assert found["numbers"]["answers for a nat"] == pytest.approx(320)
        assert "lower training.lr fivefold" in found["advice"]


def test_a_plateau_takes_thirty_steps(ask: Any, tmp_path: Path) -> None:
    found = ask(make_run(tmp_path / "run", 8, approx_kl=0.05))[1][STANDS_STILL]
    assert found["status"] == "unknown"
    assert found["answer"] == "8 steps have a reward; this takes 30 or more."


def only_problem(findings: dict[str, Any]) -> dict[str, Any]:
    (found,) = [f for f in findings.values() if f["status"] == "problem"]
    return found


def test_a_healthy_run_has_no_problem(ask: Any, tmp_path: Path) -> None:
    code, findings = ask(make_run(tmp_path / "run"))

    assert code == 0
    assert len(findings) == 12
    # it has not asked, has one update a step
    for question in ("Does the method differ from its parent?", STANDS_STILL):
        assert findings.pop(question)["status"] == "unknown"
    assert {f["status"] for f in findings.values()} == {"ok"}
    assert findings["Did resuming skip or repeat data?"]["numbers"]["stored rollouts"] == 96


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"learning_rate": 0.0, "loss": 0.0}, "learning rate is 0"),
        ({"loss": 0.0, "grad_norm": 0.0, "groups/frac_rollouts_with_gradient": 0.0,
          "groups/frac_updates_empty": 1.0}, "no rollout with a gradient"),
        ({"loss": 0.0, "grad_norm": 0.0, "groups/frac_rollouts_with_gradient": 0.0},
         "No rollout that selection leaves has an advantage other than 0"),
        ({"loss": 0.0, "grad_norm": 0.0, "data/rollouts_kept": 0}, "Curation drops every rollout"),
        ({"loss": 0.0, "grad_norm": 0.0}, "a reason other than the usual ones"),
    ],
)  # fmt: skip
def test_a_loss_of_zero_that_is_a_fault(
    ask: Any, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    code, findings = ask(make_run(tmp_path / "run", **changed))

    assert code == 1
    found = only_problem(findings)
    assert found["question"] == "Why is the loss 0?"
    assert message in found["answer"]


def test_equal_rewards_explain_the_loss_and_the_groups(ask: Any, tmp_path: Path) -> None:
    equal = {"frac_reward_zero_std": 1.0, "groups/frac_all_1": 1.0, "groups/frac_all_0": 0.0}
    code, findings = ask(make_run(tmp_path / "run", **{**equal, "loss": 0.0, "grad_norm": 0.0}))

    assert code == 1
    assert "rewards are equal" in findings["Why is the loss 0?"]["answer"]
    groups = findings["Which groups give no signal?"]
    assert groups["status"] == "problem"
    assert "harder prompts" in groups["advice"]


def test_a_loss_of_zero_with_a_gradient_is_normal(ask: Any, tmp_path: Path) -> None:
    code, findings = ask(make_run(tmp_path / "run", loss=1e-9))

    assert code == 0
    assert "By construction" in findings["Why is the loss 0?"]["answer"]


def test_a_learning_rate_that_ends_at_zero_is_no_fault(ask: Any, tmp_path: Path) -> None:
    code, _ = ask(make_run(tmp_path / "run", learning_rate=lambda step: 1e-4 * (1 - step / 12)))

    assert code == 0


def test_uniform_prompts_are_listed_by_how_often(ask: Any, tmp_path: Path) -> None:
    _, findings = ask(make_run(tmp_path / "run"))

    prompts = findings["Which groups give no signal?"]["numbers"]["prompts"]
    told = [(p["uid"], p["uniform"], p["groups"], p["reward"]) for p in prompts]
    assert told == [(0, 3, 3, 1.0), (1, 3, 3, 0.0)]


@pytest.mark.parametrize(("last", "status"), [(0.05, "problem"), (0.3, "note"), (0.7, "ok")])
def test_entropy_that_falls(ask: Any, tmp_path: Path, last: float, status: str) -> None:
    run = make_run(tmp_path / "run", entropy=lambda step: 0.8 + (last - 0.8) * (step - 1) / 11)
    code, findings = ask(run)

    found = findings["How does entropy move, and why?"]
    assert found["status"] == status
    assert found["numbers"]["last"] == pytest.approx(last)
    assert found["numbers"]["positive share at last"] == 0.5
    assert code == (status == "problem")


def test_a_mismatch_is_a_problem_with_one_update_and_a_note_with_several(
    ask: Any, tmp_path: Path
) -> None:
    name = "sampling/sampling_logp_difference/mean"
    grown = {name: lambda step: 0.01 * step}
    code, findings = ask(make_run(tmp_path / "one", **grown))
    several = {"updates/of_policy": 2.0}
    code_of_several, theirs = ask(make_run(tmp_path / "several", **several, **grown))

    found = only_problem(findings)
    assert code == 1
    assert found["numbers"]["first"] == 0.01
    assert found["numbers"]["late"] == pytest.approx(0.105)
    assert code_of_several == 0
    assert theirs["Do sampler and trainer disagree?"]["status"] == "note"
    code, old = ask(make_run(tmp_path / "old", **grown, **{"sampling/age_steps": 1.5}))
    assert (code, old["Do sampler and trainer disagree?"]["status"]) == (0, "note")
    assert "are 1.5 steps old" in old["Do sampler and trainer disagree?"]["answer"]


def test_experts_that_lose_their_tokens_are_a_problem(ask: Any, tmp_path: Path) -> None:
    dead, load = "router/frac_dead_experts", {"router/max_load": 2.0}
    code, found = ask(make_run(tmp_path / "even", **load, **{dead: 0.05}))
    assert (code, found["Do experts collapse?"]["status"]) == (0, "ok")
    lost = {dead: lambda step: 0.05 * step, "router/frac_tokens_mismatched": 0.1}
    code, found = ask(make_run(tmp_path / "lost", **load, **lost))
    assert code == 1
    only = only_problem(found)
    assert only["numbers"] == {
        "first": 0.05, "late": pytest.approx(0.525), "busiest": 2.0
    }  # fmt: skip
    assert "model.router_aux_loss_coef" in only["advice"]


def measured(across: Any, cosine: float, kl: float) -> dict[str, Any]:
    """What a run of the terms policy and kl measured: kl is the share of that term's gradient."""
    return {
        **{f"conflict/policy_kl/{block}": cosine for block in ("all", "head", "upper")},
        "conflict/across/policy_kl/all": across, "conflict/cancelled": 0.1,
        "conflict/floor/policy/all": 0.5, "conflict/floor/kl/all": 0.6,
        "conflict/share/kl": kl, "conflict/share/policy": 1 - kl,
    }  # fmt: skip


def test_terms_that_pull_apart_are_told_above_the_noise(ask: Any, tmp_path: Path) -> None:
    """Across halves -.4 or -.2; noise: as far from 0 on either side; price: 1 - |g| / orthogonal's.

    Shares of 1/2 and cosine -.6: |g| = sqrt(1 - .6) / sqrt(2) of the sum, sqrt(.4) of orthogonal.
    """
    apart = {"across": lambda step: -0.4 + 0.2 * (step % 2), "cosine": -0.6}
    question = "Do two terms of the loss pull apart?"
    code, found = ask(make_run(tmp_path / "apart", **measured(**apart, kl=0.5)))
    assert (code, found[question]["status"]) == (0, "note")
    numbers = found[question]["numbers"]
    assert numbers["policy, kl: across halves"] == pytest.approx(-0.3)
    assert numbers["policy, kl: error"] == pytest.approx(0.1 / 11**0.5)
    assert numbers["policy, kl: lost"] == pytest.approx(1 - 0.4**0.5)
    assert "(head -0.60, upper -0.60)" in found[question]["answer"]
    _, found = ask(make_run(tmp_path / "small", **measured(**apart, kl=0.01)))
    assert found[question]["status"] == "ok"
    assert "They pull apart, which takes 1%" in found[question]["answer"]
    noise = measured(lambda step: 0.4 * (-1) ** step, cosine=-0.6, kl=0.5)
    _, found = ask(make_run(tmp_path / "noise", **noise))
    assert found[question]["status"] == "ok"
    assert "not pull apart by more than noise" in found[question]["answer"]
    _, found = ask(make_run(tmp_path / "few", num_steps=4, **measured(**apart, kl=0.5)))
    assert found[question]["status"] == "unknown"
    _, found = ask(make_run(tmp_path / "none"))
    assert question not in found


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda lines: lines[:4] + lines[6:], "missing: step 5, 6"),
        (lambda lines: lines[:5] + lines[4:], "written more than once: step 5"),
        (lambda lines: [{**line, "num_tokens": 5} if line["step"] == 7 else line
                        for line in lines], "num_tokens falls at step 7"),
        (lambda lines: [{**line, "data/epoch": line["data/epoch"] + 2 * (line["step"] > 6)}
                        for line in lines], "data/epoch jumps at step 7"),
    ],
)  # fmt: skip
def test_faults_of_resuming(ask: Any, tmp_path: Path, break_it: Any, message: str) -> None:
    run = make_run(tmp_path / "run")
    write(run, break_it(lines_of(run)))
    code, findings = ask(run)

    assert code == 1
    assert message in only_problem(findings)["answer"]


def test_a_prompt_twice_within_an_epoch(ask: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    repeated = [_row(6, 3, n) for n in range(4)] + [_row(6, 0, n) for n in range(4)]
    pq.write_table(pa.Table.from_pylist(repeated), run / "rollouts/step-000006.parquet")
    code, findings = ask(run)  # step 5 of the same epoch has the prompts 0 and 1

    assert code == 1
    assert "uid 0" in only_problem(findings)["answer"]


def test_groups_of_earlier_steps_are_no_repeated_prompts(ask: Any, tmp_path: Path) -> None:
    """A store's draws of step s are numbered from s * 2**20, also those that step s itself takes;
    groups that wait for their last answers are numbered by how often they began.
    """
    run = make_run(tmp_path / "run")
    rows = [_row(6, uid, n) | {"draw": draw << 20} for uid, draw in ((2, 6), (3, 0), (0, 5), (1, 1))
            for n in range(4)]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), run / "rollouts/step-000006.parquet")
    code, findings = ask(run)  # step 5 of the same epoch drew the prompts 0 and 1
    assert (code, findings["Did resuming skip or repeat data?"]["status"]) == (0, "ok")

    again = [row | {"draw": 0} if row["uid"] == 1 else row for row in rows]
    pq.write_table(pa.Table.from_pylist(again), run / "rollouts/step-000006.parquet")
    assert "uid 1" in only_problem(ask(run)[1])["answer"]


@pytest.mark.parametrize(
    ("changed", "question"),
    [
        ({"completions/clipped_ratio": 0.5}, "Are answers cut off?"),
        ({"rewards/frac_unscored": 0.2}, "Do reward functions fail?"),
        ({"kl": lambda step: None if step == 3 else 0.1}, "Is anything not finite?"),
    ],
)
def test_other_problems(ask: Any, tmp_path: Path, changed: dict[str, Any], question: str) -> None:
    code, findings = ask(make_run(tmp_path / "run", **changed))

    assert code == 1
    assert only_problem(findings)["question"] == question


def test_answers_to_which_no_reward_applied_have_not_failed(ask: Any, tmp_path: Path) -> None:
    for name, failed in (("none", {}), ("failed", {"exit/reward_bug": 0.2})):
        _, findings = ask(make_run(tmp_path / name, **{"rewards/frac_unscored": 0.2}, **failed))
        answer = findings["Do reward functions fail?"]["answer"]
        assert ("None of them failed: no reward applied" in answer) == (name == "none")


@pytest.mark.parametrize(
    ("on_failure", "message"),
    [
        ('"unscored"', "count them with reward.on_failure=0"),
        ("0.5", "a failure counts as 0.5 and the worst answer got 0: set reward.on_failure=0"),
        ("0.0", ""),
    ],
)
def test_a_failure_that_pays_is_a_problem(
    ask: Any, tmp_path: Path, on_failure: str, message: str
) -> None:
    run = make_run(tmp_path / "run", **{"exit/exception": 0.02})
    with (run / "config.toml").open("a") as file:
        file.write(f"[reward]\non_failure = {on_failure}\n")
    code, findings = ask(run)
    found = findings["Do reward functions fail?"]
    assert code == bool(message)
    assert found["status"] == ("problem" if message else "note")
    assert "exception 2.00%" in found["answer"]
    assert message in found["advice"]


def test_agents_that_all_fail_are_told_without_blaming_a_reward_function(
    ask: Any, tmp_path: Path
) -> None:
    changed = {"exit/exception": 1.0, "frac_reward_zero_std": 1.0, "rewards/agent/mean": 0.0}
    code, findings = ask(make_run(tmp_path / "run", **changed))
    assert code == 1
    assert "Do reward functions fail?" not in findings
    found = findings["Do episodes fail?"]
    assert (found["status"], "exit_why" in found["advice"]) == ("problem", True)
    assert findings["How do episodes and answers end?"]["status"] == "note"
    assert "episode fails" in findings["Why is the loss 0?"]["answer"]
    _, findings = ask(make_run(tmp_path / "judged", **changed, **{"rewards/mine/mean": 0.0}))
    assert "Do reward functions fail?" in findings
    lost = {"exit/environment_crash": 1.0, "rewards/frac_unscored": 1.0, "episode/turns_mean": 1.0}
    run = make_run(tmp_path / "lost", **lost)  # no reward has a mean
    assert "Do episodes fail?" in ask(run)[1]
    with (run / "config.toml").open("a") as file:
        file.write('[reward]\nfunctions = ["mine.py:mine"]\n')
    assert "Do reward functions fail?" in ask(run)[1]


def test_a_cut_that_counts_as_going_on_is_told(ask: Any, tmp_path: Path) -> None:
    changed = {"completions/clipped_ratio": 0.5, "bootstrap/value_mean": 0.7, "reward": 0.4}
    _, findings = ask(make_run(tmp_path / "run", **changed))
    found = findings["Are answers cut off?"]
    assert "values what would follow the cut at 0.7 (mean reward 0.4)" in found["answer"]
    assert "bootstrap_truncated=false" in found["advice"]


def test_a_folder_that_is_no_run_is_refused(strop: Strop, tmp_path: Path) -> None:
    result = strop("doctor", tmp_path)

    assert result.code == 2
    assert "metrics.jsonl" in result.err


def test_a_run_is_not_mixed_with_other_options(strop: Strop, tmp_path: Path) -> None:
    result = strop("doctor", make_run(tmp_path / "run"), "training.lr=1")

    assert result.code == 2
    assert "leave the other options out" in result.err


def test_text_names_question_answer_and_advice(strop: Strop, tmp_path: Path) -> None:
    result = strop("doctor", make_run(tmp_path / "run", **{"completions/clipped_ratio": 0.5}))

    assert result.code == 1
    assert "Are answers cut off?  problem" in result.out
    assert "50.0% of the answers" in result.out
    assert "Do: raise rollout.max_tokens" in result.out


REWARD = """
def careful(completions, answer, **columns):
    return [float(text == wanted) for text, wanted in zip(completions, answer)]


def careless(completions, answer, **columns):
    return [float(int(text) == int(wanted)) for text, wanted in zip(completions, answer)]
"""


def save_sums(folder: Path) -> tuple[Path, Path]:
    rows = [("1+2:", "3"), ("1+2:", "3"), ("12+12:", "24")]
    data, rewards = folder / "sums.jsonl", folder / "rewards.py"
    text = "".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in rows)
    data.write_text(text, encoding="utf-8")
    rewards.write_text(REWARD, encoding="utf-8")
    return data, rewards


@pytest.mark.parametrize("renamed", [["data.columns={sum: prompt}"], ["--map", "sum=prompt"]])
def test_data_and_a_reward_are_tried(
    ask: Any, lab: Lab, tmp_path: Path, renamed: list[str]
) -> None:
    data, rewards = save_sums(tmp_path)
    data.write_text(data.read_text().replace('"prompt"', '"sum"'))
    code, findings = ask("--model", lab.model, "--data", data, "--reward", f"{rewards}:careful",
                         "rollout.max_tokens=8", *renamed)  # fmt: skip

    assert code == 0
    assert findings["Are prompts repeated?"]["numbers"] == {"rows": 3, "distinct": 2}
    fit = findings["Do the prompts fit?"]["numbers"]
    assert (fit["min"], fit["max"], fit["limit"]) == (4, 6, 56)
    assert fit["mean"] == pytest.approx(14 / 3)
    trial = findings["Do the reward functions work?"]["numbers"]["trial"]
    scores = {row["answer"]: row["scores"] for row in trial}
    assert scores == {"empty": [0, 0, 0], "prompt": [0, 0, 0], "reference": [1, 1, 1]}


def test_episodes_that_begin_alike_are_no_repeated_prompts(ask: Any) -> None:
    _, findings = ask("--model", "tiny", "recipe=gigpo", "data.task=corridor")

    assert "Do the prompts fit?" in findings
    assert "Are prompts repeated?" not in findings


def test_a_reward_that_raises_is_a_problem(ask: Any, tmp_path: Path) -> None:
    data, rewards = save_sums(tmp_path)
    code, findings = ask("--data", data, "--reward", f"{rewards}:careless")

    assert code == 1
    found = only_problem(findings)
    assert "invalid literal for int()" in found["answer"]
    failed = {row["answer"]: len(row["failures"]) for row in found["numbers"]["trial"]}
    assert failed == {"empty": 3, "prompt": 3, "reference": 0}


def test_prompts_that_are_too_long_are_a_problem(ask: Any, lab: Lab, tmp_path: Path) -> None:
    data, rewards = save_sums(tmp_path)
    code, findings = ask("--model", lab.model, "--data", data, "--reward", f"{rewards}:careful",
                         "rollout.max_tokens=59")  # fmt: skip

    assert code == 1
    assert only_problem(findings)["numbers"]["too_long"] == 1


def test_the_estimate_counts_no_prompt_that_a_run_leaves_out(
    strop: Strop, lab: Lab, tmp_path: Path
) -> None:
    data, _ = save_sums(tmp_path)
    words = ("--model", lab.model, "--data", data, "data.overlong=drop", "--json")
    for limit, longest in (("data.max_prompt_tokens=5", 4), ("data.max_prompt_tokens=6", 6)):
        report = json.loads(strop("doctor", *words, "rollout.max_tokens=8", limit).out)
        assert report["model"]["assumed"]["prompt"] == longest


def test_given_answers_are_as_long_as_the_data_have_them(
    ask: Any, strop: Strop, lab: Lab, tmp_path: Path
) -> None:
    data, _ = save_sums(tmp_path)
    data.write_text(data.read_text().replace('"answer"', '"completion"'))
    words = ("--model", lab.model, "--data", data, "recipe=sft")
    code, findings = ask(*words)
    assert code == 0
    assert findings["Do the prompts fit?"]["numbers"]["limit"] == 64 - 1  # as a run cuts them
    report = json.loads(strop("doctor", *words, "--json").out)
    assert report["model"]["assumed"]["max_tokens"] == 2 + 1  # 24 and its end


def test_the_model_s_numbers_are_those_of_the_loaded_one(strop: Strop, lab: Lab) -> None:
    loaded = models.load(str(lab.model))
    count = sum(p.numel() for p in loaded.model.parameters())
    result = strop("doctor", "--model", lab.model, "rollout.max_tokens=6", "--json")
    report = json.loads(result.out)
    told, (fits,) = report["model"], report["findings"]

    assert result.code == 0
    assert told["parameters"] == told["trained"] == count
    assert told["bytes"].keys() == told["formulas"].keys()
    assert told["counts"].keys() == told["where"].keys()
    largest = max(fits["numbers"][f"{phase}_gib"] for phase in ("generating", "updating"))
    assert f"About {largest:.2f} GiB at the peak" in fits["answer"]


def test_the_estimate_as_text_has_formulas_counts_and_what_is_left_out(
    strop: Strop, lab: Lab
) -> None:
    result = strop("doctor", "--model", lab.model, "recipe=dapo", "rollout.max_tokens=6")

    assert re.search(r"kv_cache +\d+\.\d+ GiB = slots \* places", result.out)
    assert re.search(r"where slots +512 = min\(training.num_slots", result.out)
    assert "Left out: Python with torch" in result.out


def test_without_a_run_versions_and_packages(strop: Strop) -> None:
    result = strop("doctor", "--json")
    machine = json.loads(result.out)["machine"]

    assert result.code == 0
    assert set(machine["versions"]) == {"python", "strop", "torch", "transformers"}
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    for extra, (needed, *_) in extras.items():
        if extra not in ("test", "docs", "lint"):
            told = machine["packages"][re.match(r"[\w-]+", needed)[0]]["for"]
            assert f"strop[{extra}]" in told
    assert machine["devices"][0]["memory_gib"] > 0


def ours(heading: str) -> list[str]:
    """What stands between backticks in the first column of the table under a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_option_of_the_page_for_newcomers_exists() -> None:
    options = {name for name in ours("Options") if re.fullmatch(r"[a-z]+(\.[a-z_]+)+", name)}

    assert len(options) > 35
    assert options <= known_options()


def test_every_option_in_the_text_of_the_page_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    options = set(
        re.findall(r"`((?:sampling|plan|training|loss|reward)\.[a-z_]+)(?:=[^`]*)?`", text)
    )
    theirs = set(re.findall(r"^\|[^|]*\|(.*)$", text, re.MULTILINE))
    inside = {name for name in options if not any(f"`{name}`" in row for row in theirs)}

    assert {"loss.dual_clip_c", "plan.num_epochs", "training.token_budget"} <= inside
    assert inside <= known_options()


def test_every_recipe_of_the_page_exists() -> None:
    names = {entry.name for entry in catalogue.recipes()}
    called = [text for text in ours("Options") if "(" in text]
    found = [*called, *ours("Methods")]

    assert len(found) > 15
    assert {text.partition("(")[0] for text in found} <= names
    for text in found:
        assert notation.recipe(text).terms
