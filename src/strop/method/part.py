"""What a part is: a frozen dataclass called with the columns that its parameters name.

A part's fields are its hyperparameters. The parameters of its `__call__` are the columns it reads
(`reward_B`, `logp_old_T`; a parameter with the default None is optional) and, where it needs them,
the special names of `seams.SPECIAL`. Its kind (its folder, or the class attribute `kind` of a part
of your own) says where it may stand and what it writes; a class attribute `writes` says otherwise.

A `Use` is a part at a place. A `Term` holds the parts that make one named term of the loss.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

from strop.catalogue.seams import SEAM_OF, SERVICES, SLOTS, SPECIAL, Seam
from strop.method.fitting import declared, fitting, made
from strop.method.schedule import Schedule, number_at
from strop.method.services import Services
from strop.support.about import PARTS_MODULE
from strop.support.errors import RunStopped, StepGivenUp, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from strop.batch.batch import Batch


class Columns(Protocol):
    """The source of a part's columns: a batch, or the rows of it that a loss term sees."""

    def __contains__(self, name: str, /) -> bool:
        """Whether there is a column of this name."""
        ...

    def __getitem__(self, name: str, /) -> "Tensor | int":
        """The column; a table's size is an int."""
        ...


class Fields(Protocol):
    """Any object with the fields of a dataclass, as every part is."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


P = TypeVar("P", bound=Fields)


class Result(NamedTuple):
    """The result of a part's call; a bare value means `Result(value)`.

    value: a tensor, or a tuple in the order of `writes`. state: stages 1 to 4 only. metrics: one
    number each; a rollout or reward part gives an int for what it counts; a loss part may give one
    number per token, which the kernel averages.
    """

    value: Any
    state: Any = None
    metrics: Mapping[str, Any] = {}


class Curated(NamedTuple):
    """A curation's answer: rows to keep, why, rows to add, and draws to roll out first.

    `ask`: number of further prompts wanted, or draws of given prompts. Stages 2 to 4 run again for
    them, and the curation then sees the joined batch. Nothing is dropped while `ask` is not empty.
    """

    keep_B: "Tensor"
    reason: str
    add: "Batch | None" = None
    ask: "tuple[Draw, ...] | int" = ()


EARLIER = 1 << 20  # numbers of draws from here on are of groups that an earlier step began


class Draw(NamedTuple):
    """One prompt to roll out: its uid, how many rollouts, columns that go with them.

    draw: which draw of the prompt in this step; rollouts of equal (uid, draw) form one group. The
    trainer numbers a sampler's draws; a curation that asks for more of a group names its draw.
    why: the reason for the draw, in words for the rollout files; empty for draws in a fixed order.
    probability: the chance that a draw of this step is of this prompt, where the sampler has a rule
    for it; later estimates from the logs need it.
    """

    uid: int
    num_rollouts: int
    columns: Mapping[str, Any] = {}
    draw: int = 0
    why: str = ""
    probability: float | None = None

    def because(self, why: str) -> "Draw":
        """Return the draw with one more reason."""
        return self._replace(why="; ".join(filter(None, (self.why, why))))


class Selected(NamedTuple):
    """A selection's answer: tokens with gradient, tokens that count in averages, and why."""

    gradient_T: "Tensor"
    denominator_T: "Tensor"
    reason: str


class Update(NamedTuple):
    """One optimiser step of a plan: its tokens and how they are weighted.

    factor_T multiplies advantage_T, detached; before: columns recomputed first; after: columns
    measured afterwards; both are sent to the plan, 0 outside the update's rollouts. terms: names
    of the terms that take part, or of learners for all of their terms; empty for all.
    "advantage_T" in before: the critic's current values, and the advantage chain on them.
    """

    tokens_T: "Tensor"
    factor_T: "Tensor | None" = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()


# What a plan returns. After each update it is sent the batch and the measured columns, or nothing;
# at the end it may return numbers for the log.
Updates: TypeAlias = "Generator[Update, tuple[Batch, Mapping[str, Tensor]] | None, Any]"


@dataclass(frozen=True)
class Use:
    """One place of a part in an algorithm; `columns` renames what it reads or writes.

    `columns` leaves out a column that keeps its own name.
    """

    part: Any
    columns: tuple[tuple[str, str], ...] = ()
    label: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", name_of(self.part))
        if "." in self.label:  # a dot separates the names in an option's path
            raise UserError(f"@ {self.label!r}: a label has no dot; take another name")
        wires = tuple(wire for wire in self.columns if not _is_idle(self.part, *wire))
        object.__setattr__(self, "columns", wires)


def _is_idle(part: object, name: str, column: str) -> bool:
    """Whether a wire keeps one of the part's own names, which its class does not rename."""
    if name != column or name in getattr(part, "columns", {}):
        return False
    return name in {p.name for p in parameters(part)} or name in _written(part)


class Read(NamedTuple):
    """One column that a part reads: parameter, column, and whether it must be there."""

    parameter: str
    column: str
    required: bool


def name_of(part: object) -> str:
    """The part's name: its class name in snake_case, which is its file's name."""
    return _snake_case(type(part).__name__)


@functools.cache
def _snake_case(text: str) -> str:
    return "".join(
        "_" + c.lower() if c.isupper() and i and not text[i - 1].isupper() else c.lower()
        for i, c in enumerate(text)
    )


def usual_labels(chain: tuple[Use, ...]) -> tuple[str, ...]:
    """The default label of each part: its name, numbered where the name is taken."""
    return tuple(
        free_label(name_of(use.part), [other.label for other in chain[:index]])
        for index, use in enumerate(chain)
    )


def distinct(chain: tuple[Use, ...]) -> tuple[Use, ...]:
    """Uses with labels made distinct: the second `whiten` is labelled `whiten_2`."""
    result: list[Use] = []
    for use in chain:
        label = free_label(use.label, [other.label for other in result])
        result.append(use if label == use.label else dataclasses.replace(use, label=label))
    return tuple(result)


def free_label(label: str, taken: list[str]) -> str:
    """The label, numbered where it is taken: `whiten_2`."""
    found, number = label, 1
    while found in taken:
        number += 1
        found = f"{label}_{number}"
    return found


def kind_of(part: object) -> str:
    """The part's kind ("advantage/scale"), as it states it or by its folder; empty for neither."""
    stated: str = getattr(part, "kind", "")
    folder, _, _ = type(part).__module__.rpartition(".")
    if stated or not folder.startswith(f"{PARTS_MODULE}."):
        return stated
    return folder.removeprefix(f"{PARTS_MODULE}.").replace(".", "/")


def seam_of(part: object) -> Seam | None:
    """The seam of the part's kind; None for a part without a known kind."""
    return SEAM_OF.get(kind_of(part))


def parameters(part: object) -> tuple[inspect.Parameter, ...]:
    """The parameters of the part's call, without self."""
    kind: type = type(part)
    return parameters_of(kind)


@functools.cache
def parameters_of(kind: type) -> tuple[inspect.Parameter, ...]:
    """The parameters of the call of a class of parts, without self."""
    return tuple(inspect.signature(kind.__call__).parameters.values())[1:]


def reads(use: Use) -> tuple[Read, ...]:
    """The columns that the part reads at this place.

    A part's `unread` names the parameters for which its current fields need no column.
    """
    renamed = {**getattr(use.part, "columns", {}), **dict(use.columns)}
    unread: frozenset[str] = getattr(use.part, "unread", frozenset())
    kind: type = type(use.part)
    return tuple(
        Read(name, renamed.get(name, name), required)
        for name, required in _columns_asked(kind)
        if name not in unread
    )


@functools.cache
def _columns_asked(kind: type) -> tuple[tuple[str, bool], ...]:
    """The column parameters of a class of parts, and whether each is required (has no default)."""
    asked = (p for p in parameters_of(kind) if p.name not in SPECIAL)
    return tuple((p.name, p.default is inspect.Parameter.empty) for p in asked)


def any_of(use: Use) -> tuple[tuple[str, ...], ...]:
    """Groups of optional columns; the part needs at least one column of each group.

    A part's `any_of` names the parameters, which may depend on its fields.
    """
    groups: tuple[tuple[str, ...], ...] = getattr(use.part, "any_of", ())
    column_of = {read.parameter: read.column for read in reads(use)}
    return tuple(tuple(column_of[name] for name in group) for group in groups)


def present(column: "Tensor | None") -> "Tensor":
    """An optional column that the part's `any_of` names, or that its fields imply."""
    assert column is not None, "a composition without it is refused"
    return column


def writes(use: Use) -> tuple[str, ...]:
    """The columns that the part writes at this place."""
    renamed = dict(use.columns)
    return tuple(renamed.get(name, name) for name in _written(use.part))


def _written(part: object) -> tuple[str, ...]:
    """The columns that the part writes, under the part's own names."""
    seam = seam_of(part)
    found: tuple[str, ...] = getattr(part, "writes", seam.writes if seam is not None else ())
    return found


def update_reads(use: Use, hook: str = "update") -> tuple[str, ...]:
    """The columns that the part's own `update`, or `observe`, reads; none where it has none."""
    return tuple(_renamed(use, hook).values())


def _renamed(use: Use, hook: str) -> dict[str, str]:
    """The columns that a hook of the part reads, by its own names."""
    if not hasattr(use.part, hook):
        return {}
    named, renamed = inspect.signature(getattr(use.part, hook)).parameters, dict(use.columns)
    return {name: renamed.get(name, name) for name in named if name != "state"}


# Log-probabilities of the policy that drew the tokens.
DRAWN_BY = frozenset({"logp_behavior_T", "logp_sampler_T"})

# Attributes of strategies whose rollouts may have several turns.
PLAYED = ("needs_environment", "needs_agent", "needs_live")


def facts(use: Use) -> frozenset[str]:
    """The facts that the part states, and those that follow from its columns and attributes.

    A ratio over the policy that drew the tokens contains the behaviour ratio; a correction that
    reads that policy corrects it. Rollouts that are played or posted have turns.
    """
    stated: frozenset[str] = getattr(use.part, "facts", frozenset())
    if any(getattr(use.part, name, False) for name in PLAYED):
        stated |= {"has_turns"}
    moves = getattr(use.part, "moves", ())
    stated |= {f"moves_{name}" for name in COPIES if knobs_of_copy(name)[0] in moves}
    reads_drawn = DRAWN_BY & {read.column for read in reads(use) if read.required}
    if not reads_drawn:
        return stated
    derived = {"log_ratio_T": "contains_behavior_ratio", "correction_T": "corrects_behavior_ratio"}
    return stated | {derived[name] for name in writes(use) if name in derived}


# Called after every call of a part with the use, the batch, the arguments and the result.
# `tensors.checked` sets it; None: nothing observes.
Observer = Callable[[Use, Columns | None, Mapping[str, Any], Result], None]
observer: Observer | None = None


def call(
    use: Use, batch: Columns | None, services: Services | None = None, **special: Any
) -> Result:
    """Call the part with the columns it names from `batch` and the special names it takes.

    Its services come from `services`. Raises UserError when a required column is missing.
    """
    arguments: dict[str, Any] = {}
    for read in reads(use):
        if batch is not None and read.column in batch:
            arguments[read.parameter] = batch[read.column]
        elif read.required:
            raise UserError(f"part {use.label} reads {read.column}, which nothing has written")
    columns = dict(arguments)
    for parameter in parameters(use.part):
        if parameter.name in SERVICES:
            if services is None:
                raise UserError(f"part {use.label} asks for {parameter.name}; give call services")
            arguments[parameter.name] = getattr(services, parameter.name)
        elif parameter.name in SPECIAL and parameter.name in special:
            arguments[parameter.name] = special[parameter.name]
    if "batch" in {p.name for p in parameters(use.part)}:
        arguments["batch"] = batch
    versions = _versions(columns)
    with naming(use, use.part.__call__, batch):
        outcome = use.part(**arguments)
    if (now := _versions(columns)) != versions:
        changed = next(name for name in versions if now[name] != versions[name])
        raise UserError(
            f"part {use.label} changed its input {changed} in place, which other parts read too: "
            "let it return a new tensor"
        )
    result = outcome if isinstance(outcome, Result) else Result(outcome)
    _check_returned(use, batch, result.value)
    if observer is not None:
        observer(use, batch, arguments, result)
    return result


@contextmanager
def naming(use: Use, method: Callable[..., Any], batch: Columns | None) -> Iterator[None]:
    """Inside, an error of the code of a part's method names the part, the line and the step."""
    try:
        yield
    except (UserError, RunStopped, StepGivenUp):
        raise
    except Exception as error:
        error.add_note(_failed(use, method, batch, error))
        error.__dict__["in_part"] = error.__traceback__  # its frames from here on
        raise


def _failed(use: Use, method: Callable[..., Any], batch: Columns | None, error: Exception) -> str:
    """The part whose method raised the error, where in its file, and at which step."""
    code = inspect.unwrap(method).__code__
    line, trace = code.co_firstlineno, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == code.co_filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    at = f", step {int(batch['step'])}" if batch is not None and "step" in batch else ""
    return f"The part {use.label} raised this: {code.co_filename}:{line}{at}"


def _versions(columns: Mapping[str, Any]) -> dict[str, tuple[int, bool]]:
    """How often each tensor has been written into, as torch counts, and if it has a gradient."""
    return {
        name: (value._version, value.requires_grad) for name, value in columns.items()
        if hasattr(value, "is_inference") and not value.is_inference()
    }  # fmt: skip


def _check_returned(use: Use, batch: Columns | None, value: object) -> None:
    """Raise UserError where a part returns the wrong type, or a tensor that does not fit its
    column.
    """
    wanted = {"curation": Curated, "selection": Selected, "plan": Generator, "rollout": Coroutine}
    kind = kind_of(use.part)
    if kind in wanted and not isinstance(value, wanted[kind]):
        raise UserError(
            f"part {use.label} returned {type(value).__name__}; a part of {kind} returns "
            f"{SEAM_OF[kind].returns}"
        )
    if batch is None:
        return
    if isinstance(value, Selected):
        given = {"gradient_T": value.gradient_T, "denominator_T": value.denominator_T}
    elif isinstance(value, Curated):
        given = {"scored_B": value.keep_B}  # keep_B is a mask of rollouts, as scored_B is
    elif (kind in SEAM_OF and SEAM_OF[kind].returns) or not writes(use):
        given = {}
    else:
        given = {} if kind == "rate" and isinstance(value, int | float) else _given(use, value)
    for column, tensor in given.items():
        check(use, batch, "gives", column, tensor)


def check(use: Use, batch: Columns, verb: str, column: str, value: "Tensor") -> None:
    """Raise UserError for a tensor that a part reads or gives and that does not fit its column."""
    from strop.batch.batch import SIZED_BY, level_of  # they load torch, which this module does not
    from strop.batch.columns import misfit

    level = level_of(column)
    table = batch[SIZED_BY[level]] if level and SIZED_BY[level] in batch else None
    if wrong := misfit(use, column, value, table):
        raise UserError(f"part {use.label} {verb} {wrong}")


def _given(use: Use, value: object) -> "dict[str, Tensor]":
    """The tensors that a part returned, by column. Raises UserError for anything else."""
    names = writes(use)
    values = value if isinstance(value, tuple) else (value,)
    if len(names) != len(values):
        came = f"{len(values)} values" if values is value else f"one {type(value).__name__}"
        tuple_of = f"a tuple of {len(names)} tensors in this order: {', '.join(names)}"
        none = "it writes no column: name columns in `writes`, or return an empty tuple"
        wanted = {0: none, 1: f"return one tensor, {', '.join(names)}"}
        raise UserError(
            f"part {use.label} returned {came}; {wanted.get(len(names), f'return {tuple_of}')}"
        )
    for name, one in zip(names, values, strict=True):
        if not hasattr(one, "dim"):
            raise UserError(
                f"part {use.label} returned {type(one).__name__} for {name}, not a tensor"
            )
    return dict(zip(names, values, strict=True))


def write(batch: "Batch", use: Use, result: Result) -> "Batch":
    """`batch` with the part's columns set from its result, without a gradient of its own."""
    given = {name: value.detach() for name, value in _given(use, result.value).items()}
    try:
        return batch.set(**given)
    except ValueError as error:
        raise UserError(f"part {use.label}: {error}") from error


def require(
    part: object, *names: str, low: float | Schedule | None = None, high: float | None = None
) -> None:
    """Raise UserError unless these fields lie in [low, high]; schedules are checked per step."""
    low = None if isinstance(low, Schedule) else low
    for name in names:
        value = getattr(part, name)
        if isinstance(value, Schedule) or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise UserError(f"{name_of(part)}.{name} must be a number, it is {value!r}")
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            bounds = f"at most {high}" if low is None else bounds
            raise UserError(f"{name_of(part)}.{name} must be {bounds}, it is {value}")


def require_constant(part: object, name: str) -> None:
    """Raise UserError for a schedule in field `name`, which has to be known before the run."""
    if isinstance(value := getattr(part, name), Schedule):
        raise UserError(
            f"{name_of(part)}.{name} is one number for the whole run, no schedule: {value}"
        )


def require_one_of(part: object, name: str, allowed: tuple[str, ...]) -> None:
    """Raise UserError unless field `name` is one of `allowed`."""
    if (value := getattr(part, name)) not in allowed:
        raise UserError(f"{name_of(part)}.{name} must be one of {', '.join(allowed)}: {value!r}")


def fields_of(part: Fields) -> dict[str, Any]:
    """Field names and values of a part."""
    return {name: getattr(part, name) for name in _field_names(type(part))}


@functools.cache
def _field_names(kind: type[Fields]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def replace(part: P, **changes: Any) -> P:
    """The part with fields changed. Raises UserError for an unknown field or a wrong type."""
    known = fields_of(part)
    for name, value in changes.items():
        if name not in known:
            raise UserError(
                f"{name_of(part)} has no field {name}; it has {', '.join(known) or 'none'}"
            )
        hint = declared(type(part)).get(name)
        changes[name] = fitting(f"{name_of(part)}.{name}", hint, known[name], value)
    return made(name_of(part), lambda: dataclasses.replace(part, **changes))


def scheduled(part: Fields, step: int, num_steps: int, where: str = "") -> dict[str, float]:
    """The numbers at `step` of all fields that are schedules; rounded where the field is whole.

    where: the part's path, for messages.
    """
    whole = {f.name for f in dataclasses.fields(part) if f.type in (int, "int")}
    found: dict[str, float] = {}
    for name, value in fields_of(part).items():
        if isinstance(value, Schedule):
            number = number_at(f"{where or name_of(part)}.{name}", value, step, num_steps)
            found[name] = round(number) if name in whole and math.isfinite(number) else number
    return found


def at_step(part: P, step: int, num_steps: int) -> P:
    """The part with every schedule replaced by its number at `step`."""
    changes = scheduled(part, step, num_steps)
    return replace(part, **changes) if changes else part


def update(use: Use, batch: "Batch", state: Any, hook: str = "update") -> Any:
    """Return the part's new state from its `update`, or `observe`, and the columns that it names.

    `update` runs at the end of a step, on the rows that curation left, with all columns;
    `observe` runs before curation drops anything, on all rows that were sampled and scored.
    """
    given = {name: batch[column] for name, column in _renamed(use, hook).items()}
    method = getattr(use.part, hook)
    with naming(use, method, batch):
        found = method(**given, state=state)
    if found is None and state is not None:
        raise UserError(f"part {use.label} returned None from `{hook}`: return the new state")
    return found


LEARNERS = ("policy", "critic")
# The knobs that controls may move although they are outside the algorithm.
LR = "training.lr"
# Copies of the trained weights. The loop keeps each one while some control moves it by its knobs:
#   reference   the policy that reference terms compare with
#   anchor      moves part of the way to the policy, which then continues from there
#   explorer    the policy that rollout parts may explore with
COPIES = ("reference", "anchor", "explorer")


def knobs_of_copy(name: str) -> tuple[str, str]:
    """The knobs of a copy: the step at which it moved last (0: it holds the run's first weights),
    and the share of the way to that step's policy that it then moved.
    """
    return f"model.{name}", f"model.{name}_share"


OUTSIDE = (LR, *(knob for name in COPIES for knob in knobs_of_copy(name)))


@dataclass(frozen=True)
class Term:
    """loss = -coef * sum_t share_T * correction_T * objective_T over the rows of the term.

    objective: (log_ratio_T or logp_T, advantage_T, ...) -> objective_T. average: (denominator_T,
    ...) -> share_T, over the whole update. ratio: -> log_ratio_T. correction: -> correction_T,
    detached. on: a selection part that narrows this term's masks. learner: whose weights it trains,
    "policy" (starts from gradient_T) or "critic" (starts from the scored part of mask_T; its
    objective reads the value columns of its heads: value_T, value_low_T, ...).
    """

    name: str
    objective: Use
    average: Use
    ratio: Use | None = None
    correction: Use | None = None
    on: Use | None = None
    coef: float | Schedule = 1.0
    learner: str = "policy"

    def uses(self) -> Iterator[tuple[str, Use]]:
        """The filled slots in the order in which they run."""
        for slot in SLOTS:
            use = getattr(self, slot)
            if use is not None:
                yield slot, use
