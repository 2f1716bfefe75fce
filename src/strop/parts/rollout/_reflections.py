"""A policy's reflection on its own episode: the question, how it is read, and the retry."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from strop.engines.base import Event
from strop.method.part import Draw
from strop.method.services import Texts
from strop.parts.rollout._episode import Episode, Seat
from strop.parts.rollout._events import void
from strop.parts.rollout._rows import rows_by_draw
from strop.parts.rollout.base import Turn

# form -> (the question after an episode, the text that a retry reads with the turn's own)
WORDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "number": ("\n", "{report}\n{text}"),
        "json": (
            "\nThis attempt is over and has earned {reward} (1 is a success). Look back: where did "
            "it go wrong, or take longer than it had to? Answer with one JSON object and these "
            'keys: "outcome" ("success", "success_but_inefficient" or "failure"), "root_cause" (a '
            'sentence), "suggestion" (a sentence on what to do instead), "retry_from_step" (the '
            "number of the first action that should change; the first action of all is 0).\n",
            "An earlier attempt was examined, with this outcome:\n{report}\nDo what it suggests, "
            "without a word about it.\n{text}",
        ),
    }
)
BASE, RETRY, REFLECTION, GUIDED = range(4)  # stage_B
OWN_GROUP = 1 << 18  # first draw number of rollouts that are compared with no others
SUCCESS = 1.0
OUTCOMES = ("success", "success_but_inefficient", "failure")


def form_of(texts: Texts) -> str:
    """The form that the model's tokenizer can write, JSON first. Raises UserError: neither."""
    more = {"json": '{"0": 1, "-"}', "number": "0123456789"}  # what an answer needs besides words
    forms = {"".join(WORDS[form]) + more[form]: form for form in more}
    return forms[texts.first_known(tuple(forms), "rollout.ask")]


class Report(NamedTuple):
    """The content of a reflection: its text, the turn to retry, whether nothing should change."""

    text: str
    turn: int = 0
    is_perfect: bool = False


def read_report(text: str, form: str, num_turns: int) -> Report | None:
    """The report in a reflection on so many turns; None where it is not valid.

    "number": the first whole number. "json": the object from the first brace to the last.
    """
    if form == "number":
        found = re.search(r"\d+", text)
        turn = _whole(found.group()) if found else None
        report = Report(found.group(), turn) if found and turn is not None else None
    else:
        report = _read_json(text[text.find("{") : text.rfind("}") + 1])
    return report if report is not None and 0 <= report.turn < num_turns else None


def _read_json(text: str) -> Report | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("outcome") not in OUTCOMES:
        return None
    if found["outcome"] == "success":
        return Report(text, is_perfect=True)
    turn = found.get("retry_from_step")
    if isinstance(turn, str) and turn.strip().isdigit():
        turn = _whole(turn)
    if not isinstance(turn, int) or isinstance(turn, bool):
        return None
    return Report(text, turn) if "root_cause" in found and "suggestion" in found else None


def _whole(digits: str) -> int | None:
    """The number; None for thousands of digits, and for digits such as superscripts."""
    try:
        return int(digits)
    except ValueError:
        return None


class Row(NamedTuple):
    """A rollout of the batch: its stage, and the row whose beginning it shares."""

    episode: Episode
    stage: int
    parent: int = -1
    fork_at: int = -1


@dataclass
class Attempt:
    """An episode, the reflection on it, and the retry that followed.

    seeds: of the reflection and of the retry, and the name of the retry without its guide.
    """

    base: Episode
    seeds: Sequence[int]
    asked: str = ""
    context: tuple[int, ...] = ()  # of the reflection
    reflection: Sequence[Event] = ()
    report: Report | None = None
    retry: Episode | None = None

    @property
    def is_better(self) -> bool:
        """Whether the retry succeeded, and the first did not or took more turns."""
        if self.retry is None or self.retry.unscored:
            return False
        one, two = self.base.seat, self.retry.seat
        fewer = one.earned >= SUCCESS and len(two.turns) < len(one.turns)
        return two.earned >= SUCCESS and (two.earned > one.earned or fewer)

    def begin_again(self, world: Any, observation: str, given: Sequence[int]) -> Episode:
        """Start the episode again from the report's turn, which begins with another text."""
        assert self.report is not None
        number = self.base.repeated(world, self.report.turn)
        self.retry = self.base.branched(number, self.seeds[1], self.report.turn)
        seat = self.retry.seat
        opened = seat.turns[-1]
        seat.ids[len(seat.ids) - len(opened.given) :] = given
        opened.given, seat.turn_log[-1]["observation"] = tuple(given), observation
        return self.retry

    def unguided(self, parent: int) -> Row:
        """The retry as if it had not been guided: log-probabilities of its draws are not known."""
        assert self.report is not None
        assert self.retry is not None
        turn, theirs = self.report.turn, self.retry.seat
        game = self.base.branched(self.retry.number, self.seeds[2], turn)
        seat = game.seat
        (opened, *later), fork_at = theirs.turns[turn:], seat.used
        first = replace(opened, given=seat.turns[-1].given)
        seat.turns[turn:] = [replace(t, events=void(t.events)) for t in (first, *later)]
        newest, *rest = theirs.turn_log[turn:]
        seat.turn_log[turn:] = [{**newest, **seat.turn_log[turn]}, *rest]
        seat.used, seat.truncated = theirs.used, theirs.truncated
        game.exit, game.why = self.retry.exit, self.retry.why
        return Row(game, RETRY, parent, fork_at)

    def examples(self) -> list[Row]:
        """The rows to imitate: a good reflection, and the retry that it guided."""
        if self.is_better:
            return [Row(self._reflected(), REFLECTION), Row(self._guided(), GUIDED)]
        right = self.report is not None and self.report.is_perfect
        kept = right and self.base.seat.earned >= SUCCESS
        return [Row(self._reflected(), REFLECTION)] if kept else []

    def _reflected(self) -> Episode:
        """The reflection as an episode of one turn, which is worth 1."""
        assert self.report is not None
        entry = {
            "observation": self.asked,
            "action": self.report.text,
            "reward": 1.0,
            "valid": True,
        }
        turn = Turn(self.context, self.reflection, reward=1.0, done=True)
        return _alone(self.base, Seat(0, self.seeds[0], turns=[turn], turn_log=[entry]))

    def _guided(self) -> Episode:
        """The guided retry, worth 1; all that it took over from the base is given."""
        assert self.report is not None
        assert self.retry is not None
        seat, turn = self.retry.seat, self.report.turn
        kept, (opened, *later) = seat.turns[:turn], seat.turns[turn:]
        before = [id for each in kept for id in (*each.given, *_ids(each.events))]
        opened = replace(opened, given=(*before, *opened.given))
        turns = [replace(each, reward=0.0) for each in (opened, *later)]
        turns[-1].reward = 1.0
        return _alone(self.retry, replace(seat, turns=turns, turn_log=seat.turn_log[turn:]))


def rows_of(draws: Sequence[Draw], tries: Sequence[Attempt]) -> tuple[list[Draw], list[Row]]:
    """The rollouts, and the draws that they belong to: those of a prompt, then each example."""
    groups, rows = list[Draw](), list[Row]()
    for draw, theirs in rows_by_draw(draws):
        own, first = tries[theirs.start : theirs.stop], len(rows)
        rows += [Row(each.base, BASE) for each in own]
        rows += [each.unguided(first + n) for n, each in enumerate(own) if each.retry is not None]
        groups.append(draw._replace(num_rollouts=len(rows) - first))
        for row in (row for each in own for row in each.examples()):
            groups.append(draw._replace(num_rollouts=1, draw=OWN_GROUP + len(rows)))
            rows.append(row)
    return groups, rows


def _alone(of: Episode, seat: Seat) -> Episode:
    seats = {of.acting: seat}
    return Episode(of.number, of.uid, (seat.seed,), of.roles, seats, of.acting, of.exit)


def _ids(events: Sequence[Event]) -> list[int]:
    return [id for event in events for id in event.ids]
