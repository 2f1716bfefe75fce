"""Shows the progress of a run: a live panel on a terminal, lines elsewhere."""

import io
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from strop.method.charts import not_logged, panel_of
from strop.support.output import plain_console, visible
from strop.tracking.metrics_file import SETS, is_number, set_of
from strop.tracking.watch import sampled, shortened

if TYPE_CHECKING:
    from rich.console import RenderableType

    from strop.diagnosis.watch import Watch
    from strop.training.loop import Run

# The metrics shown where answers are given, or nothing scores them.
GIVEN = ("loss",)
SPARKS = " ▁▂▃▄▅▆▇█"
CELLS = 160  # the most means kept: four for each character of a line of blocks
EVERY = 0.5  # seconds between two drawings in a notebook; each one is a message to the browser
PRE = "<pre style='font-family: Menlo, \"DejaVu Sans Mono\", monospace'>{code}</pre>"


class Progress:
    """Shows reward, pass@k, entropy against its band, speed and time left."""

    def __init__(self, quiet: bool = False, shown: bool = True, answers: int = 0) -> None:
        """quiet: print only the end. shown: False in a process that leaves printing to another.
        answers: how many sampled answers to show at steps whose rollouts are written.
        """
        self.console = plain_console(quiet=not shown, force_terminal=None if shown else False)
        self.console.soft_wrap = not self.console.is_terminal  # a file keeps its lines whole
        self.quiet, self.answers = quiet, answers
        self.watch: Watch | None = None
        self.history: dict[str, Course] = {}
        self.live: Live | NotebookLive | None = None
        self.started = time.perf_counter()
        self.first = 0
        self.steps = 1
        self.printed = 0.0
        self.shown: dict[str, float] = {}
        self.logged: set[str] = set()  # names of metrics, of those that were always null too
        self.reported = False
        self.phases: tuple[str, ...] = ()  # their names
        self.brought: tuple[str, ...] = ()  # metrics that the method's parts ask to show

    def begin(self, run: "Run", before: list[dict[str, float]]) -> None:
        """Print what is about to run and where it is written; `before`: the steps already done."""
        from strop.diagnosis.watch import Watch  # reads what only a run needs

        self.history, self.shown = {}, {}
        self.watch = Watch()
        self.watch.begin(before, run.config.reward)
        for metrics in before:
            self._take(metrics)
        self.started, self.first = time.perf_counter(), run.done
        self.steps = run.config.training.steps
        self.phases = getattr(run.algorithm, "names", ())
        self.brought = panel_of(run.algorithm.uses())
        if self.quiet:
            return
        model = sum(p.numel() for p in run.loaded.model.parameters()) / 1e6
        task = run.world.services.task
        method = run.config.recipe or "a method of [stages]"
        method += f" (phases {', '.join(self.phases)})" if self.phases else ""
        self.console.print(
            f"[bold]{escape(method)}[/] on {escape(task.name)}: {len(task.train)} "
            f"prompts, {escape(run.config.model.name)} ({model:.2f} M parameters, "
            f"{run.loaded.where}), steps {run.done + 1} to "
            f"{self.steps} -> {escape(str(run.record.folder))}"
        )
        for note in run.world.services.notes:
            self.console.print(f"[yellow]note:[/] {escape(note)}")
        validates = run.done == 0 and run.config.evaluation.every and task.validations
        first = "the validation before step 1" if validates else f"step {run.done + 1}"
        waiting = Text(f"sampling the first answers, of {first} ...", style="dim")
        if self.console.is_terminal:
            live = Live(waiting, console=self.console, refresh_per_second=4)
            live.start(refresh=True)
            self.live = live
        elif self.console.is_jupyter:
            self.live = NotebookLive(waiting)
        else:
            self.console.print(waiting)

    def step(self, run: "Run", metrics: dict[str, float]) -> None:
        """Add a step's metrics and show them; step 0 is the validation before training."""
        begins = metrics.get("phase") != self.shown.get("phase")
        self._take(metrics)
        self._complain(run)
        if self.live is not None:
            self.live.update(self._panel(run.done))
        elif not self.quiet:
            if scores := self._scored(metrics):
                self.console.print(f"step {run.done}/{self.steps}  {scores}")
            now = time.perf_counter()
            if run.done and (now - self.printed > 5 or run.done == self.steps or begins):
                self.printed = now
                self.console.print(self._line(run.done))
        if run.done:
            self._answer(run)
            self._liken(run)
            self._warn(run, metrics)
        elif self.watch is not None:
            self.watch.begin([{**metrics, "step": 0}], run.config.reward)

    def _take(self, metrics: dict[str, float]) -> None:
        """Add the finite metrics. One that is null in this step keeps its earlier value, except the
        scores of a set that was validated and the reward of rollouts.
        """
        finite = {name: value for name, value in metrics.items() if is_number(value)}
        for name, value in finite.items():
            if name in self.history:
                self.history[name].add(value)
            else:
                self.history[name] = Course(value)
        sets = tuple({set_of(name) for name in metrics if name.startswith(SETS)})
        gone = {"reward"} if "rewards/frac_unscored" in metrics else set[str]()
        old = {k: v for k, v in self.shown.items() if not k.startswith(sets) and k not in gone}
        self.shown = {**old, **finite}
        self.logged |= metrics.keys()

    def note(self, text: str) -> None:
        """Print a sentence for the user."""
        self.console.print(text, markup=False)

    def close(self) -> None:
        """Stop the live panel, so that the terminal is free again."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def finish(self, run: "Run", then: str = "") -> None:
        """Print the run's outcome in a few lines, and what to do next."""
        folder = run.record.folder
        for name in _scores(self.history):
            first, last = self.history[name].first, self.shown.get(name)
            if last is None:
                self.console.print(f"{name}: {first:.3f} -> - (the last validation has no score)")
                continue
            low, high = self.shown.get(f"{name}/low"), self.shown.get(f"{name}/high")
            known = low is not None and high is not None
            interval = f"  (95% {low:.3f} to {high:.3f})" if known else ""
            self.console.print(f"{name}: {first:.3f} -> {last:.3f}{interval}")
        if best := run.race.description:
            self.console.print(f"best checkpoint: {best}", markup=False)
        for sentence in not_logged(run.algorithm.uses(), self.logged):
            self.console.print(f"[yellow]note:[/] {escape(sentence)}")
        if why := run.race.why_over:
            self.console.print(f"ended after step {run.done}: {why}", markup=False)
        self.console.print(
            f"done in {time.perf_counter() - self.started:.0f} s: {folder}/report.html, "
            f"checkpoints in {folder}/checkpoints.{then}",
            markup=False,
        )

    def _answer(self, run: "Run") -> None:
        """Print a table of some of the step's answers, where requested."""
        samples = None if self.quiet else sampled(run.record.folder, run.done, self.answers)
        if samples is None:
            return
        table = Table("prompt", "completion", "reward", title=f"answers of step {run.done}")
        for prompt, completion, reward, *_ in samples.rows:
            shown = f"{reward:.3f}" if is_number(reward) else "-"
            texts = [Text(visible(shortened(text))) for text in (prompt, completion)]
            table.add_row(*texts, shown)
        self.console.print(table)

    def _liken(self, run: "Run") -> None:
        """Print once which other methods would have done the same."""
        likeness = run.likeness
        if likeness is not None and likeness.step == run.done and likeness.text and not self.quiet:
            self.console.print(f"[yellow]note:[/] {escape(likeness.text)}")

    def _complain(self, run: "Run") -> None:
        """Print once the first failure of a request to the engine, an episode or a reward."""
        lost = run.world.services.sampling.failures
        if lost and not self.reported:
            self.reported = True
            self.console.print(
                f"[yellow]a request to the engine failed[/]: {escape(lost[0])}; its rollouts are "
                "left unscored, see rollout/requests_failed"
            )
        broken = run.world.services.log.logged.get("exit_why")
        if broken and not self.reported:
            self.reported = True
            first = next(iter(broken.values()))
            self.console.print(
                f"[yellow]an episode failed[/]: {escape(first)}; its share, and those of other "
                "causes, are the metrics exit/CAUSE"
            )
        failures = run.world.services.grading.failures
        if failures and not self.reported:
            self.reported = True
            first, counts = failures[0], run.world.services.grading.on_failure
            counted = first.cause.is_policys and counts is not None
            became = f"counts {counts:g}" if counted else "is left unscored"
            self.console.print(
                f"[yellow]a reward function failed[/] ({first.cause.label}): "
                f"{escape(first.message)}; the answer {became}, see exit/{first.cause.label}"
            )

    def _warn(self, run: "Run", metrics: dict[str, float]) -> None:
        """Print at once what the doctor would find later. Raises RunStopped for a useless run."""
        assert self.watch is not None, "a run begins before its first step"
        for finding in self.watch.step(run, metrics):
            self.console.print(
                f"[yellow]warning:[/] {escape(finding.question)} {escape(finding.answer)} Do: "
                f"{escape(finding.advice)}. More: strop doctor {escape(str(run.record.folder))}"
            )

    @staticmethod
    def _scored(metrics: dict[str, float]) -> str:
        """The scores of a validation, where the step has one."""
        named = ((name.removeprefix("eval/"), metrics[name]) for name in _scores(metrics))
        return "  ".join(f"{name} {value:.3f}" for name, value in named)

    def _line(self, step: int) -> str:
        shown = self.shown
        pieces = [f"step {step}/{self.steps}", *self._phase()]
        sampled, rewarded = "entropy" in shown, "reward" in self.logged
        if sampled and rewarded:
            pieces.append(f"reward {shown['reward']:.3f}" if "reward" in shown else "reward -")
        if sampled:
            pieces.append(f"entropy {shown['entropy']:.3f}{self._band()}")
        pieces += [
            f"{name} {shown[name]:.3f}"
            for name in (*(() if sampled and rewarded else GIVEN), *self.brought)
            if name in shown
        ]
        pieces.append(f"{shown.get('perf/tokens_per_s', 0):.0f} tokens/s")
        pieces.append(f"{self._left(step)} left")
        return "  ".join(pieces)

    def _phase(self) -> list[str]:
        """The phase that the step belongs to, in a method with phases."""
        number = int(self.shown.get("phase", 0))
        return [f"phase {number} ({self.phases[number - 1]})"] if number else []

    def _band(self) -> str:
        low = self.shown.get("entropy_control/low")
        high = self.shown.get("entropy_control/high")
        return "" if low is None or high is None else f" ({low:.2f}-{high:.2f})"

    def _left(self, step: int) -> str:
        done = max(step - self.first, 1)
        seconds = (time.perf_counter() - self.started) / done * (self.steps - step)
        return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"

    def _panel(self, step: int) -> Group:
        sampled = ("reward", "entropy", "completions/mean_length", "groups/frac_mixed")
        rewarded = "entropy" in self.history and "reward" in self.logged
        rows = [*(sampled if "entropy" in self.history else ()), *(() if rewarded else GIVEN)]
        rows += [*self.brought, "grad_norm"]
        rows += _scores(self.history)
        shown = {
            name: f"{self.shown[name]:.3f}{self._band() if name == 'entropy' else ''}"
            if name in self.shown else "-"
            for name in rows if name in self.history
        }  # fmt: skip
        table = Table.grid(padding=(0, 2))
        taken = max(map(len, shown), default=0) + max(map(len, shown.values()), default=0)
        room = max(1, min(40, self.console.width - taken - 6))
        for name, value in shown.items():
            table.add_row(name, value, Text(self.history[name].line(room), style="cyan"))
        bar = ProgressBar(total=self.steps, completed=step, width=min(40, self.console.width))
        at = "   ".join([f"step {step}/{self.steps}", *self._phase()])
        foot = Text(
            f"{at}   {self.shown.get('perf/tokens_per_s', 0):.0f} tokens/s   "
            f"{self.shown.get('step_time', 0):.2f} s a step   {self._left(step)} left",
            style="dim",
        )
        return Group(table, bar, foot)


def _scores(names: Iterable[str]) -> list[str]:
    """The names of pass@k metrics, smallest k first, then those of scores of given answers."""
    names = list(names)
    found = [n for n in names if re.search(r"/pass@\d+\Z", n)]
    given = [n for n in names if n.endswith(("/nll", "/ranking_accuracy"))]
    return sorted(found, key=lambda name: int(name.rpartition("@")[2])) + given


class Course:
    """First value, and means of equal stretches, each as long as needed to keep fewer than `CELLS`
    means. Up to that many values every value is kept.
    """

    def __init__(self, first: float) -> None:
        self.first = first
        self.means: list[float] = []  # of the complete stretches
        self.size = 1  # values in a stretch
        self.open: list[float] = []  # values of the incomplete stretch
        self.add(first)

    def add(self, value: float) -> None:
        """Add the value of the next step."""
        self.open.append(value)
        if len(self.open) < self.size:
            return
        self.means.append(sum(self.open) / self.size)
        self.open.clear()
        if len(self.means) == CELLS:
            pairs = zip(self.means[::2], self.means[1::2], strict=True)
            self.means, self.size = [(a + b) / 2 for a, b in pairs], 2 * self.size

    def line(self, width: int) -> str:
        """The course as blocks in `width` characters."""
        rest = [sum(self.open) / len(self.open)] if self.open else []
        return spark([*self.means, *rest], width)


def spark(values: list[float], width: int = 40) -> str:
    """A line of blocks that shows the course of the values in `width` characters."""
    if len(values) > width:
        size = len(values) / width
        cells = [values[int(i * size) : max(int((i + 1) * size), int(i * size) + 1)]
                 for i in range(width)]  # fmt: skip
        values = [sum(cell) / len(cell) for cell in cells]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(SPARKS[1 + int((v - low) / span * (len(SPARKS) - 2))] for v in values)


class NotebookLive:
    """The panel of a terminal as a notebook cell's output."""

    def __init__(self, first: "RenderableType") -> None:
        from IPython.display import HTML, display

        self.made: Any = HTML
        self.drawn = time.monotonic()
        self.newest = first
        self.handle = display(HTML(as_html(first)), display_id=True)

    def update(self, panel: "RenderableType") -> None:
        """Show this panel from now on."""
        self.newest = panel
        if time.monotonic() - self.drawn > EVERY:
            self._draw()

    def stop(self) -> None:
        """Draw the newest panel, which stays."""
        self._draw()

    def _draw(self) -> None:
        self.drawn = time.monotonic()
        self.handle.update(self.made(as_html(self.newest)))


def as_html(panel: "RenderableType", width: int = 100) -> str:
    """The text that rich would print, with its colours."""
    console = plain_console(file=io.StringIO(), record=True, width=width, force_jupyter=False)
    console.print(panel)
    return console.export_html(inline_styles=True, code_format=PRE)
