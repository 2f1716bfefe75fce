"""The store of rollouts that lasts over steps, shared by the parts that replay.

A part's state has, under "columns", what a draw reads: the columns of turns, rollouts and prompt
groups. Token columns are in files of the run (`services.Stores`), one for each step that stored
something; the state has the file of each rollout and its position there.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch, level_of
from strop.batch.columns import REPLAY
from strop.method.services import FILE, Stores
from strop.support.errors import UserError

# The first token of a rollout in its file, all tokens of that file, and the tokens of a turn.
AT, WHOLE, SIZE = "stored_at_B", "stored_whole_B", "stored_size_K"
STORED = 1 << 41  # above all numbers of draws, those of groups put off and shared among them


def put_away(batch: Batch, step: int, stores: Stores) -> Batch:
    """The rollouts in the form of the store: their tokens go into a file, the step that made them
    is added, and their groups stay distinct from those of other steps.
    """
    draw_P = batch["draw_P"] + step * STORED
    made_B = torch.full((batch.size("B"),), step, dtype=torch.int64)
    return _without_tokens(batch.set(draw_P=draw_P, made_at_B=made_B), step, stores)


def _without_tokens(rows: Batch, step: int, stores: Stores) -> Batch:
    """Writes the tokens of the rollouts into a file and returns the rollouts without them."""
    whole, tokens = rows.size("T"), _tokens(rows)
    number = stores.put(step, tokens) if whole else 0
    size_B = rows["size_B"]
    light = {name: column for name, column in rows.columns.items() if level_of(name) != "T"}
    return Batch(
        {
            **light,
            "turn_T": size_B.new_zeros(0),
            FILE: torch.full_like(size_B, number),
            AT: size_B.cumsum(0) - size_B,
            WHOLE: torch.full_like(size_B, whole),
            SIZE: segments.count(rows["turn_T"], rows.size("K")),
        }
    )


def _tokens(rows: Batch) -> dict[str, Tensor]:
    """The token columns except turn_T."""
    return {n: c for n, c in rows.columns.items() if level_of(n) == "T" and n != "turn_T"}


def fetched(drawn: Batch, stores: Stores, names: frozenset[str] = frozenset()) -> Batch:
    """Stored rollouts with their tokens. names: the token columns that a file must have.

    Raises UserError for a file with other columns, such as one of a method with other parts.
    """
    num_B = _sizes(drawn)
    turn_T = torch.repeat_interleave(torch.arange(drawn.size("K")), drawn[SIZE])
    rollout_T = torch.repeat_interleave(torch.arange(drawn.size("B")), num_B)
    first_B = num_B.cumsum(0) - num_B
    place_T = torch.arange(len(turn_T)) - first_B[rollout_T] + drawn[AT][rollout_T]
    columns: dict[str, Tensor] = {}
    for number in torch.unique(drawn[FILE]).tolist():
        here_T = drawn[FILE][rollout_T] == number
        if not here_T.any():
            continue
        table = stores.get(number)
        _check_same(names or frozenset(columns) or table.keys(), table.keys())
        for name, column in table.items():
            empty = column.new_zeros((len(turn_T), *column.shape[1:]))
            columns.setdefault(name, empty)[here_T] = column[place_T[here_T]]
    ours = (FILE, AT, WHOLE, SIZE)
    light = {name: column for name, column in drawn.columns.items() if name not in ours}
    return Batch({**light, **columns, "turn_T": turn_T})


def _sizes(store: Batch) -> Tensor:
    """The number of tokens [B] of each stored rollout."""
    return segments.total(store[SIZE], store["rollout_K"], store.size("B"))


def joined(stored: Mapping[str, Tensor], new: Batch) -> Batch:
    """The stored rollouts, then the new ones. Raises UserError if their columns differ."""
    if not stored:
        return new
    old = opened(stored, new)
    _check_same(old.columns.keys(), new.columns.keys())
    return old.join(new)


def _check_same(ours: Iterable[str], theirs: Iterable[str]) -> None:
    """Raise UserError when the columns of the store and of this step differ."""
    if odd := sorted(set(ours) ^ set(theirs)):
        raise UserError(
            f"the store of rollouts and this step's differ in {', '.join(odd)}; keep the method's "
            "rollout, reward and curation parts when a run resumes"
        )


def opened(stored: Mapping[str, Tensor], batch: Batch) -> Batch:
    """The stored rollouts as a batch, with the run-wide values of `batch`."""
    run_wide = {name: column for name, column in batch.columns.items() if not level_of(name)}
    return Batch({**run_wide, **stored})


def columns_of(store: Batch, step: int, stores: Stores) -> dict[str, Tensor]:
    """The columns of the store that stay in a part's state: all but the run-wide values.

    Once most tokens in the files belong to rollouts that have left the store, what remains in files
    that are more than half empty moves to a new one; so files have at most twice the tokens of the
    store.
    """
    store = _compacted(store, step, stores)
    return {name: column for name, column in store.columns.items() if level_of(name)}


def _compacted(store: Batch, step: int, stores: Stores) -> Batch:
    """The store after rollouts of files that are more than half empty have moved to a new one."""
    size_B = _sizes(store)
    key_B, num = segments.key_of(store[FILE])
    live_N = segments.total(size_B, key_B, num)
    whole_N = store[WHOLE][segments.first(key_B, num)] if num else live_N
    if int(whole_N.sum()) <= 2 * int(live_N.sum()):
        return store
    row = (2 * live_N < whole_N)[key_B].nonzero().squeeze(1)
    moved = _without_tokens(fetched(store.take(row), stores), step, stores)
    places = {}
    for name in (FILE, AT, WHOLE):
        places[name] = store[name].clone()
        places[name][row] = moved[name]
    return store.set(**places)


def as_rows(drawn: Batch, batch: Batch, step: int, stores: Stores) -> Batch:
    """The drawn rollouts with the columns of `batch`, those of earlier steps marked as replayed."""
    rows = fetched(drawn, stores, frozenset(_tokens(batch)))
    if not rows.size("T"):
        rows = Batch({**rows.columns, **{n: c[:0] for n, c in _tokens(batch).items()}})
    old_T = rows["mask_T"] & (rows["made_at_B"] < step)[rows["rollout_T"]]
    rows = rows.set(origin_T=torch.where(old_T, REPLAY, rows["origin_T"]))
    return Batch({name: rows[name] for name in batch.columns})


def uids_of(store: Batch) -> Tensor:
    """The prompt [B] of each stored rollout."""
    return store["uid_P"][store["group_B"]]


def roles_of(batch: Batch) -> Tensor:
    """The role [P] whose rollouts each group has; 0 outside games of several players."""
    if "role_B" not in batch:
        return torch.zeros_like(batch["uid_P"])
    return segments.extreme(batch["role_B"], batch["group_B"], batch.size("P"))


def marks_of(store: Batch, batch: Batch, group: int) -> Tensor:
    """Marks the stored rollouts [B] bool of the prompt and the role of a group of `batch`."""
    same_P = store["uid_P"] == batch["uid_P"][group]
    return (same_P & (roles_of(store) == roles_of(batch)[group]))[store["group_B"]]


def newest_of_prompts(store: Batch, among_B: Tensor, most: int) -> Tensor:
    """Marks the newest `most` of these rollouts of each prompt and role [B] bool."""
    row = among_B.nonzero().squeeze(1).flip(0)
    key, num = segments.key_of(uids_of(store)[row], roles_of(store)[store["group_B"]][row])
    newest_B = torch.zeros_like(among_B)
    newest_B[row[segments.order_within(key, num) < most]] = True
    return newest_B


def store_metrics(num_stored: int, drawn: Batch | None, step: int) -> dict[str, float]:
    """Metrics of the rollouts stored after the step and of those drawn; None: none were."""
    age_N = (step - drawn["made_at_B"]).double() if drawn is not None else torch.zeros(0)
    return {
        "replay/stored": float(num_stored),
        "replay/drawn": float(len(age_N)),
        "replay/age_mean": float(age_N.sum() / max(len(age_N), 1)),
    }


def in_groups(rows: Batch, batch: Batch, groups: list[int]) -> Batch:
    """The rollouts as members of these groups of `batch`: rollout n joins group groups[n]."""
    index_N = torch.tensor(groups)
    columns = {
        name: batch[name][index_N] if level_of(name) == "P" else column
        for name, column in rows.columns.items()
    }
    return Batch({**columns, "group_B": torch.arange(len(groups))})
