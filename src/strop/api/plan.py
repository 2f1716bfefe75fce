"""`Run.plan`: what a run would yield on other numbers of workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.api import tables
from strop.api.arguments import checked
from strop.api.tables import Table
from strop.planning.measured import Measured, measure
from strop.planning.page import write_page
from strop.planning.simulate import Outcome, layouts
from strop.planning.told import HEADINGS, proposals, rows, told
from strop.support.errors import UserError

MOST_WORKERS = 65_536
MOST_STALENESS = 256
MOST_PROMPTS = 65_536  # of a step
MOST_SPARE = 16.0
MOST_SECONDS = 86_400.0


@dataclass(frozen=True)
class Planned:
    """Layouts for each number of workers: as they are printed, as a table, as a page."""

    runs: tuple[Path, ...]
    measured: Measured
    found: Mapping[int, Sequence[Outcome]]

    @property
    def table(self) -> Table:
        """A row a layout: workers, which of them generate and train, speed and idle shares."""
        return tables.of_rows(
            [
                {
                    "workers": number,
                    "layout": each.layout.name,
                    "generate": each.layout.generate,
                    "train": each.layout.train,
                    "tokens_per_second": each.tokens_per_second,
                    "step_seconds": each.step_seconds,
                    **{name.replace(" ", "_"): share for name, share in each.shares.items()},
                }
                for number, outcomes in self.found.items()
                for each in outcomes
            ]
        )

    @property
    def proposals(self) -> list[str]:
        """Of each number of workers the fastest layout, in words."""
        return proposals(self.found)

    def save(self, path: str | Path = "plan.html") -> Path:
        """Write the page with pictures; gives its place. Raises UserError."""
        write_page(self.runs, self.measured, self.found, Path(path))
        return Path(path)

    def __repr__(self) -> str:
        shown = tables.as_text(HEADINGS, rows(self.found))
        return "\n".join([*told(self.measured), "", shown, "", *self.proposals])

    def _repr_html_(self) -> str:
        said = [[line] for line in (*told(self.measured), "", *self.proposals)]
        return tables.as_html("", rows(self.found), HEADINGS) + tables.as_html("", said)


@checked
def plan(
    runs: Sequence[Path],
    workers: Sequence[int],
    staleness: Sequence[int],
    lengths: Sequence[float],
    prompts: int,
    spare: float,
    exchange: float,
) -> Planned:
    """The layouts at the costs that the runs measured; arguments as in `Run.plan`."""
    counts = _whole("workers", workers, MOST_WORKERS)
    bounds = _whole("staleness", staleness, MOST_STALENESS)
    if len(lengths) > 2:
        raise UserError(f"--lengths {_text(lengths)}: give MEAN or MEAN,P99, such as 800,4000")
    for name, value, most in (("spare", spare, MOST_SPARE), ("exchange", exchange, MOST_SECONDS)):
        if not 0 <= value <= most:
            raise UserError(f"--{name} {value:g} is not between 0 and {most:g}")
    if not 0 <= prompts <= MOST_PROMPTS:
        raise UserError(f"--prompts {prompts} is not between 0 and {MOST_PROMPTS}")
    measured = measure(runs, lengths, prompts).exchanging(exchange)
    found = {
        n: layouts(measured.costs, measured.work, n, bounds, spare, measured.apart) for n in counts
    }
    return Planned(tuple(runs), measured, found)


def _whole(option: str, values: Sequence[int], most: int) -> list[int]:
    """The numbers, rising, each once. Raises UserError."""
    if not values:
        raise UserError(f"--{option}: nothing is no whole number")
    for each in values:
        if not 1 <= each <= most:
            raise UserError(f"--{option} {_text(values)}: {each} is not between 1 and {most}")
    return sorted(set(values))


def _text(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)
