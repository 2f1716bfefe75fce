"""`strop.doctor`: what is installed, whether it fits together, and what went wrong in a run."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from strop.api import tables
from strop.api.arguments import checked
from strop.api.folders import HasFolder, folder_of
from strop.api.inputs import sections_of
from strop.api.messages import in_python, messages_in_python
from strop.api.options import combined, from_keywords
from strop.diagnosis.whole import Diagnosis, after_a_run, before_a_run, of_an_endpoint
from strop.support.errors import UserError


class Diagnosed(Diagnosis):
    """The findings; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        rows = [
            (each.question, each.status, "\n".join(filter(None, (each.answer, each.advice))))
            for each in self.findings
        ]
        return tables.as_html("", [("\n".join(self.lines),)]) + tables.as_html("", rows)


@checked
def doctor(
    run: str | Path | HasFolder | None = None,
    *,
    model: str | Path | None = None,
    data: Any = None,
    reward: Any = None,
    task: str | type = "",
    serve: str = "",
    **options: Any,
) -> Diagnosed:
    """Look for what is wrong: with a run, or with machine, model, data and rewards before one.

    run: a run or its folder, of which the files alone say why the loss is 0, why entropy falls,
    which groups give no signal, and more. Without a run, versions and devices are shown; with
    `model` its size and the memory that it will take; with `data` and `reward` lengths, repeated
    rows and a trial of the rewards. model: a name or a folder; the others as in `strop.train`.
    serve: the URL of a server with OpenAI's protocol, whose key is in OPENAI_API_KEY. Its routes
    are tried, and whether it returns tokens with log-probabilities, tokens, or text alone. Raises
    UserError.
    """
    with messages_in_python(), TemporaryDirectory(prefix="strop-") as folder:
        if serve:
            if any((run, model, task, options)) or data is not None or reward is not None:
                raise UserError("serve is an endpoint alone: leave the other arguments out")
            return _in_python(of_an_endpoint(serve))
        if run is not None:
            if model or data is not None or reward is not None or task or options:
                raise UserError("a run is judged by its own files: leave the other arguments out")
            return _in_python(after_a_run(folder_of(run)))
        if not isinstance(model, str | Path | None):
            raise UserError(
                f"model is {type(model).__name__}: give its name or folder; nothing is loaded here"
            )
        given, _ = sections_of(Path(folder) / "given", model, None, data, None, reward, task)
        pairs = from_keywords(options)
        heads = {name.partition(".")[0] for name, _ in pairs}
        return _in_python(
            before_a_run(
                combined("", pairs, given),
                with_model=bool(model or heads - {"ray"}),
                with_data=bool(given["data"] or given["reward"] or heads & {"data", "reward"}),
            )
        )


def _in_python(found: Diagnosis) -> Diagnosed:
    """The same, with keywords for options."""
    findings = [
        replace(each, answer=in_python(each.answer), advice=in_python(each.advice))
        for each in found.findings
    ]
    return Diagnosed(tuple(map(in_python, found.lines)), found.report, tuple(findings))
