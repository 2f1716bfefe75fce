"""A model or data set that the hub does not have is refused at once, with one sentence."""

import contextlib
import json
import time

import datasets
import huggingface_hub
import pytest
from fakes.loopback import loopback

from strop.environments.data_files import load_data
from strop.support import hub as _hub
from strop.support.errors import UserError
from strop.training.learner import models

KNOWN = "someone/small"


class Hub:
    """Knows one model and one gated one; `asked` holds the paths that it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, asked):
        self.asked.append(asked.path)
        name = asked.path.removeprefix("/api/models/").removeprefix("/api/datasets/")
        code = {KNOWN: "", "someone/gated": "GatedRepo", "someone/broken": "?"}.get(
            name, "RepoNotFound"
        )
        status = {"": 200, "GatedRepo": 403, "?": 500}.get(code, 404)
        told = {"Content-Type": "application/json", **({"X-Error-Code": code} if code else {})}
        return status, json.dumps({"id": name, "tags": [], "siblings": []}), told


@pytest.fixture
def hub(monkeypatch):
    found = Hub()
    with loopback(found, keeps=False) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield found
    with contextlib.suppress(AttributeError):
        huggingface_hub.close_session()


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nothing listens
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield
    with contextlib.suppress(AttributeError):
        huggingface_hub.close_session()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache of the hub's client that has one model."""
    place = tmp_path / "hub" / "models--someone--cached"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    (place / "snapshots" / "abc").mkdir(parents=True)
    (place / "snapshots" / "abc" / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tinny", r"'tinny' \(did you mean 'tiny'\?\): it is no folder, and the hub has none"),
        ("someone/nothing", "private one needs HF_TOKEN.*what ships with strop: tiny, tiny-worked"),
        ("someone/gated", "those alone who were let in on its page"),
        ("a/b/c", "no name of the hub, such as USER/NAME"),
    ],
)
@pytest.mark.parametrize("reads", [models.load, models.skeleton, models.tokenizer_of])
def test_a_name_that_is_none_is_asked_for_once(hub, name, why, reads):
    with pytest.raises(UserError, match=f"no model .*{why}"):
        reads(name)
    assert len(hub.asked) == (name != "a/b/c")


def test_a_hub_that_fails_is_told_from_one_that_has_nothing(hub):
    with pytest.raises(UserError, match=r"gives no answer \(.*500.*\): without a network"):
        models.load("someone/broken")
    assert len(hub.asked) == 1


def test_without_a_network_nothing_is_tried_again(no_network, cache, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits to try again"))
    with pytest.raises(
        UserError, match=r"the hub's cache here \(HF_HOME\), and http://127.0.0.1:9"
    ):
        models.load("someone/new")
    assert _hub.only_cached("someone/cached")


def test_who_is_offline_reads_the_cache_alone(cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert _hub.only_cached("someone/cached")
    with pytest.raises(UserError, match="HF_HUB_OFFLINE forbids to ask"):
        models.load("someone/new")


def test_what_the_hub_has_is_read_from_there(hub, cache):
    assert not _hub.only_cached(KNOWN)
    assert hub.asked == [f"/api/models/{KNOWN}"]
    assert _hub.only_cached("someone/cached")  # which the hub has no more


def test_data_sets_too(hub, monkeypatch):
    with pytest.raises(UserError, match="hf:someone/none:test cannot be read: the hub has none"):
        load_data("hf:someone/none:test")
    assert hub.asked == ["/api/datasets/someone/none"]


@pytest.mark.parametrize(
    ("name", "kept"), [("someone/GSM8K-Hard", "someone___gsm8_k-hard"), ("plain", "plain")]
)
def test_a_data_set_that_was_read_before_is_not_asked_for(hub, monkeypatch, tmp_path, name, kept):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    rows = datasets.Dataset.from_list([{"prompt": "1+1=", "answer": "2"}])
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **more: rows)
    (tmp_path / kept).mkdir()
    assert len(load_data(f"hf:{name}:test").train) == 1
    assert hub.asked == []
    (tmp_path / kept).rmdir()
    with pytest.raises(UserError, match="the hub has none"):
        load_data(f"hf:{name}:test")
