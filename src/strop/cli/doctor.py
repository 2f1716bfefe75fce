"""`strop doctor`: what is here, whether it fits together, and what went wrong in a run."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from strop.cli import completing
from strop.cli.waiting import loading
from strop.diagnosis.finding import Finding
from strop.errors import UserError

COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red", "unknown": "dim"}


def doctor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [OPTION=VALUE]...",
            help="A run's folder; or any options, the method as `recipe=dapo`.",
            autocompletion=completing.options,
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Model folder or name; `tiny` ships with strop.")] = "",
    data: Annotated[list[str] | None, typer.Option(help="Data file; repeatable.")] = None,
    reward: Annotated[list[str] | None, typer.Option(help="Reward function; repeatable.")] = None,
    ray: Annotated[
        str, typer.Option(help="A Ray cluster, as for training: `local`, `auto` or host:port.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look for what is wrong: with a run, or with machine, model, data and rewards before one.

    With a run's folder: why the loss is 0, why entropy falls, which groups give no signal, and
    more, from its files. Without: versions and devices; with --model its size and an estimate of
    the memory; with --data and --reward lengths, repeated rows and a trial of the reward functions;
    with --ray whether the cluster's machines answer, have the same versions, room and this folder,
    and how fast weights reach them.

    The estimate is of the model, the optimiser, a reference, the cache and one pass. It leaves out
    Python with torch and transformers (about 0.35 GiB of main memory), the processes of reward
    functions, a critic's heads, AdamW's temporary copies on a GPU, and attention that keeps a
    matrix of length * length. On a CPU it was within a quarter of what runs took.

    Exit code 1: a problem was found. 0: none was. 2: something that was given is wrong.
    """
    from strop.door.words import OVERRIDE

    loading("what is looked at")
    given = arguments or []
    runs = [text for text in given if not OVERRIDE.match(text)]
    if len(runs) > 1:
        raise UserError(f"one run at a time, got {' and '.join(runs)}")
    if runs:
        if len(given) > 1 or model or data or reward or ray:
            raise UserError("a run is judged by its own files: leave the other options out")
        from strop.diagnosis.run import examine

        report: dict[str, Any] = {"run": runs[0]}
        text, findings = [f"{runs[0]}"], examine(Path(runs[0]))
    else:
        report, text, findings = before_a_run(given, model, data, reward, ray)
    _print(report, text, findings, as_json)
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(1)


def before_a_run(
    assignments: list[str],
    model: str,
    data: list[str] | None,
    reward: list[str] | None,
    ray: str = "",
) -> tuple[dict[str, Any], list[str], list[Finding]]:
    """Report, its text and findings about what a run would be made of. Raises UserError."""
    from strop.diagnosis import data as doctor_data
    from strop.diagnosis import machine
    from strop.diagnosis import model as doctor_model
    from strop.door.options import settings_of

    options: dict[str, Any] = {}
    for section, key, value in (
        ("model", "name", model), ("data", "files", data), ("reward", "functions", reward),
        ("ray", "address", ray),
    ):  # fmt: skip
        if value:
            options[section] = {key: value}
    settings = settings_of(assignments, options, None)
    heads = {text.partition(".")[0] for text in assignments}
    with_model = bool(model or heads - {"ray"})
    with_data = bool(data or reward or heads & {"data", "reward"})
    here = machine.machine()
    report: dict[str, Any] = {"machine": here}
    text = machine.lines(here)
    findings: list[Finding] = []
    if not with_model and not with_data:
        return _with_cluster(settings, report, text, findings)
    doctor_data.check_given(settings)
    tokenizer = doctor_model.tokenizer_of(settings) if with_model else None
    name, prompts, episode_tokens, specs = doctor_data.prompts_of(settings, tokenizer)
    found = doctor_data.lengths(settings, prompts, tokenizer) if with_model else []
    if with_model:
        report["model"], fits = doctor_model.examine(settings, name, max(found), episode_tokens)
        text += ["", *doctor_model.lines(report["model"])]
        findings.append(fits)
    if with_data:
        report["data"] = doctor_data.facts(name, prompts)
        findings.append(doctor_data.duplicates(prompts))
        if with_model:
            context = report["model"]["context"] or 2**20
            findings.append(doctor_data.fits(settings, found, context, episode_tokens))
            findings.append(doctor_data.form(settings, prompts, tokenizer))
        table: list[dict[str, Any]] = []
        if specs:
            seconds = settings.reward.timeout_seconds
            table, told = doctor_data.try_rewards(prompts, specs, seconds, tokenizer)
            findings.append(told)
        text += ["", *doctor_data.lines(report["data"], table)]
    return _with_cluster(settings, report, text, findings)


def _with_cluster(
    settings: Any, report: dict[str, Any], text: list[str], findings: list[Finding]
) -> tuple[dict[str, Any], list[str], list[Finding]]:
    """The same with what the machines of a Ray cluster answer, where there is one."""
    if not settings.ray.address:
        return report, text, findings
    from strop.diagnosis import cluster

    size = int(report["model"]["bytes"]["weights"]) if "model" in report else 0
    report["cluster"], told, found = cluster.examine(settings, size)
    return report, [*text, "", *told], [*findings, *found]


def _print(
    report: dict[str, Any], text: Sequence[str], findings: Sequence[Finding], as_json: bool
) -> None:
    if as_json:
        problems = sum(finding.status == "problem" for finding in findings)
        whole = {**report, "problems": problems, "findings": [asdict(f) for f in findings]}
        print(json.dumps(whole, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in text:
        console.print(line, markup=False)
    for finding in findings:
        colour = COLOURS[finding.status]
        console.print(f"\n[bold]{escape(finding.question)}[/]  [{colour}]{finding.status}[/]")
        console.print(f"  {finding.answer}", markup=False)
        if finding.advice:
            console.print(f"  Do: {finding.advice}", markup=False)
