"""The kinds of part and the places where they stand: the one table that everything else reads.

A *seam* is a kind of part: it says what the part's call returns and writes. A *place* is a stage of
a step, or a slot of a loss term: it says which kinds it admits, how many parts, and which arguments
it passes beside columns. The kind of a built-in part is its folder; a part of your own states it,
`kind: ClassVar[str] = "advantage/baseline"`. Both tables are in the order of a step.
"""

from dataclasses import dataclass

# Parameters of a part's call that are services; `method/services.py` has their protocols.
SERVICES = frozenset(
    {"texts", "grading", "sampling", "scoring", "log", "episodes", "agents", "live", "stores"}
)
# Parameters of a part's call that are not columns.
#   batch       the whole Batch
#   state       this part's state from the last step
#   rng         torch.Generator seeded by (seed, step, label, update)
#   num_wanted  number of prompts requested (sampling)
#   pool        uids of the training prompts (sampling)
#   draws       what the samplers have chosen so far
#   engine      the AsyncEngine that answers requests (rollout)
#   tracked     what the sampler that tracks prompts knows of each (sampling)
#   metrics     numbers of this step (control)
#   knobs       the values that the options of `moves` had in this step, by path (control)
# and the services.
SPECIAL = SERVICES | {
    "batch", "state", "rng", "num_wanted", "pool", "draws", "engine", "tracked", "metrics", "knobs",
}  # fmt: skip


@dataclass(frozen=True)
class Seam:
    """One kind of part.

    writes: columns that every part of the kind writes, unless it says otherwise. returns: the
    result of a call in place of columns. places: where such a part may stand. anew: the result of
    a call replaces an earlier one, so something after it has to read it.
    """

    kind: str
    places: tuple[str, ...]
    writes: tuple[str, ...] = ()
    returns: str = ""
    anew: bool = False


@dataclass(frozen=True)
class Place:
    """One stage of an algorithm, or one slot of a loss term.

    name: as users write it. slot: the term's slot; empty for a stage. many: a chain of parts,
    not one. handed: special parameters that a part gets here. seeded_by_path: whether a part's
    draws are seeded by its whole path or, for compatibility, by its label alone. needs: columns
    that must have been written when the stage ends; taken: further ones that the trainer itself
    reads afterwards, where they exist. given: columns that the trainer adds before the stage.
    """

    name: str
    slot: str = ""
    many: bool = True
    handed: frozenset[str] = frozenset()
    seeded_by_path: bool = True
    needs: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    given: tuple[str, ...] = ()


_COLLECTING = SERVICES | {"batch", "rng", "state"}
_MASKS = ("gradient_T", "denominator_T")
_TABLES = ("turn_T", "id_T", "mask_T", "rollout_K", "group_B", "uid_P", "draw_P")

PLACES: tuple[Place, ...] = (
    Place("sampling",
          handed=SERVICES | {"draws", "num_wanted", "pool", "rng", "state", "tracked"},
          needs=("draws",)),
    Place("rollout", many=False, handed=SERVICES | {"draws", "engine", "rng", "state"},
          needs=_TABLES),
    Place("reward", handed=_COLLECTING, needs=("reward_B", "outcome_B", "scored_B"),
          taken=("reward_BM", "exit_B")),
    Place("curation", handed=_COLLECTING),
    Place("probes", handed=SERVICES | {"batch", "rng"}, seeded_by_path=False,
          taken=("prompt_ref_PL",)),
    Place("advantage", handed=frozenset({"rng", "state"}), taken=("advantage_T",),
          given=("advantage_B",)),
    Place("selection", handed=frozenset({"rng"}), given=_MASKS),
    Place("on", "on", many=False, handed=frozenset({"rng"}), given=_MASKS),
    Place("ratio", "ratio", many=False),
    Place("correction", "correction", many=False),
    Place("bound", "objective", many=False, handed=frozenset({"rng"})),
    Place("average", "average", many=False),
    Place("rates", handed=frozenset({"rng"}), seeded_by_path=False),
    Place("plan", many=False, handed=frozenset({"batch", "rng"}), seeded_by_path=False),
    Place("control", handed=frozenset({"metrics", "knobs", "state"})),
)  # fmt: skip

# The stage reward also takes credit parts; curation then splits or weighs rollouts by the credit.
_CREDIT = ("advantage", "reward")
SEAMS: tuple[Seam, ...] = (
    Seam("sampling", ("sampling",), returns="draws", anew=True),
    Seam("rollout", ("rollout",), returns="a coroutine: write `async def __call__`"),
    Seam("reward", ("reward",), ("reward_B",), anew=True),
    Seam("curation", ("curation",), returns="a Curated"),
    Seam("probe", ("probes", "advantage", "reward"), anew=True),
    Seam("advantage/baseline", _CREDIT, ("advantage_B",), anew=True),
    Seam("advantage/scale", _CREDIT, ("advantage_B",), anew=True),
    Seam("advantage/credit", _CREDIT, ("advantage_T",), anew=True),
    Seam("advantage/weight", _CREDIT, ("advantage_T",), anew=True),
    Seam("selection", ("selection", "on"), returns="a Selected"),
    Seam("loss/ratio", ("ratio",), ("log_ratio_T",)),
    Seam("loss/correction", ("correction",), ("correction_T",)),
    Seam("loss/bound", ("bound",), ("objective_T",)),
    Seam("loss/penalty", ("bound",), ("objective_T",)),
    Seam("loss/value", ("bound",), ("objective_T",)),
    Seam("loss/average", ("average",), ("share_T",)),
    Seam("rate", ("rates",), ("lr_scale",)),
    Seam("plan", ("plan",), returns="a generator of Update"),
    Seam("control", ("control",), returns="knobs"),
)

KINDS = tuple(seam.kind for seam in SEAMS)
SEAM_OF = {seam.kind: seam for seam in SEAMS}
PLACE_OF = {place.name: place for place in PLACES}
# A slot can also be named by its field of `Term`.
PLACE_OF |= {place.slot: place for place in PLACES if place.slot}
STAGES = tuple(
    dict.fromkeys("terms" if place.slot else place.name for place in PLACES)
)  # attributes of an Algorithm, in the order of a step
CHAINS = tuple(place.name for place in PLACES if place.many)
SINGLE = tuple(place.name for place in PLACES if not place.many and not place.slot)
SLOTS = tuple(place.slot for place in PLACES if place.slot)  # of a Term, in the order they run


def place_at(path: str) -> Place:
    """The place of a path in an algorithm: "advantage.whiten" or "terms.policy.objective"."""
    stage, *rest = path.split(".")
    return PLACE_OF[rest[1] if stage == "terms" else stage]


def kinds_at(place: Place) -> tuple[str, ...]:
    """The kinds of part that a place admits."""
    return tuple(seam.kind for seam in SEAMS if place.name in seam.places)
