"""`strop.sequence`: trains one policy on several tasks in order; what it learns and retains."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from strop.api.arguments import checked
from strop.api.folders import numbered, path_of
from strop.api.inputs import Data, Reward, sections_of, tidied, with_judges, with_parts
from strop.api.messages import messages_in_python
from strop.api.options import Recipe, combined, from_keywords, method_of
from strop.api.run import Run
from strop.api.train import resume, train
from strop.comparison.sequence import NAME, Result, carry_out, plan_of
from strop.comparison.sequence_page import markdown, write_result
from strop.evaluation.task_matrix import Kept
from strop.support.errors import UserError
from strop.support.output import plain_console
from strop.training.record.run_folder import GIVEN

if TYPE_CHECKING:
    from strop.api.keywords import Options


@dataclass(frozen=True)
class Sequence:
    """The result of a sequence: accuracies on all tasks after each task, and measures of them."""

    folder: Path
    result: Result

    @property
    def kept(self) -> Kept:
        """Accumulation, learnt, forgetting, transfer and retention."""
        return self.result.kept

    @property
    def runs(self) -> list[Run]:
        """The runs of the tasks, in their order."""
        plan = self.result.plan
        folders = (plan.folder_of(number, self.folder) for number in range(len(plan.tasks)))
        return [Run(folder, trust_files=True) for folder in folders]

    @property
    def page(self) -> Path:
        """The page with the accuracies as a heat map, lines over the tasks, and costs."""
        return self.folder / "sequence.html"

    def __repr__(self) -> str:
        return markdown(self.result)


@checked
def sequence(
    recipe: Recipe,
    data: dict[str, Data],
    validation: dict[str, Data],
    *,
    replay: float = 0.0,
    metric: str = "pass@1",
    model: Any = None,
    tokenizer: Any = None,
    reward: Reward | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    **options: "Unpack[Options]",
) -> Sequence:
    """Train one policy on several tasks in order, and score all tasks after each one.

    data: the rows of each task by its name, in order. validation: the rows that each task is scored
    on, and suites that no task trains on. replay: the share of a step's prompts that come from
    earlier tasks. metric: the validation metric that counts as accuracy. Other arguments: those of
    `strop.train`. The same call with the same `out` resumes, where all its arguments are in files;
    `strop sequence --resume` always does. Raises as `strop.train`.
    """
    for name, given in (("data", data), ("validation", validation)):
        if not isinstance(given, dict) or not given:
            raise UserError(f"{name} is {given!r}: give a dict of rows by the name of their task")
    folder = path_of(out, "out") if out is not None else numbered(Path("sequences"))
    if (folder / NAME).exists() and (folder / GIVEN).exists():
        raise UserError(
            f"{folder} holds a sequence of rows that a script gave: resume it with `strop sequence "
            f"--resume {folder}`, or give another out"
        )
    with messages_in_python(), tidied(folder, NAME, out is None):
        sections, _ = sections_of(folder / GIVEN, model, tokenizer, data, validation, reward, "")
        chosen = from_keywords(with_judges(options, folder / GIVEN))
        settings = with_parts(combined(method_of(recipe), chosen, sections), folder / GIVEN)
        plan = plan_of(settings, replay, metric)
        plan.keep(folder)
    console = plain_console(soft_wrap=True, quiet=not progress)

    def work(config: Path | None, run: Path) -> None:
        done = resume(run, progress=progress) if config is None else train(
            config=config, out=run, progress=progress
        )  # fmt: skip
        done.close()

    found = carry_out(plan, folder, work, lambda text: console.print(text, markup=False))
    write_result(found, folder)
    return Sequence(folder, found)
