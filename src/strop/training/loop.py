"""The loop over steps: train, evaluate, log, save; it stops cleanly and resumes exactly."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from strop.data.prompts import Prompt
from strop.method.algorithm import Algorithm, Method, phase_at
from strop.method.chains import generators
from strop.method.charts import charts_of
from strop.method.tensors import checked
from strop.support.devices import torch_set
from strop.support.errors import RunStopped, StepGivenUp, UserError, first_line
from strop.support.stopping import asking_first, settled
from strop.tracking.base import check as check_trackers
from strop.tracking.metrics_file import lines_until, read_metrics
from strop.tracking.watch import tracked
from strop.training import relatives, roles
from strop.training.collect import asynchronous
from strop.training.collect.asynchronous import AsynchronousCollector
from strop.training.learner.models import Loaded
from strop.training.learner.policy import check_finite
from strop.training.learner.step_metrics import source_metrics
from strop.training.learner.term_conflict import TermConflict
from strop.training.learner.token_trace import Tokens
from strop.training.loading import load_model
from strop.training.parallel.ranks import ALONE, Ranks
from strop.training.record import checkpoint, ending, versions
from strop.training.record.best import Race, race_of
from strop.training.record.fingerprint import check_same, fingerprint, owner_of
from strop.training.record.likeness import Likeness
from strop.training.record.run_folder import Record
from strop.training.services.live import ADDRESS
from strop.training.services.stores import files_in
from strop.training.settings.config import RunConfig
from strop.training.setup import load_prompts, make_world
from strop.training.step import Stepped, train_step
from strop.training.world import World

# (world, algorithm, split name, prompts) -> metrics `eval/{split}/...`
Evaluator = Callable[[World, Algorithm, str, Sequence[Prompt]], dict[str, float]]

# Advice where a device has too little memory.
LESS_MEMORY = (
    "Lower training.token_budget (for updates) or training.num_slots (for answers); a resumed run "
    "may change both"
)


class Watcher(Protocol):
    """Receives the progress of a run, for example to show it on a terminal."""

    def begin(self, run: "Run", before: list[dict[str, float]]) -> None: ...
    def step(self, run: "Run", metrics: dict[str, float]) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass
class Run:
    """A run in progress."""

    config: RunConfig
    algorithm: Method
    loaded: Loaded
    world: World
    record: Record
    race: Race
    state: dict[str, Any] = field(default_factory=dict)
    done: int = 0  # steps
    saved: int = -1  # step of the newest checkpoint
    stored: dict[str, set[int]] = field(default_factory=dict)  # files of stores, by checkpoint
    stop_asked: bool = False
    likeness: Likeness | None = None  # to other methods, once a step has shown it
    threads: int = 0  # torch's, in a step; a collector's process has others

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.record.folder / "checkpoints"

    def stopping(self) -> bool:
        """Whether any process was asked to stop; all processes get the same answer."""
        stopping = self.ranks.some(self.stop_asked)
        # Never cleared here: a signal that arrives while the processes ask each other counts after
        # the next step.
        self.stop_asked = self.stop_asked or stopping
        return stopping

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or the run stops early (`training.patience`)."""
        return self.done >= self.config.training.steps or self.race.over

    @property
    def ranks(self) -> Ranks:
        """The processes of the run, the first of which writes and prints."""
        return self.world.ranks

    def torch_set(self) -> AbstractContextManager[None]:
        """Inside, torch is set as the run asks for; between steps it is as others have set it."""
        return torch_set(self.threads, self.config.training.full_determinism)

    def environment(self) -> dict[str, Any]:
        """This process and its machine, as the run's folder records them at a start."""
        with self.torch_set():
            return versions.now(self.world.policy.device, self.done, self.ranks.count)

    def save(self) -> None:
        """Write a checkpoint, unless this step has one, and drop the oldest ones.

        Raises RunStopped on a full disk, and for weights that are not finite.
        """
        if self.saved == self.done:
            return
        world = self.world
        self.ranks.at(f"the checkpoint of step {self.done}")
        try:
            check_finite(world.policy.parameters(), "training.lr")
            if world.critic is not None:
                check_finite(world.critic.parameters(), "critic.lr")
        except RunStopped as error:
            raise RunStopped(f"step {self.done} is not saved: {error}") from error
        world.whole()
        assert world.policy.optimiser is not None, "the policy of a run is trained"
        checkpoint.save(
            self.checkpoints,
            self.done,
            self.loaded,
            world.policy.optimiser,
            {**self.state, **world.collector.kept(self.done)},
            world.critic,
            world.engine.state_dict(),
            world.copies.moved(self.state.get("knobs", {})) if world.copies is not None else {},
            files_in(self.state),
            ranks=self.ranks,
            sharded=self.config.training.checkpoint == "sharded",
        )
        self.saved = self.done
        if self.ranks.first:
            self.prune()

    def prune(self) -> None:
        """Delete the oldest checkpoints except the best one, and the files only they refer to."""
        keep = self.config.training.keep_checkpoints
        checkpoint.prune(self.checkpoints, keep, self.race.step)
        self.sweep()

    def sweep(self) -> None:
        """Delete the files of stores that no checkpoint and no part refers to any more."""
        stores, places = self.world.services.stores, checkpoint.complete(self.checkpoints)
        for place in places:
            if place.name not in self.stored:
                self.stored[place.name] = checkpoint.stored_in(place)
        stores.kept = set().union(*(self.stored[place.name] for place in places))
        stores.sweep(files_in(self.state), self.done)

    def close(self) -> None:
        """Close policy, collector, services and engine, and unlock the folder: each of them, also
        after an error of one before.
        """
        world = self.world
        with ExitStack() as closing:  # the last one first
            closing.callback(self.record.lock.free)
            for each in (world.engine, world.services, world.collector, world.policy):
                closing.callback(each.close)


def start(
    config: RunConfig, folder: Path, ranks: Ranks = ALONE, given: Loaded | None = None
) -> Run:
    """A new run in `folder`; everything is checked before anything is written. Raises UserError.

    given: the configuration's model, if it is in memory already.
    """
    record = Record(folder)
    ranks.from_first(record.check_free)
    run, created = _prepare(config.complete(), record, ranks, given), False
    try:
        made_with = run.environment()
        text, data = run.config.to_toml(), fingerprint(run.world.services.task)
        charts = (*charts_of(run.algorithm.uses()), *roles.charts(run.config))
        ranks.from_first(lambda: run.record.create(text, data, made_with, charts))
        created = True
        ranks.check_shared(folder / "config.toml")
        _open_stores(run, data)
        _open_live(run)
    except BaseException:
        run.close()
        if created and ranks.first:
            record.discard()
        raise
    return run


def resume(config: RunConfig, folder: Path, step: int = 0, ranks: Ranks = ALONE) -> Run:
    """Resumes the run in `folder` at its newest checkpoint, or that of `step`, and discards the
    records of later steps.

    `config` is the run's own, or the same with more steps and other intervals; the folder's
    config.toml is rewritten. Raises UserError for fewer steps than are done, for other data, and
    while another process runs it.
    """
    record = Record(folder)
    ranks.from_first(record.lock.take)
    try:
        run = _prepare(config, record, ranks)
    except BaseException:
        record.lock.free()
        raise
    try:
        data = fingerprint(run.world.services.task)
        check_same(folder, data)
        _open_stores(run, data)
        starts = versions.read_environment(folder)
        if step or checkpoint.complete(run.checkpoints):
            place = checkpoint.at(run.checkpoints, step)
            run.world.services.notes += checkpoint.unchecked(place)
            with checkpoint.naming_the_one_before(place):
                _load(run, place)
        else:
            run.record.check_unsaved()
        if run.done > config.training.steps:
            raise UserError(
                f"{folder} has done {run.done} steps, training.steps is {config.training.steps}: "
                "give more"
            )
        run.race = race_of(config, folder, run.done)
        ranks.wait()  # until all processes have read the files that are now cut
        if ranks.first:
            _write_again(run, starts)
        if not run.finished:
            _open_live(run)
    except BaseException:
        run.close()
        raise
    return run


def _write_again(run: Run, starts: list[dict[str, Any]]) -> None:
    """Discard the records of later steps, and record that the run resumes."""
    config = run.config
    lines_until(run.record.metrics_path, run.done)  # first: it may refuse
    checkpoint.forget_after(run.checkpoints, run.done)  # before the lines that each needs
    run.record.cut_after(run.done)
    run.prune()
    run.record.write_config(config.to_toml())
    if not run.finished:
        here = run.environment()
        run.world.services.notes += versions.changes(starts[-1], here) if starts else []
        starts.append(here)
        versions.write_environment(run.record.folder, starts)


def _load(run: Run, place: Path) -> None:
    """Load weights, optimiser and state from a checkpoint."""
    saved = checkpoint.read(place)
    run.loaded.load_weights(place)
    run.world.take_over()
    assert run.world.policy.optimiser is not None
    with checkpoint.naming_the_file(place, "trainer.pt"):
        run.world.policy.optimiser.load_state_dict(saved["optimiser"])
        run.done, run.state, run.saved = int(saved["step"]), saved["state"], saved["step"]
        run.world.collector.take_up({asynchronous.GROUPS: run.state.pop(asynchronous.GROUPS, {})})
    if run.world.critic is not None:
        critic = checkpoint.read(place, "critic.pt")
        with checkpoint.naming_the_file(place, "critic.pt"):
            run.world.critic.load_state_dict(critic)
    run.world.services.stores.check(files_in(run.state))
    held = checkpoint.read(place, "engine.pt") if (place / "engine.pt").exists() else {}
    run.world.engine.load_state_dict(held, run.done)
    roles.take_up(run.world, run.loaded, place, run.state)
    if (copies := run.world.copies) is not None:
        for name in copies.moved(run.state.get("knobs", {})):
            copies.load(name, checkpoint.read(place, f"{name}.pt"))


def _open_stores(run: Run, data: dict[str, dict[str, int]]) -> None:
    """Let parts store rollouts in the run's folder. Raises UserError for another run's store.

    data: the fingerprint of the run's rows.
    """
    services = run.world.services
    owner = owner_of(run.config, data["train"]["crc32"], services.texts.tokenizer)
    services.stores.open(run.record.folder / "stores", owner, writes=run.ranks.first)
    if isinstance(run.world.collector, AsynchronousCollector):
        run.world.collector.stores = services.stores


def _open_live(run: Run) -> None:
    """Open the server for posted rollouts, if the task has them, and note its address. Raises
    UserError.
    """
    live = run.world.services.live
    if live.source is None:
        return

    if isinstance(run.world.collector, AsynchronousCollector):  # its process opens the server
        address = live.prepare(run.record.folder)
        run.world.collector.stopping = lambda: run.stop_asked
    else:
        address = live.open(run.record.folder)
        live.stopping = lambda: run.stop_asked
    run.world.services.notes.append(
        f"post rollouts to {address.url}/v1/rollouts, and call the model at {address.url}/v1; the "
        f"key is in {run.record.folder / ADDRESS}"
    )


def _prepare(config: RunConfig, record: Record, ranks: Ranks, given: Loaded | None = None) -> Run:
    """A run whose folder is not touched yet. Raises UserError."""
    with torch_set(config.threads, config.training.full_determinism):
        check_trackers(config.tracking.to)
        algorithm, race = config.build(), Race(config)
        if config.ray.address and config.ray.num_trainers not in (0, ranks.count):
            raise UserError(
                f"ray.num_trainers={config.ray.num_trainers}, and {ranks.count} trains: strop "
                "train starts so many; from a script, leave it out"
            )
        ranks.watch(config.training.process_timeout_seconds, record.folder)
        if config.training.max_staleness:
            asynchronous.check(config, algorithm)
        else:
            asynchronous.check_here(algorithm, ranks)
        scored = any(
            each.needs_scores() and not each.rollout.part.given for each in algorithm.algorithms
        )
        task = load_prompts(
            config.data, config.reward, needs_reward=scored, heldout=False, uses_columns=True
        )
        loaded = load_model(config, ranks=ranks, given=given)
        if given is not None:
            _check_none_frozen(loaded)
        world = make_world(config, algorithm, loaded, task, ranks)
        if config.training.max_staleness:
            assert isinstance(algorithm, Algorithm), "phases were refused"
            world.collector = AsynchronousCollector(
                config, algorithm, world.policy, config.training.max_staleness
            )
        threads = torch.get_num_threads()
    return Run(config, algorithm, loaded, world, record, race, threads=threads)


def _check_none_frozen(loaded: Loaded) -> None:
    """Raise UserError for a model in memory with frozen weights: the run's files say nothing of
    them, so a resumed run would train them.
    """
    weights = loaded.model.named_parameters() if loaded.adapter is None else ()
    if frozen := [name for name, weight in weights if not weight.requires_grad]:
        raise UserError(
            f"{len(frozen)} weights of the model are frozen, the first is {frozen[0]}: a run "
            "trains all of them, after model.requires_grad_(True), or adapters alone, with "
            "model.lora_rank"
        )


def go(run: Run, watcher: Watcher, evaluator: Evaluator) -> None:
    """Run all remaining steps; saves at the end and after a first Ctrl-C, SIGTERM or SIGHUP.

    Raises RunStopped when the run cannot continue; the newest checkpoint is then complete.
    """
    with attended(run, watcher):
        for _ in steps(run, watcher, evaluator):
            pass


@contextmanager
def attended(run: Run, watcher: Watcher) -> Iterator[None]:
    """Inside, a first Ctrl-C, SIGTERM or SIGHUP asks the run to stop, and garbage collection is
    restrained.
    """

    def ask() -> None:
        run.stop_asked = True
        # In another thread: this one may be amid a print, which allows no second one.
        text = "finishing this step, then saving (Ctrl-C again stops at once)"
        threading.Thread(target=watcher.note, args=(text,)).start()

    with asking_first(ask), settled():
        yield


def steps(run: Run, watcher: Watcher, evaluator: Evaluator) -> Iterator[dict[str, float]]:
    """Yields the metrics of each remaining step when the step is done; saves after the last one,
    and after one at which the run is asked to stop or the watcher stops it.

    Raises as `go` does.
    """
    settings, stopped = run.config.training, None
    writes = run.ranks.first and not run.finished  # how the run ends, unless it had ended before
    recording = ending.recording(
        run.record.folder, lambda: ending.Ending(run.done, run.finished), writes, run.ranks.loss
    )
    with recording, tracked(run, watcher) as watcher:
        recorded = run.ranks.from_first(run.record.metrics_path.exists)
        watcher.begin(run, read_metrics(run.record.folder) if recorded else [])
        if not run.finished:
            run.world.collector.begin(run.done + 1, run.state)
        scored = run.ranks.from_first(lambda: run.record.has(0))
        if run.done == 0 and run.config.evaluation.every and not scored:
            with run.torch_set():
                metrics = _evaluated(run, evaluator, {})
            run.race.check(metrics)
            if run.ranks.first:
                run.record.metrics(0, metrics)
            watcher.step(run, metrics)
        while not run.finished and not run.stopping():
            try:
                with run.torch_set():
                    metrics = _written_step(run, evaluator)
            except StepGivenUp:
                break
            try:
                watcher.step(run, metrics)
            except RunStopped as error:  # the step is done, and all processes have to save it
                stopped, run.stop_asked = error, True
            if _is_best(run, metrics) or _due(run.done, settings.save_every, settings.steps):
                run.save()
            if stopped is None:
                yield metrics
        run.save()
        _raise_in_all(run.ranks, stopped)
        run.ranks.at("")


def _raise_in_all(ranks: Ranks, stopped: RunStopped | None) -> None:
    """Raise what has stopped this process or, with its number, another one. All call it."""
    told = ranks.gathered(str(stopped or ""))
    if stopped is not None:
        raise stopped
    for number, why in enumerate(told):
        if why:
            raise RunStopped(f"process {number} of {ranks.count}: {why}")


def _written_step(run: Run, evaluator: Evaluator) -> dict[str, float]:
    """Run the next step, and write its line and tables to the run's folder."""
    settings = run.config.training
    due = _due(run.done + 1, settings.rollouts_every, settings.steps)
    tokens = Tokens(settings.inspect) if due and settings.inspect else None
    stepped = _one_step(run, tokens)
    metrics = stepped.metrics
    if _due(run.done, run.config.evaluation.every, settings.steps):
        metrics = _evaluated(run, evaluator, metrics)
    if run.ranks.first:
        _write_down(run, stepped, tokens, metrics)
    return metrics


def _write_down(
    run: Run, stepped: Stepped, tokens: Tokens | None, metrics: dict[str, float]
) -> None:
    """Write a step's line and tables, and delete the tables of the oldest steps."""
    settings, record, services = run.config.training, run.record, run.world.services
    if _due(run.done, settings.rollouts_every, settings.steps):
        record.write_rollouts(run.done, stepped.batch, services)
    if tokens is not None:
        record.write_tokens(run.done, tokens, stepped.batch, services)
    record.prune(settings.keep_rollouts)
    record.metrics(run.done, metrics)
    if run.likeness is not None and run.likeness.step == run.done:
        record.write_likeness(run.likeness)


def _is_best(run: Run, metrics: dict[str, float]) -> bool:
    """Whether the step is the best so far, by the first process's metrics so that all agree."""
    race = run.race
    return bool(race.name) and race.take(run.done, run.ranks.from_first(lambda: metrics))


def _one_step(run: Run, tokens: Tokens | None) -> Stepped:
    """Run the next step; an error names it, and leaves weights that are spoilt (a checkpoint's are
    not).
    """
    step = run.done + 1
    run.world.services.begin_step(step)
    rows = relatives.watching(run, step, generators(run.world.seed, step))
    every, last = run.config.training.conflict_every, run.config.training.steps
    conflict = TermConflict() if _due(step, every, last) else None
    watching = tuple(each for each in (tokens, rows, conflict) if each is not None)
    try:
        with checked(run.config.training.debug):
            stepped = train_step(run.world, run.algorithm, run.state, step, watching)
    except RunStopped as error:
        raise RunStopped(f"step {step}: {error}") from error
    except torch.OutOfMemoryError as error:
        raise RunStopped(f"step {step}: {first_line(error)} {LESS_MEMORY}") from error
    run.ranks.agree(stepped.batch.columns, step)
    if rows is not None:
        run.likeness = relatives.look(rows, run.config, run.algorithm, step, stepped.metrics)
    stepped.metrics.update(run.world.services.metrics())
    stepped.metrics.update(conflict.metrics() if conflict is not None else {})
    stepped.metrics |= source_metrics(stepped.batch, run.world.services.task.origins)
    stepped.metrics |= roles.after_step(run.config, run.world, run.loaded, step, stepped.state)
    if step == max(run.saved, 0) + 1:  # early: the next checkpoint may be many steps away
        checkpoint.check_state(stepped.state)
    run.done, run.state = step, stepped.state
    run.world.services.stores.sweep(files_in(run.state), run.done)
    return stepped


def _evaluated(run: Run, evaluator: Evaluator, metrics: dict[str, float]) -> dict[str, float]:
    started = time.perf_counter()
    sets = run.world.services.task.validations
    if not sets:
        return metrics
    run.ranks.at(f"the validation after step {run.done}")
    phase = phase_at(run.state)["number"]
    now = run.algorithm.in_phase(phase).at_step(max(run.done, 1), run.config.training.steps)
    run.world.act(now, phase)
    cast = run.world.services.sampling.cast
    with run.world.engine.newest(), cast.without_league():
        for name, prompts in sets.items():
            first = prompts[: run.config.evaluation.max_prompts]
            metrics = {**metrics, **evaluator(run.world, now, name, first)}
    return {**metrics, "timing_s/eval": time.perf_counter() - started}


def _due(step: int, every: int, last: int) -> bool:
    """Whether `step` is the last one or a multiple of `every`; never where every = 0."""
    return every > 0 and (step == last or step % every == 0)
