"""The run's folder: metrics.jsonl, rollouts, tokens, config.toml; no file is ever half written.

After a kill, lines and files of steps beyond the checkpoint are cut off, so every step appears
once.
"""

import contextlib
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch, level_of
from strop.method.charts import NAME as CHARTS
from strop.method.charts import LineChart, as_objects
from strop.support.errors import RunStopped, UserError
from strop.support.exits import Exit
from strop.support.files import well_formed
from strop.support.writing import append_line, write_whole, writing
from strop.tracking.metrics_file import lines_until, read_metrics
from strop.tracking.watch import NAME as TRACKING
from strop.tracking.watch import WRITTEN, forget
from strop.training.learner.token_trace import Tokens
from strop.training.record.ending import NAME as END
from strop.training.record.fingerprint import NAME as FINGERPRINT
from strop.training.record.likeness import NAME as LIKENESS
from strop.training.record.likeness import Likeness
from strop.training.record.lock import Lock
from strop.training.record.versions import NAME as ENVIRONMENT
from strop.training.record.versions import write_environment
from strop.training.services.live import ADDRESS, PLANNED, POSTED
from strop.training.services.run import RunServices
from strop.training.services.texts import RunTexts
from strop.training.settings.config import load

GIVEN = "given"  # folder of data that a script passed in place of files
REPORT = "report.html"
FILES = (LIKENESS, FINGERPRINT, ENVIRONMENT, CHARTS, END, ADDRESS, PLANNED, POSTED)
OWN = (*FILES, TRACKING, *WRITTEN, "rollouts", "tokens", "stores", "checkpoints", REPORT)


def begin_folder(folder: Path) -> None:
    """Make a folder for several runs, or take one that holds only the data of a script.

    Raises UserError where it holds something else, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(path.name != GIVEN for path in folder.iterdir()):
        raise UserError(f"{folder} holds something else: give another folder with --out")


class Record:
    """Writes a run's folder, in its first process alone. Raises RunStopped on a full disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics_path = folder / "metrics.jsonl"
        self.rollouts = folder / "rollouts"
        self.tokens = folder / "tokens"
        self.lock = Lock(folder)

    def create(
        self,
        config: str,
        data: dict[str, Any],
        environment: dict[str, Any],
        charts: Sequence[LineChart],
    ) -> None:
        """Create and lock a folder with the configuration, the fingerprint of the data, the
        environment and the additional charts of the report.

        Raises UserError when a run is there already, or another process is about to start one.
        """
        with writing(self.folder, "the run"):
            self.folder.mkdir(parents=True, exist_ok=True)
        self.lock.take()
        try:
            self.check_free()
            if self._has_nothing():
                self.discard()
            self.write_config(config)
            with writing(self.folder, FINGERPRINT):
                write_whole(self.folder / FINGERPRINT, json.dumps(data))
            write_environment(self.folder, [environment])
            if charts:
                with writing(self.folder, CHARTS):
                    text = json.dumps(as_objects(charts), indent=1) + "\n"
                    write_whole(self.folder / CHARTS, text)
        except BaseException:
            self.lock.free()
            raise

    def write_config(self, config: str) -> None:
        """Write config.toml whole. Raises UserError when it cannot be, RunStopped without room."""
        with writing(self.folder, "config.toml"):
            self.rollouts.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / "config.toml", config)

    def check_free(self) -> None:
        """Raise UserError when the folder holds a run already, or is no folder. One that ended
        before it had recorded a number is no run yet.
        """
        if self._has_nothing():
            return
        if any((self.folder / name).exists() for name in ("config.toml", "metrics.jsonl")):
            raise UserError(
                f"{self.folder} already holds a run: resume it with `strop train --resume "
                f"{self.folder}`, or give another folder with --out"
            )
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"{self.folder} is a file: give a folder with --out")
        for name in OWN:  # files of others may neither be overwritten nor deleted with a run
            path = self.folder / name
            if path.is_dir() and not any(path.iterdir()):
                continue  # a full disk leaves it so
            if path.exists():
                raise UserError(
                    f"{self.folder} has its own {name}, which a run writes, too: give another "
                    "folder with --out"
                )

    def _has_nothing(self) -> bool:
        """Whether a run has begun here, and has made and been given nothing that would be lost."""
        if not all((self.folder / name).is_file() for name in ("config.toml", FINGERPRINT)):
            return False
        if self.metrics_path.exists() or (self.folder / POSTED).exists():
            return False
        kept = (self.rollouts, self.tokens, self.folder / "checkpoints", self.folder / "stores")
        return not any(any(place.glob("*")) for place in kept)

    def check_unsaved(self) -> None:
        """Raise UserError where a run has lost its checkpoints: it has recorded steps beyond the
        first save by the settings that it had, or a report, which is written after the last one.
        """
        save_every = load(self.folder / "config.toml").training.save_every
        lines = read_metrics(self.folder) if self.metrics_path.exists() else []
        last = max((line["step"] for line in lines), default=0)
        if last and (0 < save_every < last or (self.folder / REPORT).exists()):
            raise UserError(
                f"{self.folder} has recorded {last} steps and has no checkpoint to resume from; to "
                "begin at step 1 would overwrite them: put its checkpoints back, or train again "
                f"elsewhere with `strop train --config {self.folder / 'config.toml'} --out OTHER`"
            )

    def discard(self, given: bool = False) -> None:
        """Delete what `create` made and the first lines of a run that never made a step.

        given: also what a script passed; a command finds such a folder, and leaves it.
        """
        for name in ("config.toml", "metrics.jsonl", *FILES):
            (self.folder / name).unlink(missing_ok=True)
        forget(self.folder)
        for name in ("stores", GIVEN) if given else ("stores",):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for folder in (self.rollouts, self.folder):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def cut_after(self, step: int) -> None:
        """Discard everything written for later steps.

        Raises RunStopped on a full disk, UserError for damaged lines of the steps before.
        """
        with writing(self.folder, "metrics.jsonl", otherwise=RunStopped):
            kept = lines_until(self.metrics_path, step)
            if self.metrics_path.exists():
                write_whole(self.metrics_path, b"".join(line + b"\n" for line in kept).decode())
            for path in (*self.rollouts.glob("step-*"), *self.tokens.glob("step-*")):
                number = path.stem.removeprefix("step-")
                if path.suffix == ".unfinished" or (number.isdigit() and int(number) > step):
                    path.unlink()

    def has(self, step: int) -> bool:
        """Returns whether metrics.jsonl has the step's line."""
        if not self.metrics_path.exists():
            return False
        return any(line["step"] == step for line in read_metrics(self.folder))

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Append the step's line; a number that is not finite becomes null."""
        finite = {k: values[k] if math.isfinite(values[k]) else None for k in sorted(values)}
        line = json.dumps({"step": step, **finite})
        what = f"step {step}'s line of metrics.jsonl"
        with writing(self.folder, what, len(line), otherwise=RunStopped):
            append_line(self.metrics_path, line)

    def write_likeness(self, likeness: Likeness) -> None:
        """Write which other methods would have done the same."""
        text = likeness.as_json()
        with writing(self.folder, LIKENESS, len(text), otherwise=RunStopped):
            write_whole(self.folder / LIKENESS, text)

    def write_rollouts(self, step: int, batch: Batch, services: RunServices) -> None:
        """Write the step's rollouts as Parquet: texts, rewards, advantages, lengths."""
        table = rollout_table(step, batch, services)
        _write_table(self.rollouts, step, table, f"the rollouts of step {step}")

    def write_tokens(self, step: int, tokens: Tokens, batch: Batch, services: RunServices) -> None:
        """Write some of the step's rollouts as Parquet, token by token."""
        table = token_table(tokens, batch, services.texts)
        _write_table(self.tokens, step, table, f"the tokens of step {step}")

    def prune(self, keep: int) -> None:
        """Delete the rollouts and tokens of all but the newest `keep` steps that have some; 0: none
        of them.
        """
        for folder in (self.rollouts, self.tokens) if keep else ():
            files = sorted(folder.glob("step-*.parquet"), key=lambda path: (len(path.name), path))
            for path in files[:-keep]:
                path.unlink()


def _write_table(folder: Path, step: int, table: pa.Table, what: str) -> None:
    """Write a step's Parquet file, never seen half written. Raises RunStopped on a full disk."""
    path = folder / f"step-{step:06d}.parquet"
    unfinished = path.with_suffix(".unfinished")
    try:
        with writing(folder, what, table.nbytes, otherwise=RunStopped):
            folder.mkdir(exist_ok=True)
            pq.write_table(table, unfinished)
            unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


def rollout_table(step: int, batch: Batch, services: RunServices) -> pa.Table:
    """One row per rollout: step, uid, texts, a column per reward, values logged by rewards, ..."""
    prompts, completions = services.texts.decoded(batch)
    uid_B = batch["uid_P"][batch["group_B"]]
    learns_B = segments.count(batch["rollout_T"], batch.size("B"), batch["gradient_T"]) > 0
    columns: dict[str, Any] = {
        "step": [step] * batch.size("B"),
        "uid": uid_B.tolist(),
        "draw": batch["draw_P"][batch["group_B"]].tolist(),
        "prompt": [
            well_formed(p if isinstance(p, str) else json.dumps(p, ensure_ascii=False))
            for p in prompts
        ],
        "completion": well_formed(completions),
        "reward": batch["reward_B"].tolist(),
        "exit": [Exit(number).label for number in batch["exit_B"].tolist()],
        **{
            f"reward/{well_formed(name)}": [None if v != v else v for v in column.tolist()]
            for name, column in _components(batch, services)
        },
        "advantage": batch["advantage_B"].tolist(),
        "scored": batch["scored_B"].tolist(),
        "truncated": batch["truncated_B"].tolist(),
        "gradient": learns_B.tolist(),
        "length": batch["length_B"].tolist(),
    }
    rollouts = batch["rollout_uid_B"].tolist()
    for name, values in services.log.logged.items():
        own = well_formed(name)
        free = own if own not in columns else f"extra/{own}"
        columns[free] = _arrow([values.get(rollout) for rollout in rollouts])
    return pa.table(columns)


def _components(batch: Batch, services: RunServices) -> list[tuple[str, Any]]:
    """The named rewards with their columns [B]; none when no reward function was called."""
    if "reward_BM" not in batch:
        return []
    return list(zip(services.grading.reward_names, batch["reward_BM"].T, strict=True))


def _arrow(values: list[Any]) -> pa.Array:
    """Convert logged values to a column: plain values of one type, all else as JSON text."""
    values = [well_formed(v) if isinstance(v, str) else v for v in values]
    if all(v is None or isinstance(v, str | int | float) for v in values):
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return pa.array(values)
    return pa.array([None if v is None else json.dumps(v) for v in values])


# turn_T counts within the rollout here; the other links follow from the lists.
LINKS = ("turn_T", "rollout_K", "index_K")


def token_table(tokens: Tokens, batch: Batch, texts: RunTexts) -> pa.Table:
    """One row per kept rollout of a step's batch, in the batch's own names.

    Columns of tokens and turns are lists. group_B and parent_B count the rows of this table, `row`
    is the row in the file of the rollouts. Floats are null outside mask_T and where they are NaN.
    """
    taken = batch.take(tokens.rollouts_B)
    size_B, turns_B = taken["size_B"].cpu(), torch.bincount(taken["rollout_K"].cpu())
    columns: dict[str, pa.Array] = {"row": _flat(tokens.rollouts_B)}
    for name, column in taken.columns.items():
        if level_of(name) == "B" and column.dim() == 1:
            columns[name] = _flat(column)
        elif level_of(name) == "K" and name not in LINKS:
            columns[name] = _lists(_flat(column), turns_B)
    ids = taken["id_T"].cpu()
    pieces = [
        piece for own in torch.split(ids, size_B.tolist()) for piece in texts.pieces(own.tolist())
    ]
    columns["text_T"] = _lists(pa.array(pieces, pa.string()), size_B)
    columns["turn_T"] = _lists(_flat(taken["index_K"][taken["turn_T"]]), size_B)
    for name, column in tokens.kept(batch).items():
        if name not in LINKS:
            columns[name] = _lists(_flat(column, taken["mask_T"]), size_B)
    return pa.table(columns)


def _lists(values: pa.Array, sizes: Tensor) -> pa.Array:
    """Split values into lists of these sizes."""
    ends = torch.cumsum(sizes, 0).tolist()
    return pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), values)


def _flat(column: Tensor, where: Tensor | None = None) -> pa.Array:
    """A column, in 32 bits where they suffice; floats are null where NaN and outside `where`."""
    if not column.is_floating_point():
        wide = column.dtype == torch.int64 and bool((column.abs() >= 2**31).any())
        numbers = column.cpu().numpy()
        return pa.array(numbers if wide or column.dtype == torch.bool else numbers.astype(np.int32))
    void = column.isnan() if where is None else column.isnan() | ~where
    return pa.array(column.float().cpu().numpy(), mask=void.cpu().numpy())
