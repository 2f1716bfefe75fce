"""Checks that an algorithm makes sense, before anything runs.

`check` walks the places of a step in order. It refuses a part at a place of another kind, a part
that asks for an argument its place does not pass, a read that nothing provides, a result that
nothing reads, a stage that ends without what the next one needs, and facts that contradict each
other. Each error is one line: the stage, the part, and what to do.
"""

import math
import sys
from collections.abc import Sequence

from strop.batch import columns
from strop.batch.batch import DERIVED
from strop.batch.columns import KNOWN, REFRESHED, is_value
from strop.catalogue import catalogue
from strop.catalogue.seams import PLACE_OF, PLACES, SEAM_OF, SPECIAL, Place, kinds_at, place_at
from strop.method import part as parts
from strop.method.algorithm import Algorithm, Method, Phases, trained_values
from strop.method.charts import charts_of, panel_of
from strop.method.contract import check_class
from strop.method.part import LEARNERS, OUTSIDE, Term, Use
from strop.method.schedule import Schedule
from strop.support.errors import UserError, nearest
from strop.support.loading import name_to_load

Placed = tuple[str, Use]
# The columns that the trainer itself takes from the batch after the stages have run.
TAKEN = frozenset(column for place in PLACES for column in (*place.needs, *place.taken))

# The trainer computes the models' columns at this stage, because rows may still change before it.
COMPUTED_BEFORE = "probes"
# The usual ones of many parts that write a column.
USUAL = ("score_with_verifiers", "play_turns", "sample_two_attempts")
# Distributions over the vocabulary that an objective may read.
DISTRIBUTIONS = frozenset({"logq_TV", "logq_ref_TV"})

# Pairs of facts that must not stand in one algorithm, and why.
CONTRADICTIONS = (
    (
        "removes_uniform_groups",
        "learns_from_uniform_groups",
        "the first drops the groups that the second learns from",
    ),
    (
        "contains_behavior_ratio",
        "corrects_behavior_ratio",
        "the engine's importance weight would be applied twice",
    ),
    (
        "advantage_mean_is_not_zero",
        "whitens_advantage",
        "whitening would remove the bias that the first adds on purpose",
    ),
    (
        "grades_one_answer",
        "has_turns",
        "the first grades texts as one answer, the second has turns; take a task that "
        "answers once, or another method",
    ),
)

# More rollouts in a step are a mistake, and would fill the memory before the first token.
MOST_ROLLOUTS = 2**20


def check(method: Method, given: frozenset[str] = frozenset()) -> None:
    """Raise UserError for the first thing about a method that cannot be intended.

    `given`: columns that come with the prompts or from outside.
    """
    if isinstance(method, Phases):
        _check_phases(method, given)
    else:
        _check_algorithm(method, given)
    charts_of(method.uses())  # raises where a part states something that is no chart
    panel_of(method.uses())  # raises where a part states something that is no metric's name


def _check_phases(method: Phases, given: frozenset[str]) -> None:
    """Check each phase, and that no two different parts would share state under one label."""
    kinds: dict[str, tuple[type, str]] = {}
    for phase in method.phases:
        try:
            _check_algorithm(phase.algorithm, given)
        except UserError as error:
            raise UserError(f"phase {phase.name}: {error}") from error
        for path, use in phase.algorithm.uses():
            kind, first = kinds.setdefault(path, (type(use.part), phase.name))
            if kind is not type(use.part) and _keeps_state(type(use.part), kind):
                raise UserError(
                    f"phases {first} and {phase.name}: {path} is {parts.name_of(use.part)} in "
                    "one and another part in the other, and state is saved by label: give one of "
                    "them another label (part @ label)"
                )


def _keeps_state(*kinds: type) -> bool:
    """Whether one of these classes of parts keeps state between steps."""
    return any(
        hasattr(kind, "init") or "state" in {p.name for p in parts.parameters_of(kind)}
        for kind in kinds
    )


def _check_algorithm(algorithm: Algorithm, given: frozenset[str]) -> None:
    placed = list(algorithm.uses())
    for path, use in placed:
        _check_place(path, use)
    if not algorithm.terms:
        raise UserError(
            "terms: there is no loss term, so nothing would be trained: take a recipe or "
            "parameters that have one"
        )
    if algorithm.plan is None:
        raise UserError("plan: there is none; split_into_minibatches makes one update a step")
    for learner in getattr(algorithm.plan.part, "learners", ()):
        if all(term.learner != learner for term in algorithm.terms):
            raise UserError(
                f"plan: {algorithm.plan.label} has updates of the {learner} alone, and no term "
                f"trains one: take split_into_minibatches, or add a term with learner={learner}"
            )
    for term in algorithm.terms:
        _check_term(term)
    known = columns.of(placed)  # raises where two declare a name differently
    _check_tracked(placed)
    _check_facts(placed)
    _check_size(algorithm)
    _check_knobs(algorithm)
    _check_equal(algorithm)
    _check_reads(algorithm, placed, given)
    _check_read_later(placed)
    _check_rewards_count(algorithm, placed)
    _check_made_before(algorithm)
    _check_declared(placed, {*given, *known})


def where(path: str) -> str:
    """The place of a path, as messages start with it: "advantage" or "terms.kl.ratio"."""
    return path if path.startswith("terms.") else path.split(".")[0]


def _check_place(path: str, use: Use) -> None:
    """Check that a part's kind fits its place, that it gets the arguments it takes, and that its
    renamed columns exist.
    """
    place, kind = place_at(path), parts.kind_of(use.part)
    admitted = kinds_at(place)
    if kind not in SEAM_OF:
        stated = f"is of the kind {kind!r}, which does not exist" if kind else "states no kind"
        usual = next(kind for kind in admitted if SEAM_OF[kind].places[0] == place.name)
        raise UserError(
            f"{where(path)}: {use.label} {stated}: give its class "
            f'`kind: ClassVar[str] = "{usual}"` ({", ".join(admitted)} may stand here)'
        )
    if kind not in admitted:
        raise UserError(
            f"{where(path)}: {use.label} is a part of {kind}, which stands at "
            f"{' or '.join(SEAM_OF[kind].places)}: take it out, or put one of "
            f"{', '.join(admitted)} in its place"
        )
    check_class(where(path), use.label, use.part)
    names = {parameter.name for parameter in parts.parameters(use.part)}
    if unknown := sorted((names & SPECIAL) - place.handed):
        raise UserError(
            f"{where(path)}: {use.label} asks for {unknown[0]}, which no part gets here: "
            + _instead(unknown[0], place)
        )
    wired = (names - SPECIAL) | set(parts.writes(Use(use.part)))
    if odd := [name for name, _ in use.columns if name not in wired]:
        raise UserError(
            f"{where(path)}: {use.label} renames {odd[0]}, which it neither reads nor writes; it "
            f"has {', '.join(sorted(wired))}"
        )


def _instead(special: str, place: Place) -> str:
    """The remedy for a special name that a place does not pass to its parts."""
    handing = [other for other in PLACES if special in other.handed]
    writing = [
        other.name
        for other in handing
        if PLACES.index(other) < PLACES.index(place)
        and any(not SEAM_OF[kind].returns for kind in kinds_at(other))
    ]
    if writing:
        return f"let a part of {' or '.join(writing)} write a column from it, and read that column"
    names = " or ".join(other.name for other in handing)
    return f"a part of {names} gets it; take the parameter out"


def _check_reads(algorithm: Algorithm, placed: Sequence[Placed], given: frozenset[str]) -> None:
    """Check that every required column is written before it is read, and that every stage ends
    with the columns that the next one needs.
    """
    have = set(given) | set(DERIVED) | {*columns.RUN_WIDE}
    ratios = {term.name for term in algorithm.terms if term.ratio is not None}
    for place in PLACES:
        have |= set(place.given)
        if place.name == COMPUTED_BEFORE:
            have |= REFRESHED | _values(algorithm)
        for path, use in placed:
            if place_at(path) is not place:
                continue
            own = {"log_ratio_T"} if path.split(".")[1] in ratios else set()
            for group in (*((column,) for column in _required(use)), *parts.any_of(use)):
                if not any(c in have or _in_the_pass(c, place, own) for c in group):
                    raise UserError(_missing(path, use, group[0], place, group[1:]))
            if not place.slot:  # the columns that a term's parts make go into its loss
                have |= _made(use)
        for column in place.needs:
            if column not in have:
                raise UserError(_ends_without(place, column))
        if place.name == "curation":
            _check_hooks(placed, have, "observe", place)
    _check_hooks(placed, have, "update", PLACES[-1])


def _values(algorithm: Algorithm) -> set[str]:
    """The value columns of the critic's heads."""
    heads = algorithm.value_columns()
    copies = (columns.old_value, columns.slow_value)
    return {*heads, *(copy(head) for head in heads for copy in copies)}


def _in_the_pass(column: str, place: Place, own: set[str]) -> bool:
    """Whether a part of a term gets the column from the forward pass, in addition to the batch.

    own: the columns that the term's other parts make for its objective.
    """
    if place.slot == "objective" and (column in own or column in DISTRIBUTIONS):
        return True
    return place.slot in ("ratio", "objective") and columns.is_current(column)


def _check_hooks(placed: Sequence[Placed], have: set[str], hook: str, place: Place) -> None:
    """Check that the columns of parts' hooks exist when these run: `observe` before curation drops
    anything, `update` at the end of the step.
    """
    for path, use in placed:
        for column in parts.update_reads(use, hook):
            if column not in have:
                raise UserError(_missing(path, use, column, place))


def _required(use: Use) -> list[str]:
    """The inputs that the part needs from other parts: required columns, and draws."""
    specials = [
        p.name for p in parts.parameters(use.part) if p.name == "draws" and p.default is p.empty
    ]
    return [read.column for read in parts.reads(use) if read.required] + specials


def _made(use: Use) -> set[str]:
    """The outputs of the part: its columns, and draws where it is a sampler."""
    seam = parts.seam_of(use.part)
    draws = {"draws"} if seam is not None and seam.returns == "draws" else set()
    return set(parts.writes(use)) | draws


def _check_read_later(placed: Sequence[Placed]) -> None:
    """Check that at least one of a part's results is read before another part replaces it.

    A probe that states charts or panel lines may be there for its metrics alone.
    """
    at_the_end = _read_by_hooks(placed)
    for index, (path, use) in enumerate(placed):
        seam = parts.seam_of(use.part)
        if seam is None or not seam.anew:
            continue
        is_probe = seam.kind == "probe"
        if is_probe and (charts_of([(path, use)]) or panel_of([(path, use)])):
            continue
        made = _made(use)
        later = placed[index + 1 :]
        if not any(_is_read(column, later, at_the_end) for column in made):
            shown = ", ".join(sorted(made)) or "no column"
            before = _reader_before(made, placed[:index])
            remedies = [f"move it before {before}"] if before else []
            if is_probe:
                remedies.append("state its `charts` or `panel`, if it is there for its metrics")
            raise UserError(
                f"{where(path)}: {use.label} writes {shown}, which nothing after it reads"
                + "".join(map(columns.without_letter, parts.writes(use)))
                + ": "
                + ", or ".join([*remedies, "leave it out"])
            )


def _read_by_hooks(placed: Sequence[Placed]) -> set[str]:
    """The columns that parts' hooks read, before curation or at the end of the step."""
    hooks = [(use, hook) for _, use in placed for hook in ("observe", "update")]
    return {name for use, hook in hooks for name in parts.update_reads(use, hook)}


def _check_rewards_count(algorithm: Algorithm, placed: Sequence[Placed]) -> None:
    """Check that what parts change in the reward counts, where the advantage does not begin with it
    since it is computed from each reward function's own.
    """
    begins: Sequence[Placed] = [("advantage", use) for use in algorithm.advantage]
    if not begins or _is_read("advantage_B", begins, set()):
        return
    at_the_end = _read_by_hooks(placed)
    for index, (path, use) in enumerate(placed):
        reads = {read.column for read in parts.reads(use)}
        changes = place_at(path).name == "reward" and _made(use) == {"reward_B"} <= reads
        if changes and not _is_read("reward_B", placed[index + 1 :], at_the_end, frozenset()):
            raise UserError(
                f"reward: {use.label} changes reward_B, which nothing reads: {begins[0][1].label} "
                "computes the advantage without it. Take one of the two out"
            )


def _check_made_before(algorithm: Algorithm) -> None:
    """Check that parts of the advantage whose result is replaced by an advantage that the reward
    stage has made stand there too, with equal settings.
    """
    made = {use.label: use.part for use in algorithm.reward
            if "made_advantage_B" in parts.writes(use)}  # fmt: skip
    reading = [any(read.column == "made_advantage_B" for read in parts.reads(use))
               for use in algorithm.advantage]  # fmt: skip
    if not made or not any(reading):
        return
    keeps = algorithm.advantage[reading.index(True)].label
    for use in algorithm.advantage[: reading.index(True)]:
        if made.get(use.label) != use.part:
            raise UserError(
                f"advantage: {keeps} replaces what {use.label} computes by what the reward stage "
                f"made, where {use.label} is {'another' if use.label in made else 'missing'}: give "
                f"reward.{use.label} and advantage.{use.label} the same settings, or the recipe "
                "its parameters, which set both"
            )


def _check_declared(placed: Sequence[Placed], known: set[str]) -> None:
    """Check that user's parts write only columns that are declared, whose dtype can be checked, and
    that each optional column that they read exists in some method: a misspelled one never comes.
    """
    for path, use in placed:
        if type(use.part).__module__.startswith("strop."):
            continue
        for column in parts.writes(use):
            if column not in known and not is_value(column):
                raise UserError(
                    f"{where(path)}: {use.label} writes {column}, which is no column: declare it, "
                    f'`declares = (Column("{column}", "float", "its meaning"),)`, so that strop '
                    "can check its dtype"
                )
        for read in parts.reads(use):
            name, computed = read.column, is_value(read.column) or columns.is_current(read.column)
            if read.required or name in known or computed:
                continue
            if name not in catalogue.columns() and not _writers_beside(use, name):
                raise UserError(
                    f"{where(path)}: {use.label} reads {name}, which is no column"
                    f"{nearest(name, {*known, *catalogue.columns()})}"
                )


def _is_read(
    column: str, later: Sequence[Placed], at_the_end: set[str], taken: frozenset[str] = TAKEN
) -> bool:
    """Whether something reads the column before another part overwrites it without reading it.

    taken: the columns that the trainer itself reads.
    """
    for path, use in later:
        reads = {read.column for read in parts.reads(use)}
        names = {parameter.name for parameter in parts.parameters(use.part)}
        takes_all = "batch" in names and not path.startswith("plan.")
        if column in reads or (column == "draws" and "draws" in names) or takes_all:
            return True
        if column in _made(use) and not path.startswith("terms."):
            return False
    return column in taken or column in at_the_end


def _reader_before(made: set[str], earlier: Sequence[Placed]) -> str:
    """The label of the last earlier part that reads one of the columns; empty: there is none."""
    for _, use in reversed(earlier):
        if made & {read.column for read in parts.reads(use)}:
            return use.label
    return ""


def _ends_without(place: Place, column: str) -> str:
    usual = {
        "sampling": "draw_in_shuffled_order",
        "rollout": "sample_independently",
        "reward": "score_with_verifiers",
    }[place.name]
    return (
        f"{place.name}: none of its parts gives {column}, which the next stage needs: begin the "
        f"stage with a part such as {usual}"
    )


def _check_term(term: Term) -> None:
    read = {r.column for r in parts.reads(term.objective)}
    required = {r.column for r in parts.reads(term.objective) if r.required}
    if term.learner != "policy":
        _check_critic(term, read)
    if "log_ratio_T" in read and term.ratio is None:
        raise UserError(
            f"term {term.name}: {term.objective.label} reads log_ratio_T; give the term a "
            "ratio such as ratio_per_token"
        )
    draws = "rng" in {p.name for p in parts.parameters(term.objective.part)}
    if wide := sorted(column for column in read if column in DISTRIBUTIONS and column in required):
        _check_distribution(term, wide[0], required, draws)
    if draws and getattr(term.objective.part, "scope", "token") != "update":
        raise UserError(
            f"term {term.name}: {term.objective.label} draws at random, so its scope must "
            "be update: otherwise its draws would depend on how the rows are split"
        )
    if term.ratio is not None and "log_ratio_T" not in read:
        raise UserError(
            f"term {term.name} has the ratio {term.ratio.label}, but "
            f"{term.objective.label} does not read log_ratio_T: leave the ratio out (ratio=none)"
        )


def _check_distribution(term: Term, wide: str, required: set[str], draws: bool) -> None:
    """Check an objective of whole distributions: it is computed in the head, without other columns
    of the pass and without a generator.
    """
    other = next((c for c in sorted(required) if columns.is_current(c) or c == "log_ratio_T"), "")
    if draws or other:
        raise UserError(
            f"term {term.name}: {term.objective.label} reads {wide}, so it cannot have "
            f"{other or 'rng'}: give that its own term"
        )


def _check_critic(term: Term, read: set[str]) -> None:
    """Raise UserError for a term that its learner cannot train."""
    if term.learner not in LEARNERS:
        raise UserError(
            f"term {term.name}: no learner {term.learner!r}; there are {', '.join(LEARNERS)}"
        )
    named = {"log_ratio_T", *filter(columns.is_current, read)}
    policys = sorted(c for c in read if c in named or c.endswith("_TV"))
    if policys or term.ratio is not None:
        raise UserError(
            f"term {term.name} trains the critic, but {term.objective.label} reads "
            f"{', '.join(policys) or 'a ratio'} of the policy"
        )
    if not trained_values(term):
        raise UserError(
            f"term {term.name} trains the critic, but {term.objective.label} reads no value column"
        )


def _check_tracked(placed: Sequence[Placed]) -> None:
    """Check that a part tracks the prompts where a sampler reads what is known of them."""
    if any(hasattr(use.part, "view") for path, use in placed if place_at(path).name == "sampling"):
        return
    for path, use in placed:
        if "tracked" in {parameter.name for parameter in parts.parameters(use.part)}:
            raise UserError(
                f"{where(path)}: {use.label} reads what is known of each prompt, and no part "
                "tracks that: put track_success after it"
            )


def _check_facts(placed: Sequence[Placed]) -> None:
    stated: dict[str, str] = {}
    for _, use in placed:
        for fact in parts.facts(use):
            stated.setdefault(fact, use.label)
    for one, other, why in CONTRADICTIONS:
        if one in stated and other in stated:
            raise UserError(f"{stated[one]} and {stated[other]} do not go together: {why}")


def _check_size(algorithm: Algorithm) -> None:
    """Check the size of a step with all options set: set one after another, they may pass through
    sizes that nobody intended.
    """
    for use in algorithm.sampling:
        sizes = [getattr(use.part, name, 1) for name in ("num_prompts", "num_rollouts")]
        if all(isinstance(size, int) for size in sizes) and math.prod(sizes) > MOST_ROLLOUTS:
            raise UserError(
                f"{use.label}.num_prompts * num_rollouts is {sizes[0]} * {sizes[1]}: a step has at "
                f"most {MOST_ROLLOUTS} rollouts"
            )


def _check_knobs(algorithm: Algorithm) -> None:
    """Check that every control states which options it moves, and that the method has them as
    numbers.
    """
    known = {*algorithm.paths(), *OUTSIDE}
    for use in algorithm.control:
        moves = getattr(use.part, "moves", None)
        if moves is None:
            raise UserError(
                f"control: {use.label} does not say what it moves: give its class `moves`, the "
                'full paths of options ("terms.entropy.coef",)'
            )
        for path in moves:
            if path not in known:
                raise UserError(
                    f"control: {use.label} moves {path}, which is no option of this method"
                    f"{nearest(path, known)}"
                )
            _check_moved(use, path, algorithm.paths().get(path, 0.0))


def _check_equal(algorithm: Algorithm) -> None:
    """Check that options which two parts need alike are alike: parts state them in `equals`."""
    known = algorithm.paths()
    for path, use in algorithm.uses():
        for name, other in getattr(use.part, "equals", {}).items():
            own, others = known[f"{path}.{name}"], known.get(other)
            if other in known and own != others:
                raise UserError(
                    f"{where(path)}: {path}.{name} is {own} and {other} is {others}, where both "
                    "are one number: set both, or the recipe's parameter"
                )


def _check_moved(use: Use, path: str, value: object) -> None:
    """Check that an option that a control moves is a number, or several, and no schedule: the
    control would replace it after the first step.
    """
    if isinstance(value, Schedule):
        raise UserError(
            f"control: {use.label} moves {path} from the second step on, so a schedule there would "
            f"count for one step: give a number, or take {use.label} out"
        )
    if isinstance(value, bool) or not isinstance(value, int | float | tuple):
        raise UserError(
            f"control: {use.label} moves {path}, which is no number but {value!r}: name an option "
            "that is one"
        )


def _missing(path: str, use: Use, column: str, place: Place, others: Sequence[str] = ()) -> str:
    """The error for a column that a part reads at a place where neither it nor one of the others
    that would do is available.
    """
    stage = path.split(".")[0]
    reads = f"{stage}: {use.label} reads {' or '.join((column, *others))}"
    early = PLACES.index(place) < PLACES.index(PLACE_OF[COMPUTED_BEFORE])
    if column == "draws":
        alone = "or leave `draws` out of a part that draws by itself"
        return f"{reads}, and no part before it draws: begin with draw_in_shuffled_order, {alone}"
    if column in ("advantage_B", "advantage_T") and early:
        where_else = "[advantage_T: credit_T] at a credit part of the stage reward and here"
        if column == "advantage_B":
            where_else = "[advantage_B: made_advantage_B], after note_reward"
        return f"{reads}, which the stage advantage computes after curation: connect {where_else}"
    if column == "advantage_T":
        return (
            f"{reads}, which the advantage chain does not write: "
            "end the chain with a credit part such as spread_evenly"
        )
    if columns.is_current(column) or column in DISTRIBUTIONS:
        slots = "objectives" if column in DISTRIBUTIONS else "ratios and objectives"
        return f"{reads}, which is the current policy's: only {slots} of loss terms get it"
    declared = catalogue.columns()
    of_parts = column in declared and column not in KNOWN  # not a head of the critic
    if is_value(column) and not of_parts and not early:
        return (
            f"{reads}, for which there is no critic: add a term with "
            "regress_value and the learner critic, as the recipe gae has"
        )
    if early and (column in REFRESHED or is_value(column)):
        return f"{reads}, which is computed after curation: read it in probes or advantage instead"
    made = catalogue.of_each(catalogue.parts(), lambda entry: parts.writes(Use(entry.load()())))
    listed = [entry.name for entry, written in made.items() if column in written]
    writers = _writers_beside(use, column) + sorted(listed, key=lambda name: name not in USUAL)
    if column not in KNOWN:
        near = nearest(column, declared) + columns.without_letter(column)
        remedy = "; rename what one writes to it" if of_parts else near
        remedy = f"; {' or '.join(writers)} would" if writers else remedy
        return f"{reads}, which no part before it writes{remedy}"
    meaning, writer = KNOWN[column].meaning, KNOWN[column].writer
    if writer.startswith("loss"):
        return f"{reads} ({meaning}), which is made inside a loss term: take the parameter out"
    remedy = f"{' or '.join(writers[:3])} would" if writers else f"the stage {writer} may"
    return f"{reads} ({meaning}), which nothing before it writes; {remedy}"


def _writers_beside(use: Use, column: str) -> list[str]:
    """The parts in a user's own file of parts, where this one is from, that write the column."""
    module = type(use.part).__module__
    beside = vars(sys.modules[module]) if module in sys.modules else {}
    kinds = [kind for kind in beside.values() if isinstance(kind, type)]
    return [
        name_to_load(kind)
        for kind in kinds
        if kind.__module__ == module and column in vars(kind).get("writes", ())
    ]
