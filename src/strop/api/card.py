"""The model card that is pushed to a hub with a model: how it was trained and scored."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.catalogue.catalogue import recipes
from strop.data.read import named_sources
from strop.environments.base import JOINED
from strop.method.values import own
from strop.report.about import changed
from strop.rewards.source import reward_names
from strop.support.files import text_of
from strop.support.tables import markdown_table
from strop.tracking.metrics_file import is_number, read_metrics
from strop.training.record.best import race_of
from strop.training.record.versions import read_environment
from strop.training.settings.config import RunConfig

SCORE = re.compile(r"eval/[^/]+/(mean@n|(pass|maj)@\d+|nll|ranking_accuracy)")


def card(name: str, settings: RunConfig, run: Path | None = None, step: int = 0) -> str:
    """README.md of a model on a hub, with its header.

    run: the folder of the run whose `step` the model is; None for a model that strop has only
    rewritten. No path of this machine is named. Raises UserError for a damaged run.
    """
    base = settings.model.name
    header = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    text = [f"# {name.rpartition('/')[2]}", "", _use(name)]
    tags = ["strop"]
    if run is not None:
        recipe = settings.recipe.partition("(")[0]
        tags += ["reinforcement-learning"]
        tags += [recipe] * (recipe in {entry.name for entry in recipes()})
        taken = f"{step} step{'s' * (step != 1)}"
        text[2:2] = [
            f"`{_short(base)}`, trained by {_method(settings)} for {taken} with strop.",
            "",
        ]
        text += [*_data(settings), *_scores(run, step, settings), *_set(run), *_versions(run)]
    if _is_of_a_hub(base):
        header["base_model"] = base
    lines = [f"{key}: {json.dumps(value)}" for key, value in header.items()]
    listed = "".join(f"\n- {json.dumps(tag)}" for tag in tags)
    return "\n".join(["---", *lines, f"tags:{listed}", "---", "", *text]).rstrip() + "\n"


def _method(settings: RunConfig) -> str:
    """The recipe's line, unless it names code of the user's own."""
    recipe = settings.recipe
    return f"`{recipe}`" if recipe and not own(recipe) else "a method of its own"


def _use(name: str) -> str:
    return (
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"model = AutoModelForCausalLM.from_pretrained({name!r})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({name!r})\n```\n"
    )


def _is_of_a_hub(name: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", name)) and not Path(name).exists()


def _short(name: str) -> str:
    """A name on a hub unchanged; of a folder or file, the last part alone."""
    return name if _is_of_a_hub(name) else Path(name).name


def _data(settings: RunConfig) -> list[str]:
    """The data that it was trained on, and the rewards."""
    data = [name for name, _ in named_sources(settings.data.files)] or [
        *map(_short, settings.data.task.split(JOINED))
    ]
    rewards = reward_names(settings.reward.functions)
    found = ["## Training", "", f"- Data: {', '.join(data)}"]
    found += [f"- Rewards: {', '.join(rewards)}"] if rewards else []
    return [*found, ""]


def _scores(run: Path, step: int, settings: RunConfig) -> list[str]:
    """The first validation, and the last one up to the step with its interval; whether the step was
    chosen by it.
    """
    lines = [line for line in read_metrics(run) if line["step"] <= step]
    found = []
    for key in dict.fromkeys(key for line in lines for key in line if SCORE.fullmatch(key)):
        known = [line for line in lines if is_number(line.get(key))]
        if known:
            first, last = known[0], known[-1]
            cells = (
                f"{first[key]:.3f} (step {first['step']})",
                f"{last[key]:.3f}{_band(last, key)}",
            )
            found.append((key.removeprefix("eval/"), *cells))
    table = markdown_table(("score", "at first", "at last"), found)
    best = settings.training.best
    chosen = [
        f"Step {step} was the best one by `{best}`, so its own score flatters the model: "
        "expect a worse one on other prompts.", "",
    ] if best and race_of(settings, run, step).step == step else []  # fmt: skip
    return ["## Validation", "", table, "", *chosen] if found else []


def _band(line: Mapping[str, Any], key: str) -> str:
    low, high = line.get(f"{key}/low"), line.get(f"{key}/high")
    known = is_number(low) and is_number(high)
    return f" (step {line['step']}" + (f"; 95% {low:.3f} to {high:.3f})" if known else ")")


def _set(run: Path) -> list[str]:
    """The settings that were given, except those that name files, and the variables of MCP servers,
    which may be keys.
    """
    rows, _ = changed(text_of(run / "config.toml", "the configuration"))
    public = [row for row in rows if ".mcp_env" not in row[0]]
    kept = [(f"`{path}`", value) for path, value, _ in public if not _names_a_file(value)]
    return ["## Settings", "", markdown_table(("setting", "value"), kept), ""] if kept else []


def _names_a_file(value: str) -> bool:
    return "/" in value and not value.startswith("eval/")


def _versions(run: Path) -> list[str]:
    """The versions and the device that it was made with."""
    starts = read_environment(run)
    names = ("strop", "torch", "transformers", "device")
    text = [f"{name} {starts[-1][name]}" for name in names if starts and name in starts[-1]]
    return [f"Made with {', '.join(text)}."] if text else []
