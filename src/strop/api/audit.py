"""`strop.audit`: what a method does to a policy that is small enough to enumerate."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.api import tables
from strop.api.arguments import check_seed, checked
from strop.api.messages import in_python, messages_in_python
from strop.api.options import labelled, settings_of_all
from strop.api.tables import Table
from strop.auditing.bench import Uncountable
from strop.auditing.estimate import Audit, Limits
from strop.auditing.vary import (
    TEACHER,
    Setting,
    compose,
    gives_group,
    group_of,
    one,
    phases_of,
    variations,
)
from strop.support.errors import UserError
from strop.training.settings.config import RunConfig

SHORT = {"staleness": "stale"}
COLUMNS = {
    "scale": "scale",
    "bias": "bias",
    "token_bias": "token bias",
    "cosine": "cosine",
    "noise": "noise",
    "error": "error",
    "success_change": "success'",
    "entropy_change": "entropy'",
    "ess": "ESS",
    "no_signal": "silent",
    "thrown_away": "refilled",
    "cut_scale": "c-scale",
    "cut_bias": "c-bias",
    "ratio": "ratio",
}
PLAIN = ("ess", "ratio")  # are exact whatever groups were drawn
LOWEST = {"group": 1, "success": -math.inf, "staleness": 0, "updates": 1}
MOST = {"staleness": 10_000, "updates": 10_000}  # each one is a step to compute
FEWEST_DRAWS = 40
MOST_ANSWERS = 4_000_000  # drawn in one setting: takes minutes and some GB
Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A method, or a phase of one, at the base setting and with one thing changed at a time."""

    label: str
    about: str
    found: tuple[tuple[str, Audit], ...]  # by a short name of what is changed
    rows: tuple[Row, ...]

    def shown(self) -> tuple[list[str], list[list[str]]]:
        """Headings and lines of a table; some columns only where a value is not the usual one.

        The column `error` compares group sizes, and is shown where there are several.
        """
        usual = {"ess": "1.000", "thrown_away": "0.000", "ratio": "1.000"}
        usual |= dict.fromkeys(("token_bias", "cut_scale", "cut_bias"), "-")
        texts = [
            (name, {k: _shown(getattr(each, k)) for k in COLUMNS}) for name, each in self.found
        ]
        kept = [k for k in COLUMNS if any(line[k] != usual.get(k) for _, line in texts)]
        if not any(name.startswith("group") for name, _ in texts):
            kept.remove("error")
        lines = [[name, *(line[key] for key in kept)] for name, line in texts]
        return ["setting", *(COLUMNS[key] for key in kept)], lines


@dataclass(frozen=True)
class Audited:
    """Bias, noise and first-order effects of methods; left_out: phases that cannot be enumerated.

    `table` has one row for each method and setting.
    """

    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()

    @property
    def table(self) -> Table:
        """Every number, one row for each method and setting."""
        return tables.of_rows([row for part in self.parts for row in part.rows])

    def __repr__(self) -> str:
        texts = [
            f"{part.label} {part.about}\n{tables.as_text(*part.shown())}" for part in self.parts
        ]
        return "\n\n".join([*texts, *self.left_out])

    def _repr_html_(self) -> str:
        found = []
        for part in self.parts:
            head, lines = part.shown()
            found.append(tables.as_html(f"{part.label} {part.about}", lines, head))
        return "".join(found)


@checked
def audit(
    methods: Any,
    *,
    group: Sequence[int] = (2, 4, 8),
    success: Sequence[float] = (0.1, 0.3, 0.7),
    staleness: Sequence[int] = (0, 2, 8),
    updates: Sequence[int] = (1, 4),
    step: float = 0.3,
    depth: int = 3,
    branching: int = 2,
    ragged: bool = True,
    prompts: int = 1,
    share: float = 0.5,
    most: int = 1500,
    draws: int = 1000,
    seed: int = 1,
    **options: Any,
) -> Audited:
    """Bias, variance and first-order effects of methods' gradients, by enumeration.

    methods: as in `strop.compare`. The base setting takes the middle number of group and success,
    the first of staleness and the method's own updates; the others are tried one at a time. The
    tree has `prompts` prompts with answers of at most `depth` tokens from `branching` (one of
    which ends an answer where it is `ragged`), a `share` of which are right; seed: of the tree and
    the policy. step: learning rate of an update. Where there are more than `most` groups, `draws`
    are drawn. options: of the methods, as `strop.train` takes them. Raises UserError.
    """
    given = {"group": group, "success": success, "staleness": staleness, "updates": updates}
    with messages_in_python():
        changes = {name: tuple(values) for name, values in given.items()}
        if empty := [name for name, values in changes.items() if not values]:
            raise UserError(f"{empty[0]} has no numbers: give at least one")
        base = base_of(
            changes, step=step, depth=depth, branching=branching, ragged=ragged, prompts=prompts,
            share=share, shape=seed,
        )  # fmt: skip
        named = labelled(methods, "audit")
        each_settings = settings_of_all(named, {}, options)
        for _, each in each_settings:
            phases_of(each)  # raises for a method that cannot be built, before any is audited
        found = []
        for (_, method), (label, each) in zip(named, each_settings, strict=True):
            own = method if isinstance(method, tuple) else (method, {})
            requested = any(map(gives_group, (*options, *own[1])))
            settings = each if requested or isinstance(own[0], str) else _ungrouped(each)
            found.append(audits(label, settings, base, changes, most, draws))
    return Audited(
        tuple(part for each in found for part in each.parts),
        tuple(in_python(line) for each in found for line in each.left_out),
    )


def base_of(changes: Mapping[str, Sequence[Any]], **tree: Any) -> Setting:
    """The setting that the others differ from in one thing. Raises UserError."""
    for name, values in changes.items():
        if any(not math.isfinite(value) or value < LOWEST[name] for value in values):
            text = ",".join(f"{value:g}" for value in values)
            raise UserError(
                f"--{name} {text}: every number must be finite and {LOWEST[name]} or more"
            )
        if max(values) > MOST.get(name, math.inf):
            raise UserError(f"--{name} {max(values):g}: {MOST[name]} are the most")
    if not 0 < tree["step"] < math.inf:
        raise UserError(f"--step {tree['step']}: it must be a number above 0")
    if tree["prompts"] < 1:
        raise UserError(f"--prompts {tree['prompts']}: a step has at least one")
    check_seed(tree["shape"])
    groups, rates = changes["group"], changes["success"]
    return Setting(
        group=groups[len(groups) // 2], success=rates[len(rates) // 2],
        staleness=changes["staleness"][0], updates=0, **tree,
    )  # fmt: skip


def audits(
    label: str,
    settings: RunConfig,
    base: Setting,
    changes: Mapping[str, Sequence[Any]],
    most: int,
    draws: int,
    tell: Callable[[Row], None] = lambda row: None,
) -> Audited:
    """Every setting's numbers of one method, phase by phase. tell: receives each row as it comes.

    Phases that cannot be enumerated are left out; Uncountable is raised where none can be.
    Raises UserError for more answers than can be drawn in minutes.
    """
    if draws < FEWEST_DRAWS:
        raise UserError(f"--draws {draws}: at least {FEWEST_DRAWS} give an interval")
    answers = int(max(changes["group"])) * base.prompts * draws
    if answers > MOST_ANSWERS:
        raise UserError(
            f"{draws} draws of {base.prompts} x {max(changes['group'])} answers are {answers:,}, "
            f"more than {MOST_ANSWERS:,}: lower --group, --prompts or --draws"
        )
    limits, phases = Limits(most, draws), phases_of(settings)
    parts: list[Part] = []
    left_out: list[str] = []
    for number, phase in enumerate(phases, 1):
        name = f"{label}: {phase}" if phase else label
        try:
            parts.append(_part(name, settings, number, base, changes, limits, tell))
        except Uncountable as error:
            if number == len(phases) and not parts:
                raise
            left_out.append(f"{name} is left out: {error}")
    return Audited(tuple(parts), tuple(left_out))


def _ungrouped(settings: RunConfig) -> RunConfig:
    """The settings of a method that a script has built, without its number of rollouts."""

    def without(options: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in options.items() if not gives_group(k)}

    phases = {
        name: phase.model_copy(update={"algorithm": without(phase.algorithm)})
        for name, phase in settings.phases.items()
    }
    changes = {"algorithm": without(settings.algorithm), "phases": phases}
    return settings.model_copy(update=changes)


def _part(
    label: str, settings: RunConfig, phase: int, base: Setting,
    changes: Mapping[str, Sequence[Any]], limits: Limits, tell: Callable[[Row], None],
) -> Part:  # fmt: skip
    rows: list[Row] = []
    lines: list[tuple[str, Audit]] = []
    base = dataclasses.replace(base, group=group_of(settings, base, phase))
    own = compose(settings, base, phase)
    for name, setting in variations(base, **{k: tuple(v) for k, v in changes.items()}):
        if name in ("updates", "group") and compose(settings, setting, phase) == own:
            continue  # the base's own number
        found = one(settings, setting, limits, phase)
        values = {key: getattr(found, key) for key in COLUMNS}
        row = {"recipe": label, **dataclasses.asdict(setting), "exact": found.exact}
        row |= {key: value if key in PLAIN else value.value for key, value in values.items()}
        rows.append(row)
        tell(row)
        what = f"{SHORT.get(name, name)} {getattr(setting, name):g}" if name else "base"
        lines.append((what, found))
    return Part(label, _about(base, lines[0][1]), tuple(lines), tuple(rows))


def _about(base: Setting, found: Audit) -> str:
    how, truth = "all" if found.exact else "drawn,", found.truth
    taught = (
        f", {-truth.success:.3f} nats an answer from a teacher of success {TEACHER}"
        if truth.token_slope is not None
        else ""
    )
    return (
        f"on a tree of {len(base.tree().paths)} answers of up to {base.depth} tokens: "
        f"group {base.group}, success {base.success:g}, entropy {truth.entropy:.3f} nats a "
        f"token{taught}; base setting: {how} {found.num_groups} groups"
    )


def _shown(number: Any) -> str:
    """A number with three digits, and with its error where groups were drawn."""
    value, within = (number, 0.0) if isinstance(number, float) else number
    if not math.isfinite(value):
        return "-"
    if not within:
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"
    if not math.isfinite(within):
        return f"{value:.3g}±inf"
    digits = max(0, min(3, 1 - math.floor(math.log10(within))))
    return f"{value:.{digits}f}±{within:.{digits}f}"
