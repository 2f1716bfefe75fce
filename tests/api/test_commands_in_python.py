"""The commands other than training, called from a script."""

import importlib.util
import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from short import column, even, rows_of, trained

import strop
from strop import UserError
from strop.api import compare
from strop.api.messages import in_python
from strop.cli.main import app
from strop.engines.local.engine import LocalEngine
from strop.training.services.run import RunServices

ONE = {"group": 2, "success": 0.3, "staleness": 0, "updates": 1}


@pytest.fixture(scope="module")
def run(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> strop.Run:
    folder = tmp_path_factory.mktemp("asked") / "run"
    return trained(lab, out=folder, training_rollouts_every=1, training_steps=6,
                   training_save_every=0)  # fmt: skip


def test_no_name_of_the_front_door_is_that_of_a_folder() -> None:
    """Importing a folder would put it in the name's place."""
    for name in strop.__all__:
        assert importlib.util.find_spec(f"strop.{name}") is None, name


def test_every_command_has_a_function_or_a_method_of_a_run() -> None:
    # that write or list what a script imports, and what are programs of their own
    files = {"init", "schema", "recipes", "parts", "labs"}
    names = {info.name.replace("eval", "evaluate") for info in app.registered_commands if info.name}
    for name in names - files:
        assert hasattr(strop, name) or hasattr(strop.Run, name), name


def test_the_doctor_says_what_the_command_says(run: Any, strop_command: Any) -> None:
    told = json.loads(strop_command("doctor", run.folder, "--json").out)
    found = run.doctor()
    assert [each.question for each in found.findings] == [x["question"] for x in told["findings"]]
    assert len(found.problems) == told["problems"]
    assert found.findings[0].answer in repr(found)
    assert "<td" in found._repr_html_()
    with pytest.raises(UserError, match="leave the other arguments out"):
        strop.doctor(run, model="tiny")


def changed(run: Any, folder: Path, step: int = 0, **metrics: Any) -> Path:
    """A copy of the run, with other metrics and other times in a step."""
    shutil.copytree(run.folder, folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"timing_s/rollout": 7.0, **(metrics if line["step"] == step else {})}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_equal_runs_are_told_from_others(run: Any, tmp_path: Path, strop_command: Any) -> None:
    """The copies differ in times alone, in a loss, in a setting, in one token."""
    twin = changed(run, tmp_path / "twin")
    found = strop.diff(run, twin)
    assert (found.same, found.step, found.looked_at, found.causes) == (True, None, 6, ())
    assert "are the same, bit for bit: all metrics of 6 steps" in repr(found)
    assert "step None" not in repr(found)
    assert strop_command("diff", run.folder, twin).code == 0

    measured = changed(run, tmp_path / "measured", 4, **{"conflict/cancelled": 0.1})
    assert strop.diff(run, measured).same

    other = changed(run, tmp_path / "loss", 4, grad_norm=1e3, learning_rate=5.0)
    config = (other / "config.toml").read_text()
    config = config.replace("seed = 0", "seed = 8", 1).replace("save_every = 0", "save_every = 9")
    (other / "config.toml").write_text(config)
    found = strop.diff(run, other)
    assert (found.step, found.stage, found.looked_at, found.columns) == (4, "loss", 4, ())
    assert [part.name for part in found.metrics] == ["grad_norm", "learning_rate"]
    assert found.causes == ("seed: 0 in the first, 8 in the second",)
    assert found.idle == ("training.save_every: 0 in the first, 9 in the second",)
    assert "more columns and metrics" not in repr(found)
    assert "All kept rollouts and tokens of step 4 are the same." in repr(found)

    path = changed(run, tmp_path / "token", 3, reward=9.0) / "tokens" / "step-000002.parquet"
    table = pq.read_table(path)
    ids = table["id_T"].to_pylist()
    ids[1][2] += 1
    place = table.column_names.index("id_T")
    pq.write_table(table.set_column(place, "id_T", pa.array(ids, table["id_T"].type)), path)
    found = strop.diff(run, tmp_path / "token")
    (part,) = found.columns
    assert (found.looked_at, found.stage, part.count) == (2, "rollout", 1)
    assert (part.first, part.b - part.a) == ("rollout 1, token 2", 1)
    result = strop_command("diff", run.folder, tmp_path / "token")
    assert (result.code, "part in step 2, stage rollout." in result.out) == (1, True)
    later = changed(run, tmp_path / "later", 5, **{"data/epoch": 9.0})
    shutil.rmtree(later / "tokens")
    shutil.copytree(tmp_path / "token/tokens", later / "tokens")
    found = strop.diff(run, later)  # tokens differ in step 2, and a metric of a stage before in 5
    assert found.metrics[0].stage == "sampling"
    assert found.lines[0].endswith("part in step 2, stage rollout.")
    assert "data/epoch" not in repr(found)
    as_json = json.loads(strop_command("diff", run.folder, tmp_path / "token", "--json").out)
    assert (as_json["same"], as_json["columns"][0]["name"]) == (False, "id_T")


def test_answers_of_a_validation_are_not_asked_for(run: Any, tmp_path: Path) -> None:
    name = "eval/validation/pass@1"
    a, b = (changed(run, tmp_path / f"{x}", 3, **{name: x}) for x in (0.25, 0.5))
    shutil.rmtree(b / "rollouts")
    found = strop.diff(a, b)
    assert (found.step, found.stage, found.looked_at) == (3, "validation", None)
    assert "rollouts_every" not in repr(found)
    config = (b / "config.toml").read_text()
    (b / "config.toml").write_text(config.replace("max_prompts = 64", "max_prompts = 8"))
    found = strop.diff(a, b)  # other prompts have other scores
    assert found.same
    assert "except those of time and of validations (their settings differ)" in repr(found)
    assert found.causes == ("evaluation.max_prompts: 64 in the first, 8 in the second",)


def test_runs_are_compared_as_far_as_both_go(run: Any, tmp_path: Path) -> None:
    short = changed(run, tmp_path / "short")
    lines = (short / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [each for each in lines if json.loads(each)["step"] < 5]
    (short / "metrics.jsonl").write_text("".join(kept))
    (short / "rollouts/step-000006.parquet").unlink()
    found = strop.diff(run, short)
    assert (found.same, found.lengths, found.looked_at) == (True, (6, 4), 5)
    assert "continues to step 6" in repr(found)
    path = short / "rollouts/step-000003.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.slice(0, len(rows) - 1), path)
    (part,) = strop.diff(run, short).columns
    assert (part.name, part.a - part.b) == ("rollouts kept", 1)


def test_runs_that_cannot_be_compared_are_refused(run: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run: it has no metrics"):
        strop.diff(run, tmp_path)
    empty = changed(run, tmp_path / "empty")
    (empty / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has no step yet"):
        strop.diff(empty, run)
    (empty / "metrics.jsonl").write_text('{"step": 90}\n')
    with pytest.raises(UserError, match="no step in common"):
        strop.diff(empty, run)


def test_the_doctor_tries_rows_and_rewards(lab: Any) -> None:
    found = strop.doctor(data=rows_of(lab.data), reward=even)
    assert (found.report["data"]["rows"], "model" in found.report) == (12, False)
    assert "even on empty: 1, 1, 1, 1" in repr(found)
    found = strop.doctor(model=lab.model, rollout_max_tokens=4)
    assert (found.report["model"]["context"] > 0, "data" in found.report) == (True, False)
    with pytest.raises(UserError, match="model is int: give its name"):
        strop.doctor(model=3)


def test_a_step_is_a_page_that_a_notebook_shows(run: Any) -> None:
    page = run.inspect(2)
    assert (page.step, page.path) == (2, run.folder / "inspect.html")
    assert page._repr_html_().startswith("<iframe srcdoc=")
    with pytest.raises(UserError, match="has kept no tokens of step 9"):
        strop.inspect(str(run.folder), 9)
    with pytest.raises(UserError, match="a run is int"):
        strop.inspect(3)
    with pytest.raises(UserError, match="run names 0 runs: give one run, or its folder"):
        strop.inspect(())
    with pytest.raises(UserError, match=r"out is '\\ud800': give a path"):
        run.inspect(out="\ud800")


def test_runs_are_watched_until_it_is_closed(run: Any) -> None:
    with strop.watch([run, run.folder]) as watching:
        with urllib.request.urlopen(watching.url) as page:
            assert b"complete, 6 steps" in page.read()
        assert watching.url in watching._repr_html_()
    with pytest.raises(OSError):
        urllib.request.urlopen(watching.url)


def test_a_plan_is_that_of_the_command(run: Any, strop_command: Any, tmp_path: Path) -> None:
    words = ["--workers", "1,2", "--out", tmp_path / "a.html"]
    said = strop_command("plan", run.folder, *words).out
    found = run.plan(workers=[2, 1])
    assert column(found.table, "workers") == [1, 1, 2, 2, 2, 2]
    assert all(line in said for line in found.proposals)
    assert found.save(tmp_path / "b.html").read_text() == (tmp_path / "a.html").read_text()
    assert "synchronous" in repr(found)
    assert "<td" in found._repr_html_()
    for given, message in (
        ({"workers": [0]}, "^workers=0: 0 is not between"), ({"workers": []}, "^workers=: nothing"),
        ({"spare": 20}, "^spare=20 is not"), ({"lengths": [1, 2, 3]}, "^lengths=1,2,3: give"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            run.plan(**given)
    with pytest.raises(UserError, match=r"plan MODEL --gpus N --kind KIND\), or .* extrapolate="):
        run.plan(workers=[1], lengths=[4000])
    assert run.plan(workers=[1], lengths=[4000], extrapolate=True).proposals


def test_an_audit_checks_all_methods_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.api.audit.audits", None)
    with pytest.raises(UserError, match="no parameter foo"):
        strop.audit(["grpo", "rloo(foo=1)"], **ONE)


def test_an_audit_has_the_numbers_of_the_command(strop_command: Any) -> None:
    words = [word for name, value in ONE.items() for word in (f"--{name}", str(value))]
    told = strop_command("audit", "grpo", *words, "--json").out.splitlines()
    found = strop.audit({"mine": strop.recipe("grpo")}, **ONE)
    assert column(found.table, "scale") == [json.loads(line)["scale"] for line in told]
    assert repr(found).startswith("mine on a tree of 4 answers")
    assert "<td" in found._repr_html_()
    for method in ("until(0.5, grpo) | rloo", strop.recipe("until(0.5, grpo) | rloo")):
        parts = strop.audit({"mine": method}, **{**ONE, "group": (2, 3)}).parts
        assert [[name for name, _ in part.found] for part in parts] == [["base", "group 2"]] * 2
    own = {"terms.policy.average.num_rollouts": 4}  # a divisor, whatever the group
    of_line, of_object = (
        column(strop.audit({"mine": method}, **ONE, **more).table, "scale")
        for method, more in (("grpo", own), (strop.recipe("grpo").with_knobs(own), {}))
    )
    assert of_line == of_object == [scale / 2 for scale in column(found.table, "scale")]
    halves = strop.audit("cure", **ONE)
    assert [part.label for part in halves.parts] == ["cure: sharpen"]
    assert "cure: explore is left out" in halves.left_out[0]
    for given, message in (
        ({"group": 0}, "^group=0: every"), ({"group": "2"}, "group is '2': give whole numbers"),
        ({"step": 0}, "^step=0: it must"), ({"methods": []}, "name the methods to audit"),
        ({"prompts": 0}, "^prompts=0: a step has"), ({"draws": 1}, "^draws=1: at least 40"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            strop.audit(**{"methods": "grpo", **ONE, **given})


def test_a_checkpoint_is_exported(run: Any, tmp_path: Path) -> None:
    place = strop.export(run, tmp_path / "model", dtype="bfloat16")
    assert json.loads((place / "config.json").read_text())["dtype"] == "bfloat16"
    with pytest.raises(UserError, match="model exists: give the name of a new folder"):
        strop.export(run.folder, place)
    with pytest.raises(UserError, match="a model that is loaded writes itself"):
        strop.export(run.model, tmp_path / "other")
    with pytest.raises(UserError, match="private goes with push='USER/MODEL'"):
        strop.export(run, tmp_path / "other", private=True)


def test_an_export_samples_as_many_tokens_as_its_run(lab: Any, tmp_path: Path) -> None:
    for name, changes in {"whole": {}, "adapter": {"model_lora_rank": 1}}.items():
        run = trained(lab, out=tmp_path / name, training_steps=1, **changes)
        place = strop.export(run, tmp_path / f"{name} exported")
        assert json.loads((place / "generation_config.json").read_text())["max_new_tokens"] == 4
        for most in (0, 6):
            scores = strop.evaluate(place, data=str(lab.data), reward=even, max_tokens=most)
            assert scores["completions/max_length"] == (most or 4)


def test_a_model_has_no_checkpoints(lab: Any, tmp_path: Path) -> None:
    named = r"step=7 names a checkpoint of a run, .* is a model: leave it out"
    with pytest.raises(UserError, match=named):
        strop.sample(str(lab.model), "1+1:", step=7)
    with pytest.raises(UserError, match=named):
        strop.export(str(lab.model), tmp_path / "other", step=7)
    with pytest.raises(UserError, match=r"step=7 and start= name a checkpoint of a run"):
        strop.evaluate(str(lab.model), step=7, start=True)


def test_a_model_that_cannot_be_scored_is_closed(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    for kind in (LocalEngine, RunServices):

        def close(self: Any, kind: Any = kind, own: Any = kind.close) -> None:
            closed.append(kind.__name__)
            own(self)

        monkeypatch.setattr(kind, "close", close)
    with pytest.raises(UserError, match=r"no file nofile\.py"):
        strop.evaluate(str(lab.model), data=rows_of(lab.data), reward=even, samples=2, k=1,
                       data_validation_size=1, evaluation_reward="nofile.py:x")  # fmt: skip
    assert closed == ["RunServices", "LocalEngine"]


def test_a_sweep_is_a_comparison_of_values(
    lab: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan; `strop.compare` carries it out."""
    monkeypatch.setattr(compare, "_carried_out", lambda plan, *_: plan)
    plan: Any = strop.sweep(
        "grpo", {"training_lr": [1e-4, 1e-3], "loss_clip_high": "grid(0.2,0.3)"}, seeds=2,
        model=str(lab.model), data=rows_of(lab.data), reward=even, training_steps=2,
        data_heldout_size=2,
    )  # fmt: skip
    assert (plan.swept, plan.seeds) == ("grpo", (0, 1))
    rates, clips = ("0.0001", "0.001"), ("0.2", "0.3")
    wanted = [f"training.lr={rate} loss.clip_high={clip}" for rate in rates for clip in clips]
    assert [entry.label for entry in plan.entries] == wanted
    assert plan.entries[3].values == (("training.lr", "0.001"), ("loss.clip_high", "0.3"))
    for values in ({}, [1], {3: [1]}, {"training_lr": 3}, {"training_lr": "3"}):
        with pytest.raises(UserError, match=r"values is|give its values|has one value"):
            strop.sweep("grpo", values)
    with pytest.raises(UserError, match=r"loss_clip_high=0.2..0.4 is a range, in which compare"):
        strop.sweep("grpo", {"training_lr": [1e-4, 1e-3]}, loss_clip_high="0.2..0.4")
    with pytest.raises(UserError, match=r"training.lr is swept and has one value too"):
        strop.sweep("grpo", {"training_lr": [1e-4, 1e-3]}, training_lr=1e-3)


def test_messages_name_keywords() -> None:
    assert in_python("give --split train or --data FILE") == "give split='train' or data= FILE"
    assert in_python("--prompts -1: give 0, or --k 8") == "prompts=-1: give 0, or k=8"
    assert in_python("`strop compare --resume a/b`") == "`strop.resume_comparison('a/b')`"
    assert in_python("--metric is one of a, b; --mean x") == "metric= is one of a, b; mean= x"
    assert in_python("`strop sequence --resume a/b`") == "`strop sequence --resume a/b`"
    assert in_python("no option loss.k, did you mean plan.k?") == (
        "no option loss.k, did you mean plan_k?"
    )
    assert in_python("n is here data.files, --data; loss has loss.k") == (
        "n is here data_files, data=; loss has loss.k"
    )
    assert in_python("no option k, did you mean terms.kl.coef or mine.k?") == (
        "no option k, did you mean terms.kl.coef or mine.k?"
    )
