"""Users' files and the modules beside them: found, kept apart, refused if two share a name."""

import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import cloudpickle
import pytest
import torch
from commands import launch

from strop.support import loading as _loading
from strop.support.errors import UserError
from strop.support.loading import attribute, module_at, name_to_load, same_pickled, write_pickled


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(_loading, "_neighbours", {})
    monkeypatch.setattr(_loading, "_appended", set())
    before = dict(sys.modules)
    yield
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


PROGRAM = """
import sys
from pathlib import Path
from strop.support.loading import attribute, name_to_load, write_pickled

OFFSET = 2

class Mine:
    def value(self):
        return OFFSET + 1

assert name_to_load(Mine) == "__main__:Mine"
name = write_pickled(Mine, Path("mine.pickle"))
assert attribute(name) is Mine
assert name_to_load(Mine) == name
Path("mine.pickle").rename("other.pickle")
assert name_to_load(Mine) == "__main__:Mine"
"""


def test_what_a_script_defines_is_kept_in_a_file(tmp_path, monkeypatch):
    """It comes with what it refers to, and in the script itself it is the same."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    monkeypatch.chdir(tmp_path)
    kind = attribute("other.pickle:Mine")
    assert kind().value() == 3
    assert attribute("other.pickle:Mine") is kind
    assert name_to_load(kind) == "other.pickle:Mine"
    with pytest.raises(UserError, match=r"^other.pickle has no Yours$"):
        attribute("other.pickle:Yours")
    with pytest.raises(UserError, match=r"gone.pickle cannot be loaded: .*FileNotFoundError"):
        attribute("gone.pickle:Mine")
    (tmp_path / "broken.pickle").write_bytes(b"no pickle")
    with pytest.raises(UserError, match=r"broken.pickle cannot be loaded: .*UnpicklingError"):
        attribute("broken.pickle:Mine")


def test_what_cannot_be_kept_in_a_file_is_refused(tmp_path):
    lock = threading.Lock()

    def held():
        return lock

    with pytest.raises(UserError, match=r"held cannot be kept with the run .*give FILE.py:"):
        write_pickled(held, tmp_path / "held.pickle")


def test_what_a_function_defines_is_not_found_by_a_name():
    def inner():
        """It has no place of its own."""

    with pytest.raises(UserError, match="inner is defined inside a function: define it at the top"):
        attribute(name_to_load(inner))


def test_neighbours_are_found_while_a_file_loads_and_in_its_functions(tmp_path):
    folder = write(
        tmp_path / "mine",
        main="from near import VALUE\ndef late():\n    import far_off\n    return far_off.VALUE\n",
        near="VALUE = 3\n",
        far_off="VALUE = 4\n",
    )
    before = list(sys.path)
    module = module_at(f"{folder}/main.py")
    assert module.VALUE == 3
    assert module.late() == 4
    assert sys.path == [*before, str(folder)]  # behind all that is installed
    assert _loading.search_path() == before


def test_a_file_is_run_once_until_it_changes_and_keeps_the_name_that_it_was_given(tmp_path):
    write(tmp_path, part="class Part:\n    pass\n")
    first = attribute(f"{tmp_path}/part.py:Part")
    assert attribute(f"{tmp_path}/part.py:Part") is first
    assert _loading.name_to_load(first) == f"{tmp_path}/part.py:Part"
    other = write(tmp_path / "other", part="class Part:\n    size = 1\n")
    assert attribute(f"{other}/part.py:Part").size == 1
    assert _loading.name_to_load(first) == f"{tmp_path}/part.py:Part"
    write(tmp_path, part="class Part:\n    size = 22\n")
    assert attribute(f"{tmp_path}/part.py:Part").size == 22


def test_a_neighbour_with_the_name_of_an_installed_module_is_refused(tmp_path, monkeypatch):
    write(tmp_path, main="import colorsys\n", colorsys="VALUE = 1\n")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(UserError, match=r"main.py imports colorsys from its folder, and there is "
                       r"another colorsys, at .*lib.*colorsys.py: rename one"):  # fmt: skip
        module_at(f"{tmp_path}/main.py")
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)


def test_neighbours_of_two_files_are_kept_apart(tmp_path):
    one = write(tmp_path / "one", main="import near\nVALUE = near.VALUE\n", near="VALUE = 1\n")
    two = write(tmp_path / "two", main="import near\nVALUE = near.VALUE\n", near="VALUE = 2\n",
                alone="VALUE = 3\n")  # fmt: skip
    assert module_at(f"{one}/main.py").VALUE == 1
    assert module_at(f"{two}/alone.py").VALUE == 3  # it imports nothing
    message = rf"{two}/main.py imports near from its folder, .* another near, in {one}: rename"
    with pytest.raises(UserError, match=message):
        module_at(f"{two}/main.py")
    assert sys.modules["near"].VALUE == 1


def test_a_file_whose_folder_is_searched_anyway(tmp_path, monkeypatch):
    write(tmp_path, main="import near\n", near="VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.path)
    assert module_at(f"{tmp_path}/main.py").near.VALUE == 1
    assert sys.path == before


def test_modules_by_name_are_found_in_the_working_folder(tmp_path, monkeypatch):
    write(tmp_path / "pack", deep="VALUE = 7\n")
    monkeypatch.chdir(tmp_path)
    assert attribute("pack.deep:VALUE") == 7
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit(3)\n", r"main.py cannot be loaded: .*main.py:2: SystemExit: 3"),
        ("import near\n", r"main.py cannot be loaded: .*near.py:1: ZeroDivisionError"),
        (
            "from strop.batch.columns import Column\nColumn('mine_B', 'flaot', 'x')\n",
            r"main.py cannot be loaded: .*main.py:2: UserError: column mine_B: dtype 'flaot'",
        ),
        ("x = 1\ndef f(:\n", r"main.py cannot be loaded: .*main.py:2: SyntaxError"),
    ],
)
def test_a_file_that_does_not_load_is_named_with_the_line(tmp_path, text, message):
    write(tmp_path, main=text, near="1 / 0\n")
    before = list(sys.path)
    with pytest.raises(UserError, match=message):
        module_at(f"{tmp_path}/main.py")
    assert sys.path == [*before, str(tmp_path)]
    assert not [name for name in sys.modules if name.startswith("strop_user_main")]


RECIPE = """
from typing import Any

from strop.method.algorithm import Algorithm
from strop.recipes.grpo import grpo
from strop.recipes._inherit import inherits
from of_recipes import CLIP


@inherits(grpo, clip_high=CLIP)
def wider(**parent: Any) -> Algorithm:
    return grpo(**parent)
"""
ENVIRONMENT = """
from strop.environments.base import Environment, Observation
import of_environments


class Echo(Environment):
    max_turns, max_tokens = 1, 1

    def reset(self, seed):
        return Observation("1,2,3:1=")

    def step(self, action):
        import of_steps

        return Observation("", of_steps.worth(action), done=True)
"""


def test_recipe_and_environment_of_ones_own_with_neighbours_run_and_resume_elsewhere(
    tmp_path, monkeypatch
):
    recipes = write(tmp_path / "recipes", mine=RECIPE, of_recipes="CLIP = 0.28\n")
    tasks = write(tmp_path / "tasks", mine=ENVIRONMENT, of_environments="",
                  of_steps="def worth(action):\n    return float(action == '1')\n")  # fmt: skip
    elsewhere = write(tmp_path / "elsewhere")
    (elsewhere / "again").mkdir()
    run = tmp_path / "run"
    first = ("train", f'"{recipes}/mine.py:wider"', f"data.task={tasks}/mine.py:Echo",
             "data.train_size=4", "training.steps=1", "evaluation.every=0",
             "sampling.num_prompts=2", "sampling.num_rollouts=4", "--quiet",
             "--out", run)  # fmt: skip
    for folder, words in (
        (elsewhere, first),
        (elsewhere / "again", ("train", "--resume", run, "training.steps=2", "--quiet")),
    ):
        monkeypatch.chdir(folder)
        process = launch(words, tmp_path / "said.txt")
        process.join(120)
        assert process.exitcode == 0, Path(tmp_path / "said.txt").read_text()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert len([line for line in lines if '"step": 2' in line]) == 1
    config = tomllib.loads((run / "config.toml").read_text())
    assert 0.28 in config["algorithm"].values()


SCORING = '''
K = {"a": [1]}
class Scale:
    by: int = 1
    def of(self, letter): return letter in {"a", "b", "c"}
def helper(letters): return [Scale().of(letter) for letter in letters] or f
def f(a, *, b=2):
    """Scores."""
    def inner(z): return z + K["a"][0] + b
    return helper(a) and inner
'''


def _pickled(source, file="a.py", **names):
    found = {"__name__": "__main__", **names}
    exec(compile(source, file, "exec"), found)
    return cloudpickle.dumps(found["f"])


def test_equal_code_is_equal_wherever_it_stands():
    first = _pickled(SCORING)
    moved = _pickled(f"\n\n{SCORING}", "b.py")
    assert first != moved
    assert same_pickled(first, moved)
    changes = {"+ b": "- b", "[1]": "[2]", "b=2": "b=3", "int = 1": "int = 4", '"c"': '"d"'}
    for old, new in changes.items():
        assert not same_pickled(first, _pickled(SCORING.replace(old, new))), old
    summed = "def f(x): return values.sum()"
    ones, again, zeros = (
        _pickled(summed, values=torch.full((3,), value)) for value in (1.0, 1.0, 0.0)
    )
    assert same_pickled(ones, again)
    assert not same_pickled(ones, zeros)
