"""Accepts rollouts that clients post while a run trains: checks, saves and groups them.

Every accepted rollout is a line of one file, in order of arrival, with the number of its group and
whether it completes that group. Steps take complete groups in the order of their completion, and a
step's checkpoint holds how many were taken. So a resumed run reads the file and continues after
them: no group is lost and none is taken twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from strop.serving.protocol import Busy, Refused
from strop.support.errors import UserError, check_value
from strop.support.files import json_of
from strop.traces.files import OTHER_COLUMNS, gathered
from strop.traces.reading import NothingSaid, rollout_of, row_of
from strop.traces.records import Rollout

POSTED = "posted"  # the key, in a line of the file, of the intake's own facts about the rollout
BEFORE_THE_FIRST = "the run has not begun its first step"
FULL = "enough groups wait for the next steps"
LONGEST_WAIT = 60.0  # longest time, in seconds, after which a client is asked to retry


class Arrived(NamedTuple):
    """A posted rollout, read and checked; rollout None: the model was not called in it."""

    id: str
    key: str
    rollout: Rollout | None


@dataclass
class Group:
    """Rollouts of one task that are compared with each other. places: their lines in the file.

    oldest: the version of the weights that drew the oldest token; None: there is none yet.
    """

    number: int
    uid: int
    key: str
    places: list[int] = field(default_factory=list)
    arrived: int = 0
    oldest: int | None = None

    def take_in(self, place: int, oldest: int | None) -> None:
        """Add a rollout; oldest None: the model was not called in it."""
        self.arrived += 1
        if oldest is not None:
            self.places.append(place)
            self.oldest = oldest if self.oldest is None else min(self.oldest, oldest)


class Taken(NamedTuple):
    """Complete groups for a step. taken: how many there were up to these; stale: skipped ones."""

    groups: list[Group]
    taken: int
    stale: int
    waiting: int  # complete groups that remain for later steps


class Intake:
    """The groups of a run, as they arrive. All methods are thread-safe.

    complete: adds the run's own knowledge to a rollout, such as the versions of its tokens, and
    raises Refused for one that the run cannot train on. max_staleness: the run's option.
    """

    def __init__(self, complete: Callable[[Rollout, str], Rollout], max_staleness: int = 0) -> None:
        self.complete, self.max_staleness = complete, max_staleness
        self.path: Path | None = None
        self.lock = threading.Lock()
        self.step = 0  # the step for which groups arrive now
        self.size = 0  # rollouts of a group; 0: the first step has not begun
        self.wanted = 0  # groups of a step
        self.seconds = 1.0  # duration of a step, as far as it is known
        self._begin()

    def _begin(self) -> None:
        self.ids: set[str] = set()
        self.uids: dict[str, int] = {}  # by key, in order of appearance
        self.first: dict[int, int] = {}  # the place of the first rollout of a uid
        self.open: dict[str, Group] = {}  # by key
        self.whole: list[Group] = []
        self.num_groups = self.taken = self.end = 0

    # ---- the file

    def read(self, path: Path, writes: bool = True) -> None:
        """Continue with the rollouts of a file. writes: this process also writes to it, so an
        unfinished last line is removed. Raises UserError.
        """
        with self.lock:
            self.path = path
            self._begin()
            self._replay(path, writes)

    def _replay(self, path: Path, writes: bool = True) -> None:
        if not path.exists():
            return
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # unfinished, and so never confirmed
                    break
                try:
                    self._note(json_of(line)[POSTED], self.end)
                except (ValueError, LookupError, TypeError) as error:
                    raise UserError(
                        f"{path} line {number} is none of a run's posted rollouts ({error!r}): put "
                        "the file back as it was, or begin a new run"
                    ) from error
                self.end += len(line)
        if writes and self.end < path.stat().st_size:
            os.truncate(path, self.end)

    def _note(self, posted: Mapping[str, Any], place: int) -> None:
        """Put a rollout of the file into its group."""
        self.ids |= {posted["id"]} - {""}
        group = self.open.get(posted["key"])
        if group is None or group.number != posted["group"]:
            group = self._new_group(posted["key"], posted["group"])
        if posted["oldest"] is not None:
            self.first.setdefault(group.uid, place)
        group.take_in(place, posted["oldest"])
        if posted["whole"]:
            self.whole.append(self.open.pop(group.key))

    def _new_group(self, key: str, number: int) -> Group:
        uid = self.uids.setdefault(key, len(self.uids))
        group = self.open[key] = Group(number, uid, key)
        self.num_groups = max(self.num_groups, number + 1)
        return group

    def _write(self, lines: Sequence[str]) -> None:
        """Add lines to the file, and wait until they are on disk. Raises Refused, and then the
        file has none of them.
        """
        assert self.path is not None
        size = sum(map(len, lines))  # JSON is ASCII
        try:
            with self.path.open("ab") as file:
                file.write("".join(lines).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, self.end - size)
            taken = self.taken
            self._begin()
            self._replay(self.path)
            self.taken = taken
            self._discard_stale()
            raise Refused(507, f"the run cannot write {self.path.name}: {error}") from error

    def rollout(self, place: int) -> Rollout:
        """The rollout whose line begins at this byte of the file."""
        assert self.path is not None
        with self.path.open("rb") as file:
            file.seek(place)
            return rollout_of(json_of(file.readline()), f"{self.path} byte {place}")

    def first_of(self, uid: int) -> Rollout:
        """The first rollout of a task. Raises KeyError for an unknown task."""
        with self.lock:
            place = self.first[uid]
        return self.rollout(place)

    # ---- for clients

    def add(self, rows: Sequence[Any], name: str = "", whole: bool = False) -> list[dict[str, Any]]:
        """Accept rollouts, all or none of them; returns a receipt for each.

        rows: of any format that strop reads. name: of all of them together, so that a repeated
        post is not accepted twice. whole: they complete their groups, of any size. Raises Refused
        for rows that cannot be read or are too old, Busy where too many wait.
        """
        if not self.size:  # a resumed run does not know its version yet
            raise Busy(1.0, BEFORE_THE_FIRST)
        arrived = [
            self._arrived(f"rollouts[{place}]", row, f"{name}/{place}" if name else "")
            for place, row in gathered(rows)
        ]
        with self.lock:
            first = {each.id: each for each in reversed(arrived)}
            new = [
                each
                for each in arrived
                if not each.id or (each.id not in self.ids and first[each.id] is each)
            ]
            if whole:
                self._check_completes(arrived, {each.key for each in new})
            if not new:
                return self._answers(arrived, new)
            if self._is_full():
                raise Busy(min(self.seconds, LONGEST_WAIT), FULL)
            self._check_age(new)
            self._check_columns(new)
            last = {each.key: number for number, each in enumerate(new)} if whole else {}
            lines = list[str]()
            for number, each in enumerate(new):
                posted = self._place(each, last.get(each.key) == number)
                kept = {"turns": []} if each.rollout is None else row_of(each.rollout)
                lines.append(json.dumps({POSTED: posted, **kept}) + "\n")
                self._note(posted, self.end)
                self.end += len(lines[-1])
            self._write(lines)
            return self._answers(arrived, new)

    def _arrived(self, where: str, row: Any, id: str) -> Arrived:
        """Read one rollout. Raises Refused, which names the error's place."""
        if not isinstance(row, Mapping):
            raise Refused(422, f"{where} is no object of JSON", "unreadable_rollout", where)
        given = row.get("id")
        if given is not None and (isinstance(given, bool) or not isinstance(given, str | int)):
            text = f"{where}.id is {given!r}: name a rollout by text or a whole number"
            raise Refused(422, text, "unreadable_rollout", f"{where}.id")
        id = id if given is None else str(given)
        try:
            check_value(row, where)
            rollout = self.complete(rollout_of(row, where), where)
        except NothingSaid as error:
            if not error.group:
                text = f"{error}, and it names no group that it would belong to"
                raise Refused(422, text, "unreadable_rollout", where) from error
            return Arrived(id, error.group, None)
        except UserError as error:
            raise Refused(422, str(error), "unreadable_rollout", where) from error
        return Arrived(id, rollout.group or _key(rollout.turns[0].prompt_ids), rollout)

    def _check_completes(self, arrived: Sequence[Arrived], new: set[str]) -> None:
        """Raise Refused where a post with nothing new of an open group is to complete it.

        new: groups of which it has something new.
        """
        keys = [each.key for each in arrived if each.key in self.open and each.key not in new]
        if keys:
            raise Refused(
                409,
                f"all its rollouts are here already, so nothing completes group {keys[0]}: "
                "send complete with its last rollout",
                "nothing_new",
            )

    def is_full(self) -> bool:
        """Whether the next steps that may train on current rollouts have all their groups."""
        with self.lock:
            return self._is_full()

    def _is_full(self) -> bool:
        ready = sum(not self._is_stale(group) for group in self.whole[self.taken :])
        return ready >= self.wanted * (self.max_staleness + 1)

    def _check_age(self, arrived: Iterable[Arrived]) -> None:
        """Raise Refused for a rollout that is too old for any step to train on."""
        for each in arrived:
            oldest = _oldest(each.rollout)
            if oldest is not None and oldest < self.oldest_version:
                raise Refused(
                    409,
                    f"a rollout of group {each.key} has tokens of weights of version {oldest}, and "
                    f"step {self.step} takes none older than version {self.oldest_version} "
                    f"(training.max_staleness={self.max_staleness})",
                    "stale_rollout",
                )

    def _check_columns(self, arrived: Iterable[Arrived]) -> None:
        """Raise Refused for columns that are not those of the task's first rollout."""
        first: dict[str, Mapping[str, Any]] = {}
        for each in arrived:
            if each.rollout is None:
                continue
            if each.key not in first:
                place = self.first.get(self.uids.get(each.key, -1))
                known = each.rollout if place is None else self.rollout(place)
                first[each.key] = known.columns
            if each.rollout.columns != first[each.key]:
                text = f"a rollout {OTHER_COLUMNS.format(each.key)}"
                raise Refused(422, text, "unreadable_rollout")

    @property
    def oldest_version(self) -> int:
        """The version of the oldest weights whose tokens the next step takes."""
        return max(self.step - 1 - self.max_staleness, 0)

    def _is_stale(self, group: Group, step: int | None = None) -> bool:
        """Whether a step, by default the next one, may not train on the group."""
        step = self.step if step is None else step
        return group.oldest is None or group.oldest < step - 1 - self.max_staleness

    def _place(self, arrived: Arrived, last: bool) -> dict[str, Any]:
        """The facts in a rollout's line: its group, and whether it completes the group."""
        group = self.open.get(arrived.key)
        return {
            "id": arrived.id,
            "key": arrived.key,
            "group": self.num_groups if group is None else group.number,
            "whole": last or (0 if group is None else group.arrived) + 1 >= self.size,
            "oldest": _oldest(arrived.rollout),
        }

    def _answers(self, arrived: Sequence[Arrived], new: Sequence[Arrived]) -> list[dict[str, Any]]:
        fresh = {id(each) for each in new}
        return [
            {
                "object": "rollout",
                "id": each.id or None,
                "group": each.key,
                "repeated": id(each) not in fresh,
            }
            for each in arrived
        ]

    def status(self) -> dict[str, Any]:
        """The state of the run, for clients."""
        with self.lock:
            ready = [group for group in self.whole[self.taken :] if not self._is_stale(group)]
            return {
                "object": "intake",
                "step": self.step,
                "groups_wanted": self.wanted,
                "groups_ready": len(ready),
                "rollouts_of_a_group": self.size,
                "oldest_version": self.oldest_version,
            }

    # ---- the run

    def expect(self, step: int, wanted: int, size: int) -> None:
        """Accept rollouts for this step from now on: `wanted` groups of `size` rollouts.

        Incomplete groups that are too old now are discarded.
        """
        with self.lock:
            self.step, self.wanted, self.size = step, wanted, size
            self._discard_stale()

    def _discard_stale(self) -> None:
        for group in list(self.open.values()):
            if group.oldest is not None and self._is_stale(group):
                del self.open[group.key]

    def take(self, step: int, wanted: int, taken: int) -> Taken | None:
        """The next complete groups after the first `taken`; None: there are too few.

        Groups that are too old are skipped. Later rollouts are for the next step.
        """
        with self.lock:
            self.taken = taken  # a resumed run has taken them before
            found, at = list[Group](), taken
            while len(found) < wanted and at < len(self.whole):
                if not self._is_stale(self.whole[at], step):
                    found.append(self.whole[at])
                at += 1
            if len(found) < wanted:
                return None
            self.taken, self.step = at, step + 1
            return Taken(found, at, at - taken - wanted, len(self.whole) - at)


def _oldest(rollout: Rollout | None) -> int | None:
    """The version of the oldest weights that drew a token of the rollout."""
    versions = [] if rollout is None else [v for turn in rollout.turns for v in turn.versions]
    return min(versions, default=None)


def _key(ids: Sequence[int]) -> str:
    """The group of rollouts that name none: equal for equal tokens of the first prompt."""
    return f"ids:{hashlib.blake2b(repr(tuple(ids)).encode(), digest_size=12).hexdigest()}"
