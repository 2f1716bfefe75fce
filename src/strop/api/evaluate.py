"""`strop.evaluate` and `strop.sample`: scores of a model or of a run's checkpoint, and answers."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from strop.api import tables
from strop.api.arguments import checked
from strop.api.folders import HasFolder
from strop.api.inference import InferenceModel, check_samples, check_scoring, open_model, scored
from strop.api.inputs import files_of, in_memory, sources_of, task_of
from strop.api.messages import messages_in_python
from strop.api.options import from_keywords
from strop.api.tables import Table
from strop.api.trust import made_here
from strop.evaluation.at_k import usual_ks
from strop.evaluation.samples import Estimate, Floats
from strop.support.errors import UserError, nearest_first


@dataclass(frozen=True)
class Evaluation:
    """Scores with their 95% intervals over prompts: `evaluation["pass@1"]`, `evaluation.table`."""

    title: str
    estimates: Mapping[str, Estimate]
    num_left_out: int  # prompts with fewer scored answers than the largest k
    by_prompt: Mapping[str, Floats] = field(default_factory=dict)  # scores a prompt; NaN: none

    def __getitem__(self, name: str) -> float:
        if name not in self.estimates:
            raise KeyError(f"no score {name}: there are {nearest_first(name, self.estimates)}")
        return self.estimates[name].value

    @property
    def table(self) -> Table:
        """One row for each score: name, value, and the lower and upper end of its interval."""
        return tables.of_rows(
            [
                {"name": name, "value": found.value, "low": found.low, "high": found.high}
                for name, found in self.estimates.items()
            ]
        )

    def __repr__(self) -> str:
        width = max(map(len, self.estimates), default=0)
        lines = [f"{name:{width}}  {interval(found)}" for name, found in self.estimates.items()]
        return "\n".join([self._head, *lines])

    def _repr_html_(self) -> str:
        rows = [(name, interval(found)) for name, found in self.estimates.items()]
        return tables.as_html(self._head, rows)

    @property
    def _head(self) -> str:
        left = f", {self.num_left_out} prompts left out at the largest k: too few scored answers"
        return f"{self.title}{left if self.num_left_out else ''}"


def interval(found: Estimate) -> str:
    """A value with its interval, where it has one; `-` where there is no value."""
    if math.isnan(found.value):
        return "-"
    if found.value == round(found.value) and found.low == found.high:
        return f"{found.value:.0f}"
    value = f"{found.value:.3f}"
    if math.isnan(found.low) or found.low == found.high:
        return value
    return f"{value} ({found.low:.3f} to {found.high:.3f})"


@dataclass(frozen=True)
class Answer:
    """A sampled answer; logp: mean log-probability of a token in nats, NaN where unknown;
    ended: `stop`, `length` where it was cut off, or why it failed.
    """

    text: str
    logp: float
    ended: str


@checked
def evaluate(
    source: Any = "tiny",
    *,
    data: Any = None,
    reward: Any = None,
    task: str | type = "",
    tokenizer: Any = None,
    k: Sequence[int] | int | None = None,
    samples: int = 0,
    split: str = "",
    prompts: int = 0,
    step: int = 0,
    start: bool = False,
    best: bool = False,
    temperature: float | None = None,
    max_tokens: int = 0,
    seed: int = 0,
    engine: str = "",
    trust_files: bool = False,
    **options: Any,
) -> Evaluation:
    """Unbiased pass@k, maj@k, mean@n, confidence, diversity and lengths, with 95% intervals.

    source: a run, a run's folder, a model's folder or name, or a loaded model. data: rows or
    paths; by default those of the run or the task. reward: as `strop.train` takes it. k: None: 1
    and 8, or 1 and samples where these are fewer. samples: answers a prompt (0: 16 or the largest
    k). split: heldout, validation or train. prompts: at
    most this many (0: all). step: of the checkpoint (0: the newest); start: the model that the run
    started from; best: its best checkpoint by training.best. temperature: None: that of the run's
    validation, whose top_p, top_k and min_p hold too, and 1 for a model.
    trust_files: whether files and modules that a folder's config.toml names may be used; not
    needed where this process has trained its run. Raises UserError.
    """
    k = usual_ks(8, samples) if k is None else k
    several = (k,) if isinstance(k, str) or not isinstance(k, Iterable) else tuple(k)
    if not several or any(type(each) is not int or each < 1 for each in several):
        raise UserError(f"k is {k!r}: give whole numbers of at least 1")
    ks = tuple(sorted(set(several)))
    samples = samples or max(16, *ks)
    split = split or ("train" if data is not None else "heldout")
    opening = opened(
        source, tokenizer, data=data, reward=reward, task=task_of(task), step=step, start=start,
        best=best, temperature=temperature, max_tokens=max_tokens, engine=engine, trust=trust_files,
        assignments=from_keywords(options), split=split,
    )  # fmt: skip
    with messages_in_python():
        check_scoring(ks, samples)
        with opening as subject:
            found = scored(subject, split, prompts, samples, ks, seed)
            title = f"{_name(source)} on {subject.services.task.name} {split}"
    if not found.estimates:
        raise UserError(found.why_empty)
    estimates = {name.replace("@n", f"@{samples}"): each for name, each in found.estimates.items()}
    by_prompt = {name.replace("@n", f"@{samples}"): each for name, each in found.by_prompt.items()}
    return Evaluation(title, estimates, found.num_left_out, by_prompt)


@checked
def sample(
    source: Any,
    prompt: str,
    n: int = 4,
    *,
    tokenizer: Any = None,
    temperature: float | None = None,
    max_tokens: int = 0,
    step: int = 0,
    seed: int = 0,
    engine: str = "",
    trust_files: bool = False,
    **options: Any,
) -> list[Answer]:
    """Sample answers to a prompt from a run's checkpoint or a model; arguments as in `evaluate`."""
    check_samples(n)
    opening = opened(
        source, tokenizer, step=step, temperature=temperature, max_tokens=max_tokens,
        engine=engine, trust=trust_files, assignments=from_keywords(options), with_rewards=False,
    )  # fmt: skip
    with messages_in_python(), opening as subject:
        return [Answer(*found) for found in subject.answer(prompt, n, seed)]


@contextlib.contextmanager
def opened(
    source: Any,
    tokenizer: Any,
    data: Any = None,
    reward: Any = None,
    with_rewards: bool = True,
    trust: bool = False,
    **options: Any,
) -> Iterator[InferenceModel]:
    """Open the model to sample; rows and functions are kept in temporary files until it closes."""
    loaded = None
    if isinstance(source, HasFolder):
        source.keep()
        name, trust = str(source.folder), trust or source.trusted
    elif isinstance(source, str | Path):
        name, trust = str(source), trust or made_here(Path(source))
        if tokenizer is not None:
            raise UserError("tokenizer goes with a model that is loaded: leave it out")
    else:
        loaded = in_memory(source, tokenizer)
        name = loaded.source
    with TemporaryDirectory(prefix="strop-") as folder:
        given = Path(folder) / "given"
        files = files_of(data, given / "data.jsonl")
        functions = sources_of(reward, given)
        subject = open_model(
            name, data=list(files), reward=list(functions), scored=with_rewards, trust=trust,
            loaded=loaded, **options,
        )  # fmt: skip
        with subject:
            yield subject


def _name(source: Any) -> str:
    if isinstance(source, str | Path):
        return str(source)
    return str(source.folder) if isinstance(source, HasFolder) else type(source).__name__
