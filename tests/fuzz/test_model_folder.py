"""Damaged model folders: each is read whole, or refused in one line."""

import json
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from doors import Outcomes
from models import save_model

from strop.head.head import check_head
from strop.support.errors import UserError
from strop.training.learner import models

VALUES: tuple[Any, ...] = ("x", None, -1, 1.5, [], {}, True, "\ud800", 10**30, [None])
FOLDERS = 40


def read(folder: str) -> None:
    loaded = models.load(folder)
    check_head(loaded.model)
    assert loaded.stop_ids is not None


def described(folder: str) -> None:
    models.skeleton(folder)
    models.tokenizer_of(folder)


def damage(folder: Path, rng: random.Random) -> None:
    """One value, some bytes or a whole file of a folder is another one or missing."""
    path = rng.choice(sorted(folder.iterdir()))
    content = path.read_bytes()
    how = rng.choice(("value", "value", "cut", "byte", "other", "missing", "folder"))
    if how == "value" and path.suffix == ".json":
        raw = inner = json.loads(content)
        key = rng.choice(list(inner))
        while isinstance(inner[key], dict) and inner[key]:
            inner = inner[key]
            key = rng.choice(list(inner))
        inner[key] = rng.choice(VALUES)
        path.write_text(json.dumps(raw))
    elif how == "cut":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif how == "other":
        path.write_text(rng.choice(("", "[]", "3", "null", "{}")))
    elif how in ("missing", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
    else:
        place = rng.randrange(min(len(content), 3000))
        path.write_bytes(content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :])


def test_damaged_folders(tmp_path: Path) -> None:
    whole, rng, outcomes = save_model(tmp_path / "whole"), random.Random(0), Outcomes()
    for number in range(FOLDERS):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        damage(folder, rng)
        outcomes.of(read, str(folder))
        outcomes.of(described, str(folder))
    outcomes.check()


def test_a_field_of_another_type_is_named(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "hidden_size": "x"}))
    with pytest.raises(UserError, match=r"cannot load the model .*hidden_size.*expected int"):
        models.load(str(folder))


def test_threads_load_models_beside_each_other(tmp_path: Path) -> None:
    folder, found = str(save_model(tmp_path / "model")), []
    threads = [threading.Thread(target=lambda: found.append(models.load(folder))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
