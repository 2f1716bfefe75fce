"""The documentation says what the code does: metrics, settings, columns, files, methods."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from models import Lab
from runs import Runner

from strop import catalogue
from strop.evaluation.samples import Samples
from strop.evaluation.summary import summarise
from strop.training import config

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RECIPES = (
    "grpo",
    "entrocraft",
    "dapo",
    "clip_cov",
    "mc_grpo",
    "adaptive_entropy_coef",
    "entropic",
    "gpg",
    "kl_cov",
    "bapo",
    "forking_token_mask",
    "steer",
    "hapo",
    "rover",
    "arena_rl",
    "rif_rft",
    "remix",
    "v_zero",
    "v_half",
    "d3s",
    "noisy_grpo",
    "siren",
    "lp_reg",
    "aepo_agentic_loss",
    "aepo_arbitrary",
    "ares_aepo",
    "hpt",
    "rl_plus",
    "r3_replay_reflection_ranking",
    "skywork_ssb",
    "ace",
    "rose_tree",
    "spo_chain",
    "spo_tree(branching=(2, 2), segment_tokens=2)",
    "spae",
    "gae",
    "s_ppo",
    "progrpo",
    "aspo_tool",
    "rollout_correction",
    "vcpo",
    "vespo",
    "opsm",
    "ps_grpo",
    "tea_rl",
    "spine",
    "dph_rl(num_trials=2)",
)
# A penalty over the whole distribution: no recipe has one by default.
FULL_KL = """
import dataclasses

from strop.algorithm import Algorithm, Term
from strop.loss.penalty.penalise_full_kl_to_reference import PenaliseFullKlToReference
from strop.part import Use
from strop.recipes._base import average
from strop.recipes.grpo import grpo


def full_kl() -> Algorithm:
    algorithm = grpo()
    term = Term("full_kl", Use(PenaliseFullKlToReference()), average("token-mean"), coef=0.1)
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, term))
"""
# A reward that logs what recipes about the speed of programs ask for.
PROFILED = """

def profiled(completions, log_extra, **columns):
    for name, value in (("speedup", 2.0), ("profiled", 0.35), ("decoy", False)):
        log_extra(name, [value] * len(completions))
    return [float(sum(c.isdigit() for c in text) % 2 == 0) for text in completions]
"""
# A second head: no recipe has one.
TWO_HEADS = """
import dataclasses

from strop.algorithm import Algorithm, Term
from strop.loss.value.regress_value import RegressValue
from strop.part import Use
from strop.recipes._base import average
from strop.recipes.gae import gae


def two_heads() -> Algorithm:
    algorithm = gae()
    columns = (("value_T", "value_low_T"), ("value_old_T", "value_low_old_T"))
    low = Term("low", Use(RegressValue(), columns), average("token-mean"), learner="critic")
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, low))
"""


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def keys_of(text: str) -> list[str]:
    """The keys in the first column of every table with a formula."""
    found = []
    for table in re.findall(r"\| key \| formula .*?\n\n", text + "\n\n", re.S):
        found += re.findall(r"^\| `([^`]+)` \|", table, re.M)
    return found


def pattern_of(key: str) -> re.Pattern[str]:
    """`rewards/{name}/mean` as a pattern; keys of evaluations also with their intervals' ends."""
    plain = re.sub(r"\\{(\w+)\\}", lambda m: r"\d+" if m[1] == "k" else r"[^/]+", re.escape(key))
    return re.compile(plain + ("(/low|/high)?" if key.startswith("eval/") else ""))


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every key of a three-step run of each family, by recipe."""
    folder = tmp_path_factory.mktemp("logged")
    lab, runner = Lab.make(folder), Runner()
    rows = [json.loads(line) for line in lab.data.read_text(encoding="utf-8").splitlines()]
    rows = [  # a demonstration each, for hpt; two wordings of every question, for ps_grpo
        {**row, "completion": "1+1", "set": n // 2} for n, row in enumerate(rows)
    ]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = folder / "own.py"
    own.write_text(FULL_KL + TWO_HEADS, encoding="utf-8")
    found = {}
    for name in (*RECIPES, f'"{own}:full_kl"', f'"{own}:two_heads"'):
        out = folder / re.sub(r"\W", "", name)
        raw = lab.raw(name, reward="even", evaluation={"every": 3}, training={"save_every": 0})
        found[name] = keys_of_run(runner, raw, out)
    lab.rewards.write_text(lab.rewards.read_text(encoding="utf-8") + PROFILED, encoding="utf-8")
    raw = lab.raw("prs", reward="profiled", training={"save_every": 0})
    found["prs"] = keys_of_run(runner, raw, folder / "prs")
    pairs = [{**row, "chosen": "1+1", "rejected": "2"} for row in rows]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    for name in ("dpo", "skywork_mpo"):
        raw = lab.raw(name, reward="even", evaluation={"every": 3}, training={"save_every": 0})
        raw["algorithm"]["sampling.num_rollouts"] = 2
        found[name] = keys_of_run(runner, raw, folder / name)
    raw = lab.raw("entropy_sft", reward="even", training={"save_every": 0})
    raw["algorithm"]["sampling.num_rollouts"] = 1
    found["entropy_sft"] = keys_of_run(runner, raw, folder / "entropy_sft")
    plain = {"model": {"name": "tiny"}, "data": {"task": "corridor"}, "reward": {"functions": []}}
    raw = {**lab.raw("mrs", evaluation={"every": 3}, training={"save_every": 0}), **plain}
    found["corridor"] = keys_of_run(runner, raw, folder / "corridor")
    raw = {**lab.raw("archer(critic_epochs=2, warmup_steps=0)"), **plain}
    found["archer"] = keys_of_run(runner, raw, folder / "archer")
    raw = {**lab.raw("epo", training={"save_every": 0}), **plain}
    found["epo"] = keys_of_run(runner, raw, folder / "epo")
    game = {"model": {"name": "tiny"}, "data": {"task": "hide_and_guess"}}
    raw = {**lab.raw("grpo", training={"save_every": 0}), **game, "reward": {"functions": []}}
    found["hide_and_guess"] = keys_of_run(runner, raw, folder / "hide_and_guess")
    return found


def keys_of_run(runner: Runner, raw: dict[str, Any], out: Path) -> set[str]:
    runner.whole(raw, out)
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {key for line in lines for key in json.loads(line)} - {"step"}


def in_runs(text: str) -> list[str]:
    """The keys that a run logs: all but those of `strop eval` alone."""
    return keys_of(text.split("`strop eval` prints")[0])


def test_every_logged_number_is_documented(logged: dict[str, set[str]]) -> None:
    patterns = [pattern_of(key) for key in in_runs(read("docs/METRICS.md"))]
    for recipe, keys in logged.items():
        unknown = [key for key in keys if not any(p.fullmatch(key) for p in patterns)]
        assert not unknown, f"{recipe} logs {unknown}, which docs/METRICS.md does not explain"


def test_every_documented_number_is_logged(logged: dict[str, set[str]]) -> None:
    everything = set().union(*logged.values())
    documented = in_runs(read("docs/METRICS.md"))
    assert len(documented) > 50
    assert len(set(documented)) == len(documented)
    unlogged = [k for k in documented if not any(pattern_of(k).fullmatch(f) for f in everything)]
    assert not unlogged


def test_every_number_of_an_evaluation_is_documented() -> None:
    text = read("docs/METRICS.md")
    alone = keys_of(text)[len(in_runs(text)) :]
    shared = [key.removeprefix("eval/{split}/") for key in in_runs(text) if "{split}" in key]
    patterns = [pattern_of(key) for key in (*alone, *shared)]
    samples = Samples(
        prompt_B=np.array([0, 0, 1, 1]), score_B=np.array([1.0, 0.0, 0.0, 1.0]),
        length_B=np.array([3, 4, 5, 6]), truncated_B=np.array([False, True, False, False]),
        answer_B=["1", "2", "3", None], confidence_B=np.array([-0.1, -0.2, -0.3, -0.4]),
        entropy_B=np.array([0.1, 0.2, 0.3, 0.4]),
    )  # fmt: skip
    found = summarise(samples, (1, 2))
    assert [key for key in found if not any(p.fullmatch(key) for p in patterns)] == []
    assert [p.pattern for p in patterns if not any(p.fullmatch(key) for key in found)] == []


def test_formulas_have_a_unit_and_a_scope() -> None:
    for line in read("docs/METRICS.md").splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        if line.startswith("| `") and len(cells) == 4:
            assert all(cell.strip() for cell in cells), line


def test_other_names_are_of_documented_metrics() -> None:
    text = read("docs/METRICS.md")
    ours = re.findall(r"^\| `([^`]+)` \|", text.split("## Names elsewhere")[1], re.M)
    assert len(ours) > 20
    assert set(ours) <= set(in_runs(text))


def write_catalogue() -> Any:
    spec = importlib.util.spec_from_file_location(
        "catalogue_tool", ROOT / "tools/write_catalogue.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date() -> None:
    for path, text in write_catalogue().wanted().items():
        now = path.read_text(encoding="utf-8")
        assert now == text, f"{path.name} is out of date: python tools/write_catalogue.py"


def test_generated_pages_hold_every_recipe_part_and_setting() -> None:
    for page, entries in (("METHODS", catalogue.recipes()), ("PARTS", catalogue.parts())):
        text = read(f"docs/{page}.md")
        for entry in entries:
            assert f"`{entry.name}`" in text
    notation = read("docs/NOTATION.md")
    assert all(f"| `{path}` |" in notation for path in config.settings())


def test_readme_says_how_long_the_first_run_is() -> None:
    settings = config.make(config.defaults("tiny"))
    paths = settings.build().paths()
    steps, prompts, answers = re.findall(
        r"(\d+)\s+steps of (\d+) puzzles with (\d+) answers each", read("README.md")
    )[0]
    assert settings.training.steps == int(steps)
    assert paths["sampling.draw_in_shuffled_order.num_prompts"] == int(prompts)
    assert paths["sampling.draw_in_shuffled_order.num_rollouts"] == int(answers)
    every = re.findall(r"every (\d+) steps and at the end it validates", read("README.md"))
    assert every == [str(settings.evaluation.every)]


def test_readme_names_recipes_with_their_papers() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d{4}\.\d{5}) \|", read("README.md"), re.M))
    papers = {e.name: re.search(r"arXiv (\d{4}\.\d{5})", e.doc).group(1)  # type: ignore[union-attr]
              for e in catalogue.recipes()}  # fmt: skip
    assert len(rows) >= 10
    assert rows.items() <= papers.items()


def test_run_folder_holds_what_the_page_says(tmp_path: Path) -> None:
    lab, runner = Lab.make(tmp_path), Runner()
    run = runner.whole(lab.raw(), tmp_path / "run")
    page = read("docs/RUN_FOLDER.md")
    (table,) = re.findall(r"\| column \| meaning \|.*?\n\n", page, re.S)
    written = pq.read_schema(next((tmp_path / "run/rollouts").glob("*.parquet"))).names
    documented = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (`[^|]+) \|", table, re.M)))
    assert [name.replace("{name}", "digits") for name in documented] == written
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.toml", "metrics.jsonl", "rollouts", "checkpoints",
    }  # fmt: skip
    for name in ("config.json", "model.safetensors", "trainer.pt"):
        assert (run.checkpoints / "step-000003" / name).is_file()
        assert f"`{name}`" in page


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{p.name}" for p in DOCS.glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_named_files_exist(page: str) -> None:
    text = read(page)
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (folder / target).exists(), target
    for name in re.findall(r"`((?:src|tests|tools|docs)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name
    assert "TO BE FILLED" not in text


def test_readme_is_short() -> None:
    assert len(read("README.md").splitlines()) < 250
