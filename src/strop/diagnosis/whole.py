"""Collects all findings about a run, or about the ingredients of one, with the facts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.diagnosis.finding import Finding
from strop.support.http import key_of

Facts = dict[str, Any]
KEY = "OPENAI_API_KEY"  # the environment variable with the key of a model server


@dataclass(frozen=True)
class Diagnosis:
    """The result: questions with their answers, and the facts on which they are based.

    lines: the facts as they are printed; report: the same as plain numbers and texts.
    """

    lines: tuple[str, ...]
    report: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that need action."""
        return tuple(finding for finding in self.findings if finding.status == "problem")

    def __repr__(self) -> str:
        answers = [
            f"\n{each.question}  {each.status}\n  {each.answer}"
            + (f"\n  Do: {each.advice}" if each.advice else "")
            for each in self.findings
        ]
        return "\n".join([*self.lines, *answers])


def after_a_run(folder: Path) -> Diagnosis:
    """Diagnose a run by its own files. Raises UserError."""
    from strop.diagnosis.run import examine

    return Diagnosis((str(folder),), {"run": str(folder)}, tuple(examine(folder)))


def of_an_endpoint(url: str) -> Diagnosis:
    """Diagnose a model server, whose key is in OPENAI_API_KEY. Raises UserError."""
    from strop.diagnosis.endpoint import examine

    key = key_of(KEY if os.environ.get(KEY) else "", "the key")
    lines, report, findings = examine(url, key)
    return Diagnosis(tuple(lines), report, tuple(findings))


def before_a_run(settings: Any, with_model: bool, with_data: bool) -> Diagnosis:
    """Diagnose the machine, the model and the data that a run of these settings would use.

    Raises UserError.
    """
    from strop.diagnosis import data, machine

    here = machine.machine()
    report: Facts = {"machine": here}
    lines, findings = machine.lines(here), list[Finding]()
    if with_model or with_data:
        data.check_given(settings)
        _look(settings, with_model, with_data, report, lines, findings)
    if settings.ray.address:
        from strop.diagnosis import cluster

        size = int(report["model"]["bytes"]["weights"]) if "model" in report else 0
        report["cluster"], cluster_lines, found = cluster.examine(settings, size)
        lines += ["", *cluster_lines]
        findings += found
    return Diagnosis(tuple(lines), report, tuple(findings))


def _look(
    settings: Any, with_model: bool, with_data: bool, report: Facts, lines: list[str],
    findings: list[Finding],
) -> None:  # fmt: skip
    """Add lines, facts and findings about model and data."""
    from strop.diagnosis import data as of_data
    from strop.diagnosis import model as of_model

    tokenizer = of_model.tokenizer_of(settings) if with_model else None
    task = of_data.ingredients(settings, tokenizer)
    prompts, specs = task.prompts, task.rewards
    found = of_data.lengths(settings, prompts, tokenizer) if with_model else []
    if with_model:
        report["model"], fits = of_model.examine(
            settings, task.name, found, task.longest, task.kept
        )
        lines += ["", *of_model.lines(report["model"])]
        findings.append(fits)
    if not with_data:
        return
    report["data"] = of_data.facts(task.name, prompts)
    if specs or settings.data.files:  # episodes may begin alike
        findings.append(of_data.duplicates(prompts))
    if with_model:
        context = report["model"]["context"] or 2**20
        findings.append(of_data.fits(settings, found, context, task.kept))
        findings.append(of_data.form(settings, prompts, tokenizer))
    table: list[Facts] = []
    if specs:
        seconds = settings.reward.timeout_seconds
        table, finding = of_data.try_rewards(prompts, specs, seconds, tokenizer)
        findings.append(finding)
    lines += ["", *of_data.lines(report["data"], table)]
