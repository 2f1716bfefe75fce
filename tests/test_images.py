"""The Dockerfiles name existing files; no image is built here, as there is no Docker."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_a_dockerfile_copies_files_and_installs_extras_that_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    kept = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.M)
    copied = [each for line in re.findall(r"^COPY (.+)$", text, re.M) for each in line.split()[:-1]]
    assert copied
    assert set(copied) == set(kept)  # all else is left out of what the build is sent
    for path in (*copied, project["readme"], *project["license-files"]):
        assert (ROOT / path).exists(), path
        assert path in copied
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert re.search(r"pip install[^&]* -c \w+\.txt '\.", text)
    assert re.findall(r"^USER (\S+)$", text, re.M) == ["10001"]
    assert 'ENTRYPOINT ["strop"]' in text
    assert "strop" in project["scripts"]


def test_what_the_images_leave_to_others_is_pinned_here() -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )  # fmt: skip
    assert {"torch", "transformers", "numpy"} <= set(pins)
