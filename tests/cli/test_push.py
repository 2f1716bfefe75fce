"""`strop export --push`: the uploads to a server with the hub's protocol, and its errors."""

import base64
import contextlib
import json

import huggingface_hub
import pytest
from fakes.loopback import loopback
from models import without_times

from strop.api.card import card
from strop.training.settings import config


class Hub:
    """Takes models, all files inside the commit; `seen` holds what it was sent."""

    def __init__(self):
        self.url, self.seen = "", {}

    def __call__(self, asked):
        path, name = asked.path.partition("?")[0], "someone/small"
        self.seen[path] = asked.body
        answers = {
            "/api/repos/create": {"url": f"{self.url}/{name}"},
            "/api/validate-yaml": {"errors": [], "warnings": []},
            f"/api/models/{name}/commit/main": {
                "commitUrl": f"{self.url}/{name}/commit/1", "commitOid": "1", "success": True
            },
        }  # fmt: skip
        if asked.path.startswith(f"/api/models/{name}/preupload/"):
            files = [each["path"] for each in json.loads(asked.body)["files"]]
            told = {"uploadMode": "regular", "shouldIgnore": False}
            answers[asked.path] = {"files": [{"path": path, **told} for path in files]}
        found = answers.get(path)
        refused = asked.headers.get("Authorization") != "Bearer hf_good"
        status = 401 if refused else 404 if found is None else 200
        text = json.dumps({"error": "Invalid credentials"} if refused else found or {})
        return status, text, {"Content-Type": "application/json"}


@pytest.fixture
def hub(monkeypatch):
    found = Hub()
    with loopback(found, keeps=False) as server:
        found.url = server.url
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_TOKEN", "hf_good")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield found
    with contextlib.suppress(AttributeError):
        huggingface_hub.close_session()


@pytest.fixture(scope="module")
def run(lab, tmp_path_factory):
    """A run of a step with a validation before and behind it."""
    from runs import Runner

    folder = tmp_path_factory.mktemp("run") / "run"
    raw = lab.raw(training={"steps": 1}, evaluation={"every": 1, "num_samples": 2})
    Runner().whole(raw, folder)
    return folder


def test_a_model_is_sent_with_a_page_about_its_run(strop, run, hub, tmp_path, lab):
    result = strop("export", run, tmp_path / "model", "--push", "someone/small", "--private")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(f"sent to {hub.url}/someone/small/commit/1\n")
    created = json.loads(hub.seen["/api/repos/create"])
    assert (created["name"], created["visibility"]) == ("small", "private")
    lines = hub.seen["/api/models/someone/small/commit/main"].splitlines()
    sent = [json.loads(line)["value"] for line in lines[1:]]
    files = {each["path"]: base64.b64decode(each["content"]) for each in sent}
    written = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert files == written
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    page = files["README.md"].decode()
    assert page.startswith('---\nlibrary_name: "transformers"\n')
    assert '- "grpo"\n---\n\n# small\n\n`model`, trained by `grpo` for 1 step ' in page
    assert "- Data: train\n- Rewards: digits\n" in page
    first, last = (line["eval/validation/pass@1"] for line in without_times(run))
    low = without_times(run)[1]["eval/validation/pass@1/low"]
    assert f"| validation/pass@1 | {first:.3f} (step 0) | {last:.3f} (step 1; 95% {low:.3f}" in page
    assert "| `training.lr` | 0.01 |" in page
    assert "from_pretrained('someone/small')" in page
    assert str(lab.data.parent) not in page


@pytest.mark.parametrize(
    ("given", "method", "data", "tag"),
    [
        ({"recipe": "until(4, grpo) | dapo"}, "`until(4, grpo) | dapo`", "countdown", ""),
        ({"recipe": "grpo(beta=0.1)"}, "`grpo(beta=0.1)`", "countdown", "grpo"),
        ({"recipe": '"/home/a/my.py:mine"(x=1)'}, "a method of its own", "countdown", ""),
        ({"data": {"task": "corridor + environment:/home/a/e.py:E"}}, "`grpo`", "corridor, e.py:E",
         "grpo"),
        ({"data": {"task": "traces:/home/a/t.jsonl"}}, "`grpo`", "t.jsonl", "grpo"),
    ],
)  # fmt: skip
def test_a_page_names_any_method_and_no_place_of_this_machine(run, given, method, data, tag):
    page = card("someone/small", config.make({"recipe": "grpo", **given}), run, 1)
    assert f"`tiny`, trained by {method} for 1 step with strop" in page
    assert f"- Data: {data}\n" in page
    assert [line for line in page.splitlines() if line.startswith("- ")][2:3] == (
        [f'- "{tag}"'] if tag else [f"- Data: {data}"]
    )
    assert "/home" not in page


def test_a_page_tells_no_key_of_a_tool(tmp_path):
    options = {"mcp": "server", "mcp_env": {"API_KEY": "sk-secret"}, "max_turns": 3}
    task = {"task": "tool_questions", "task_config": options}
    mixed = {"task": "corridor + b=tool_questions", "task_config": {"b": options}}
    for data in (task, mixed):
        settings = config.make({"recipe": "grpo", "data": data})
        (tmp_path / "config.toml").write_text(settings.to_toml())
        (tmp_path / "metrics.jsonl").write_text("")
        page = card("someone/small", settings, tmp_path, 1)
        assert "max_turns` | 3 |" in page
        assert "sk-secret" not in page


def test_a_page_says_that_its_step_was_chosen_by_a_score(run):
    best = {"training": {"best": "eval/validation/pass@1"}, "evaluation": {"every": 1}}
    said = "Step 1 was the best one by `eval/validation/pass@1`, so its own score flatters"
    assert said in card("someone/small", config.make({"recipe": "grpo", **best}), run, 1)
    assert "flatters" not in card("someone/small", config.make({"recipe": "grpo"}), run, 1)


def test_a_dry_run_sends_nothing(strop, run, hub, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    result = strop("export", run, tmp_path / "model", "--push", "someone/small", "--dry-run")
    assert (result.code, hub.seen) == (0, {})
    assert "would be sent to someone/small (public):" in result.out
    assert " bytes  model.safetensors\n" in result.out
    assert "trained by `grpo`" in result.out


@pytest.mark.parametrize(
    ("words", "token", "why"),
    [
        (["--push", "a/b/c"], "hf_good", "'a/b/c' is no name on the hub, such as USER/MODEL"),
        (["--dry-run"], "hf_good", "--private and --dry-run go with --push USER/MODEL"),
        (["--push", "someone/small"], None, "only with a token: log in with `hf auth login`"),
        (["--push", "someone/small"], "hf_bad", "refuses someone/small: "),
    ],
)
def test_what_cannot_be_sent(strop, run, hub, tmp_path, monkeypatch, words, token, why):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)
    monkeypatch.setenv("HF_TOKEN", token or "")
    result = strop("export", run, tmp_path / "model", *words)
    assert result.code == 2, result
    assert why in result.err
    assert result.err.count("\n") == 1
    assert (tmp_path / "model").exists() == ("refuses" in why)


def test_without_a_network(strop, run, hub, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    result = strop("export", run, tmp_path / "model", "--push", "someone/small")
    assert result.code == 2
    assert f"{hub.url} cannot be reached: " in result.err
    assert f"send it with `hf upload someone/small {tmp_path / 'model'}`" in result.err
