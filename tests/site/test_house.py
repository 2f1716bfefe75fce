"""The picture of the rooms follows the source and the layers that import-linter checks."""

from collections import Counter
from pathlib import Path

from docsite import house

FILES = {
    "top/__init__.py": "from p.middle import a\nfrom p.ground.one import x\n",
    "middle/a.py": "def f():\n    import p.beside\n",
    "beside.py": "from p.middle.a import f\n",
    "ground/one.py": "from p.ground import two\n",
    "ground/two.py": "if TYPE_CHECKING:\n    from p.top import x\n",
}
CONTRACT = """
[[tool.importlinter.contracts]]
type = "forbidden"
[[tool.importlinter.contracts]]
type = "layers"
containers = ["p"]
layers = ["top", "middle %s beside", "ground"]
"""


def built(folder: Path, between: str) -> tuple[house.House, int]:
    for name, text in FILES.items():
        path = folder / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "pyproject.toml").write_text(CONTRACT % between)
    imports = house.imports_of(folder / "p")
    (found,) = house.houses(imports, folder / "pyproject.toml")
    return found, house.circles(imports)


def test_rooms_arrows_circles_and_what_runs_upwards(tmp_path: Path) -> None:
    found, circles = built(tmp_path, "|")
    assert found.floors == [["top"], ["middle", "beside"], ["ground"]]
    assert found.imports == Counter({
        ("top", "middle"): 1, ("top", "ground"): 1, ("middle", "beside"): 1,
        ("beside", "middle"): 1, ("ground", "top"): 1,
    })  # fmt: skip
    assert found.lines["ground"] == 3
    assert set(found.upward()) == {("ground", "top"), ("middle", "beside"), ("beside", "middle")}
    assert circles == 2  # middle and beside; top and ground
    assert house.picture(found).count('class="arrow upward"') == 3
    assert built(tmp_path, ":")[0].upward() == [("ground", "top")]


def test_the_house_of_this_source_stands() -> None:
    text = house.page()
    assert 'data-room="cli"' in text
    assert 'data-room="learner"' in text
    assert "arrow upward" not in text
    assert text.count("| 0 | 0 |") == 2
