"""Decides which recipes another trainer can host. Such a trainer draws prompts and samples answers
itself, provides columns of them, and lets the recipe do the work between reward and gradient. A
server of Tinker's API has only the model; strop does the rest. docs/HOSTED.md lists all recipes."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from strop.batch.batch import DERIVED
from strop.batch.columns import CURRENT, KNOWN, REFRESHED, RUN_WIDE, is_current, is_value
from strop.catalogue import catalogue
from strop.catalogue.seams import SERVICES, STAGES, place_at
from strop.method import notation, writing
from strop.method import part as parts
from strop.method.algorithm import Algorithm, Method
from strop.method.engine_needs import needs
from strop.method.part import OUTSIDE, Use
from strop.method.schedule import Schedule
from strop.parts.loss.average.average_by_constant_length import AverageByConstantLength
from strop.parts.loss.average.average_over_tokens import AverageOverTokens
from strop.parts.loss.average.average_per_sequence import AveragePerSequence
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.parts.reward.note_reward_weights import NoteRewardWeights
from strop.parts.reward.score_with_verifiers import ScoreWithVerifiers
from strop.parts.rollout.base import COLUMNS
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.support.errors import UserError

AVERAGES = (AverageOverTokens, AveragePerSequence, AverageByConstantLength)
# Columns that selection writes; loss terms start from them.
MASKS = ("gradient_T", "denominator_T")
# Parts that request only the scores of the step's rollouts and the rewards' weights.
ASKING_FOR_SCORES = (ScoreWithVerifiers, NoteRewardWeights)
# Parameters with which a recipe that has them does not request further rollouts.
WITHOUT_REFILL = ({"refill": False}, {"max_rounds": 1}, {"dynamic_sampling": False})
# Columns that follow from log-probability and entropy of a token under policy and reference.
PLAIN = frozenset({"logp_old_T", "entropy_old_T", "logp_ref_T"})
TABLES = frozenset({"turn_T", "mask_T", "rollout_K", "index_K"})
GROUPS = frozenset({"group_B", "uid_P", "draw_P", "reward_T"})


@dataclass(frozen=True)
class Host:
    """What a trainer provides to a recipe: columns of its rollouts and the run, columns of the
    current policy with gradient, and the stages that it leaves to the recipe. model_alone: it has
    only the model, and strop's own trainer does the rest; engine: its sampler's capabilities."""

    name: str
    columns: frozenset[str]
    current: frozenset[str]
    stages: tuple[str, ...]
    model_alone: bool = False
    engine: frozenset[str] = frozenset()


TRL = Host(
    "TRL",
    frozenset({*COLUMNS, *RUN_WIDE}) | PLAIN,
    frozenset({"logp_T", "entropy_T"}),
    ("reward", "curation", "probes", "advantage", "selection", "terms", "control"),
)
# verl requests advantages once a step, and the loss of every forward pass separately.
VERL_ESTIMATOR = Host(
    "verl", TABLES | GROUPS | {"max_length"}, frozenset(), ("reward", "advantage", "selection")
)
VERL_LOSS = Host(
    "verl",
    TABLES | {"logp_old_T", "advantage_T", "advantage_B", "max_length"},
    frozenset({"logp_T"}),
    ("terms",),
)
# It provides log-probabilities of tokens under the current policy and the initial one.
TINKER = Host(
    "Tinker",
    frozenset(
        name for name in KNOWN
        if name not in REFRESHED and not is_value(name) and not is_current(name)
        and not name.endswith("_TV") and name != "entropy_behavior_T"
    ) | {"logp_old_T", "logp_ref_T"},
    frozenset({"logp_T"}),
    (*STAGES, "terms"),
    model_alone=True,
    engine=frozenset({"weights", "logp_model"}),
)  # fmt: skip


def why_not(method: Method, host: Host) -> str:
    """Why the host cannot run the method, in a few words; empty if it can."""
    for algorithm in method.algorithms:
        if host.model_alone:
            own = (*_asking_of_model(algorithm, host),)
        else:
            own = (*_collecting(algorithm), *_learning(algorithm))
        for reason in (*own, *_columns(algorithm, host)):
            return reason
    return ""


def why_no_half(method: Method, host: Host) -> str:
    """Why verl cannot run its stages of the method; empty if it can.

    Those stages run on their own: without state or numbers that change over the run.
    """
    if not isinstance(method, Algorithm):
        return "switches to another method during the run"
    for reason in (*_collecting(method), *_alone(method, host), *_columns(method, host)):
        return reason
    return ""


def check(method: Method, host: Host, line: str = "") -> None:
    """Raise UserError when the host cannot run the method (of the recipe `line`, if given)."""
    if reason := why_not(method, host):
        works = instead(line, lambda other: not why_not(other, host))
        raise UserError(f"{host.name} cannot host this recipe: it {reason}; {works}")


def instead(line: str, fits: Callable[[Method], bool]) -> str:
    """A suggestion for a recipe line that does not fit: the recipe without requests for further
    rollouts, or else its nearest ancestor that fits, or the page that lists those that fit.
    """
    known = {entry.name: entry for entry in catalogue.recipes()}
    name, given = notation.named(line) if re.match(r"\w+(\(|$)", line) else (line, {})
    if name in known and (other := _without_refill(name, given, fits)):
        return f"{other} works"
    while name in known:
        name = known[name].line("Parent")
        if name in known and fits(catalogue.load("recipe", name)()):
            return f"{name}, which it changes, works (docs/HOSTED.md lists all that do)"
    return "docs/HOSTED.md lists those that work"


def _without_refill(name: str, given: Mapping[str, object], fits: Callable[[Method], bool]) -> str:
    """The recipe line without requests for further rollouts; empty if the recipe has no parameter
    for that, or does not fit even so.
    """
    build = catalogue.load("recipe", name)
    for changes in WITHOUT_REFILL:
        if changes.keys() <= build.__annotations__.keys() and fits(build(**{**given, **changes})):
            written = (f"{k}={writing.value_text(v)}" for k, v in {**given, **changes}.items())
            return f"{name}({', '.join(written)})"
    return ""


def hosted(name: str, host: Host) -> tuple[str, str]:
    """(recipe line for the host, "") or ("", why it cannot be hosted).

    A recipe that samples until a batch is full is hosted without that, if it has a parameter for
    it.
    """
    reason = why_not(catalogue.load("recipe", name)(), host)
    if not reason:
        return name, ""
    how = _without_refill(name, {}, lambda other: not why_not(other, host))
    return how, "" if how else reason


def _collecting(algorithm: Algorithm) -> Iterator[str]:
    """What the algorithm needs in stages 1 to 4 that the host does itself."""
    for use in algorithm.sampling:
        if type(use.part) is not DrawInShuffledOrder:  # subclasses count as others
            yield f"chooses prompts by itself ({parts.name_of(use.part)})"
    rollout = algorithm.rollout
    if type(rollout.part) is not SampleIndependently:
        part = rollout.part
        what = "plays episodes of an environment" if part.needs_environment else (
            "learns from given answers" if part.given else "samples in a way of its own"
        )  # fmt: skip
        yield f"{what} ({rollout.label})"
    if rollout.part.cuts and rollout.part.sampling_mask != "ignore":
        yield f"learns from what cuts have left (sampling_mask={rollout.part.sampling_mask})"
    for use in algorithm.curation:
        if getattr(use.part, "max_rounds", 1) != 1 or use.label.startswith("ask_"):
            yield f"requests further rollouts ({use.label})"
    for path, use in algorithm.uses():
        if path.split(".")[0] not in ("sampling", "rollout") and (asked := services_of(use)):
            yield f"needs {' and '.join(asked)} ({use.label})"


def _asking_of_model(algorithm: Algorithm, host: Host) -> Iterator[str]:
    """What the algorithm needs of the model besides log-probabilities, and of the sampler."""
    if algorithm.value_columns():
        yield "trains a critic"
    if (temperature := algorithm.rollout.part.temperature) != 1:
        yield (
            f"samples at temperature {temperature}, and the log-probabilities that it learns from "
            f"are at 1 ({algorithm.rollout.label})"
        )
    for _, use in algorithm.uses():
        for capability, why in needs(use):
            if capability not in host.engine:
                yield f"{why} ({use.label}), and {host.name}'s sampler has no {capability!r}"
        if any(p.name == "scoring" for p in parts.parameters(use.part)):
            yield f"needs scoring ({use.label})"
    if "moves_reference" in algorithm.facts():
        yield "gives its reference the policy's weights (renew_reference)"
    if {"moves_anchor", "moves_explorer"} & algorithm.facts():
        yield "keeps a copy of the policy's weights"


def services_of(use: Use) -> list[str]:
    """The services that a part requests of a run, besides the scores of the rollouts."""
    if isinstance(use.part, ASKING_FOR_SCORES):
        return []
    return [p.name for p in parts.parameters(use.part) if p.name in SERVICES]


def _learning(algorithm: Algorithm) -> Iterator[str]:
    """What the algorithm does to models, updates or learning rates, which the host controls."""
    if algorithm.value_columns():
        yield "trains a critic"
    plan = algorithm.plan
    if plan is not None:
        if type(plan.part) is not SplitIntoMinibatches:
            yield f"splits a step into updates in a way of its own ({plan.label})"
        elif plan.part.replayed_last:
            yield f"has an update of replayed rollouts alone ({plan.label})"
    for use in algorithm.rates:
        yield f"sets the learning rate of an update ({use.label})"
    for use in algorithm.control:
        for path in getattr(use.part, "moves", ()):
            if path in OUTSIDE:
                yield f"moves {path} ({use.label})"


def _alone(algorithm: Algorithm, host: Host) -> Iterator[str]:
    """What parts store or do across steps, or to rollouts, for a host that runs halves alone."""
    for use in algorithm.curation if "reward" in host.stages else ():
        yield f"drops rollouts before credit is given ({use.label})"
    for path, value in algorithm.paths().items():
        if isinstance(value, Schedule) and path.split(".")[0] in host.stages:
            yield f"has a number that changes over the run ({path})"
    for use in algorithm.control:
        if any(path.split(".")[0] in host.stages for path in getattr(use.part, "moves", ())):
            yield f"has a control over its numbers ({use.label})"
    for path, use in algorithm.uses():
        if path.split(".")[0] in host.stages and hasattr(use.part, "init"):
            yield f"keeps state from step to step ({use.label})"
    for term in algorithm.terms if "terms" in host.stages else ():
        if term.learner != "policy":
            yield "trains a critic"
        if term.on is not None:
            yield f"counts other tokens in a term's average ({term.on.label})"
        if not isinstance(term.average.part, AVERAGES):
            yield f"has averages that do not follow from verl's counts ({term.average.label})"


def _columns(algorithm: Algorithm, host: Host) -> Iterator[str]:
    """Columns that a part reads and nothing before it provides."""
    have = set(host.columns) | set(DERIVED) | {*MASKS}
    for path, use in algorithm.uses():
        stage = path.split(".")[0]
        if stage not in host.stages:
            continue
        have |= set(place_at(path).given)
        for read in parts.reads(use):
            yield from _unread(read.column, read.required, have, host, use)
        have |= set(parts.writes(use))
    for path, use in algorithm.uses():
        for hook in ("observe", "update") if path.split(".")[0] in host.stages else ():
            for column in parts.update_reads(use, hook):
                yield from _unread(column, True, have, host, use)


def _unread(column: str, required: bool, have: set[str], host: Host, use: Use) -> Iterator[str]:
    """The reason why a column cannot be read, if there is one."""
    if column in have or column in host.current:
        return
    if is_current(column) or column.endswith("_TV") or column in CURRENT:
        yield f"reads {column} ({use.label}), which takes the whole next-token distribution"
    elif column in REFRESHED:
        yield f"reads {column} ({use.label}), which {host.name} does not compute"
    elif required:
        yield f"reads {column} ({use.label}), which {host.name} does not have"
