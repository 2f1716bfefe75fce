"""Which shipped model a run starts with, and the task that belongs to it."""

from pathlib import Path

import pytest

from strop.api.options import settings_of
from strop.assets import SHIPPED
from strop.catalogue import catalogue
from strop.training.settings.config import RunConfig


def test_recipes_name_shipped_models_only():
    named = {entry.line("Model") for entry in catalogue.recipes()}
    assert named == {"", "tiny-worked"}
    assert "tiny-worked" in SHIPPED


@pytest.mark.parametrize(
    ("words", "model", "task"),
    [
        (["grpo"], "tiny", "countdown"),
        ([], "tiny", "countdown"),
        (["latr"], "tiny-worked", "worked_countdown"),
        (["latr(G=4)"], "tiny-worked", "worked_countdown"),
        (["until(0.5, grpo(beta=0.1)) | latr(G=4)"], "tiny-worked", "worked_countdown"),
        (["until(0.5, grpo) | rloo"], "tiny", "countdown"),
        (["latr", "model.name=tiny"], "tiny", "countdown"),
        (["latr", "data.task=countdown"], "tiny-worked", "countdown"),
    ],
)
def test_a_recipe_may_need_a_model_and_a_model_brings_its_task(words, model, task):
    settings = settings_of(words, {}, None)
    assert (settings.model.name, settings.data.task) == (model, task)
    assert settings.training.steps == 200  # the settings of a shipped model


def test_settings_to_begin_with_are_those_of_the_model():
    for words in (["grpo", "model.name=some/model"], ["latr", "model.name='some/model'"]):
        settings = settings_of(words, {}, None)
        assert settings.training.lr == RunConfig(model={"name": "some/model"}).training.lr
    assert settings_of(["grpo", "model.name=tiny-worked"], {}, None).data.task == "worked_countdown"


def test_a_model_that_is_given_wins():
    settings = settings_of(["latr"], {"model": {"name": "tiny"}}, None)
    assert (settings.model.name, settings.data.task) == ("tiny", "countdown")
    assert RunConfig(model={"name": "tiny-worked"}).data.task == "worked_countdown"
    assert RunConfig(model={"name": "some/model"}).data.task == "countdown"


def test_files_are_given_in_place_of_a_task(tmp_path: Path):
    settings = settings_of(["grpo"], {"data": {"files": [str(tmp_path / "rows.jsonl")]}}, None)
    assert settings.data.task == ""
