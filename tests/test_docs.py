"""The documentation matches the code: metrics, settings, columns, files, methods."""

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from models import Lab
from runs import Runner

from strop import functional
from strop.catalogue import catalogue
from strop.catalogue.families import FAMILIES
from strop.method import notation
from strop.training.settings import config

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


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
    tool = write_catalogue()
    pages = tool.wanted()
    for path, text in pages.items():
        now = path.read_text(encoding="utf-8")
        assert now == text, f"{path.name} is out of date: python tools/write_catalogue.py"
    assert tool.unwanted(pages) == []


def test_methods_are_found_by_family_and_looked_up_on_its_page() -> None:
    index = read("docs/METHODS.md")
    assert len(index.encode()) < 60_000
    pages = {path.stem: path.read_text(encoding="utf-8") for path in DOCS.glob("methods/*.md")}
    assert set(pages) == {family.name for family in FAMILIES}
    for family in FAMILIES:
        assert pages[family.name].startswith(f"# {family.title}\n\n{family.sentence}\n")
        assert f"\n## {family.title}\n\n{family.sentence} " in index
    for entry in catalogue.recipes():
        family, when = entry.line("Family"), entry.line("Choose it when")
        assert f"| [`{entry.name}`](methods/{family}.md#{entry.name}) | {entry.arxiv} |" in index
        assert f"| {when} |" in index
        page = pages[family]
        section = page.partition(f"\n## {entry.name}\n")[2].partition("\n## ")[0]
        assert f"- Choose it when {when}.\n" in section
        assert entry.line("Differs from the paper") in section
        parent = entry.line("Parent")
        assert parent == "none" or f"Parent: [{parent}](" in section


def test_the_updates_beside_verls_are_those_of_the_recipes() -> None:
    table = read("docs/COMING_FROM_TRL_AND_VERL.md").partition("| recipe | updates a step |")[2]
    rows = [row.split("|")[1:3] for row in table.partition("\n\n")[0].splitlines()[2:]]
    assert len(rows) > 10
    for names, updates in rows:
        for name in re.findall("`(.+?)`", names):
            plan: Any = notation.recipe(name).algorithms[0].plan
            assert int(updates.split()[0].rstrip(",;")) == plan.part.num_updates, name


def test_an_old_page_of_a_family_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = write_catalogue()
    docs = shutil.copytree(DOCS, tmp_path / "docs")
    (docs / "methods/gone.md").write_text("# Gone\n", encoding="utf-8")
    monkeypatch.setattr(tool, "DOCS", docs)
    pages = tool.wanted()  # once: the recipes do not change on the way
    monkeypatch.setattr(tool, "wanted", lambda: pages)
    assert tool.main(["--check"]) == 1
    assert (docs / "methods/gone.md").exists()
    assert tool.main([]) == 0
    assert capsys.readouterr().out == (
        "no family has: docs/methods/gone.md\nremoved: docs/methods/gone.md\n"
    )
    assert tool.main(["--check"]) == 0


def test_generated_pages_hold_every_recipe_part_and_setting() -> None:
    for page, entries in (
        ("METHODS", catalogue.recipes()), ("PARTS", catalogue.parts()),
        ("PADDED", catalogue.recipes()),
    ):  # fmt: skip
        text = read(f"docs/{page}.md")
        for entry in entries:
            assert f"`{entry.name}`" in text
    doors = {*functional.__all__} - {"UserError"}
    told = read("docs/BATCH.md").partition("## Padded tensors")[2]
    assert not {name for name in doors if f"`{name}`" not in told and f".{name}(" not in told}
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
    run = runner.whole(lab.raw(training={"inspect": 64}), tmp_path / "run")
    page = read("docs/RUN_FOLDER.md")
    (table,) = re.findall(r"\| column \| meaning \|.*?\n\n", page, re.S)
    written = pq.read_schema(next((tmp_path / "run/rollouts").glob("*.parquet"))).names
    documented = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (`[^|]+) \|", table, re.M)))
    assert [name.replace("{name}", "digits") for name in documented] == written
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.toml", "data.json", "environment.json", "metrics.jsonl", "rollouts", "tokens",
        "checkpoints", "relatives.json", "end.json",
    }  # fmt: skip
    for name in ("config.json", "model.safetensors", "trainer.pt"):
        assert (run.checkpoints / "step-000003" / name).is_file()
        assert f"`{name}`" in page


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{p.relative_to(DOCS).as_posix()}" for p in DOCS.rglob("*.md")),
]


def anchors(text: str) -> set[str]:
    """The names by which a page's headings are reached."""
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_named_files_exist(page: str) -> None:
    text = read(page)
    folder = (ROOT / page).parent
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        if not target.startswith("https://"):
            assert (folder / target).exists(), target
            if anchor:
                there = (folder / target).read_text(encoding="utf-8") if target else text
                assert anchor in anchors(there), f"{target}#{anchor}"
    for target in re.findall(r'<img src="([^"]*)"', text):
        assert (folder / target).is_file(), target
    named = r"`((?:src|tests|docs)/[\w./]+|tools/[\w/]+\.\w+)`"  # tools/ok is a metric
    for name in re.findall(named, text):
        assert (ROOT / name).exists(), name
    assert "TO BE FILLED" not in text


def test_pictures_are_small_and_shown() -> None:
    shown = "".join(read(page) for page in PAGES)
    for path in (DOCS / "pictures").iterdir():
        assert path.stat().st_size < 150_000, path.name
        assert f"pictures/{path.name}" in shown


def test_readme_is_short() -> None:
    assert len(read("README.md").splitlines()) < 250


def test_the_set_up_is_two_commands_that_the_continuous_integration_runs_too() -> None:
    block = re.findall(r"(?:^    .+\n)+", read("README.md"), re.M)[0]
    install = "pip install -c constraints.txt -e "
    run, test = (line.strip().split(" && ") for line in block.splitlines())
    assert run == [f"{install}.", "strop train"]
    assert test == [f"{install}'.[test]'", "pytest"]
    assert re.search(
        r"-c constraints\.txt -e '\.\[lint,test\]'\n(.*\n)+.* pytest --dur", read(".ci/run")
    )
