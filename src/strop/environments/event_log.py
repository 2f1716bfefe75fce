"""Generates a fictional firm from a seed: a log of events, documents about them, and questions.

The facts come first. People open, take, pass on and close tickets, leave and join; the log holds
every such event with its time, its facts and the events that it follows from. Documents are
templates, each filled from one event with a part of its facts, so that some questions need two or
three documents. Questions are generated from the log, so their answers and the documents that give
them are known. No model writes anything, and a seed gives the same corpus everywhere.

Everybody has a cursor, the moment up to which their time is spent. Own work moves one cursor; joint
work begins when the last of its people is free and moves all of their cursors. So nobody is in two
places, and no document mentions a later event.
"""

import heapq
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count, pairwise, product
from typing import NamedTuple

from strop.environments.generated_questions import SYLLABLES

DAY, OPENS, CLOSES = 24 * 60, 9 * 60, 17 * 60 + 30  # in minutes; closed from 17:30 to 9:00
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
JOINT = (5, 15)  # minutes of a meeting
CADENCE = {"chat": (3, 12), "incident": (1, 4), "later": (10, 35)}  # to an event's next document
DECAY, FLOOR, BOOST = 0.97, 0.5, 0.5  # of a tie: factor a day, least weight, gain of a meeting
ABSENT = "not in the corpus"
KINDS = ("look-up", "join", "order", "path", "absent")
DESK = "service desk lead"  # the person who assigns tickets, and who never leaves
ROLES = (
    DESK, "network engineer", "database administrator", "security officer", "storage engineer",
    "telephone technician", "web developer", "test engineer", "hardware buyer", "licence manager",
    "data analyst", "release manager", "training officer", "site electrician", "mail administrator",
    "systems architect", "help desk agent", "print technician", "audit clerk", "cloud engineer",
)  # fmt: skip
SYSTEMS = tuple(
    f"the {device} in the {place}"
    for device, place in product(
        ("printer", "scanner", "badge reader", "router", "file share", "payroll terminal",
         "booking page", "phone line", "backup drive", "label machine", "time clock", "projector"),
        ("north wing", "south wing", "warehouse", "workshop", "canteen", "archive"),
    )
)  # fmt: skip
EFFECTS = tuple(
    f"{team} {deed}"
    for team, deed in product(
        ("sales", "accounts", "purchasing", "dispatch", "legal", "design", "support", "training"),
        ("cannot send invoices", "works on paper", "waits at the door", "misses a delivery",
         "cancels a meeting", "phones every customer", "orders twice", "stays overnight"),
    )
)  # fmt: skip
REMEDIES = ("a cable was replaced", "a password was renewed", "an update was taken back",
            "a disk was exchanged", "a setting was corrected", "a licence was bought")  # fmt: skip


class Template(NamedTuple):
    """A document of an event: its channel, its words, and the delay after the previous one."""

    channel: str
    words: str
    cadence: str = "later"


TEMPLATES: Mapping[str, tuple[Template, ...]] = {
    "joined": (
        Template("wiki", "{person} works here as {role}."),
        Template("mail", "Welcome to {person}, who starts with us."),
    ),
    "opened": (
        Template("ticket", "{ticket} is opened: {system} fails."),
        Template("chat", "{reporter} says that {system} fails, so {effect}.", "chat"),
        Template("mail", "A word to everybody: {effect}. We are on it."),
    ),
    "assigned": (
        Template("ticket", "{ticket} is given to {assignee}."),
        Template("chat", "{by} has found somebody for {ticket}.", "chat"),
    ),
    "escalated": (
        Template("chat", "{giver} cannot finish {ticket} and hands it to {taker}.", "incident"),
    ),
    "resolved": (
        Template("ticket", "{ticket} is closed: {remedy}."),
        Template("mail", "{system} works again, thanks to {by}."),
    ),
    "left": (
        Template("mail", "{person} has left the firm."),
        Template("wiki", "The post of {role} is vacant."),
    ),
}
LEFT_OUT = 0.15  # chance that a document of an event is not written; at least one is


@dataclass(frozen=True)
class Event:
    """Something that happened. follows: ids of the events that it required."""

    id: str
    kind: str
    time: int
    actors: tuple[str, ...]
    facts: Mapping[str, str]
    follows: tuple[str, ...] = ()
    path: tuple[str, ...] = ()  # the people whom an escalated ticket passed through


@dataclass(frozen=True)
class Document:
    """A text, the event that it reports and the facts that it holds."""

    id: str
    time: int
    channel: str
    text: str
    event: str
    facts: Mapping[str, str]

    def __str__(self) -> str:
        return f"[{self.id}] {stamp(self.time)}, {self.channel}: {self.text}"


@dataclass(frozen=True)
class Question:
    """A question, its answer by the log up to a moment, and the documents that give it."""

    text: str
    answer: str
    kind: str
    evidence: tuple[str, ...]
    cutoff: int


@dataclass(frozen=True)
class EventLog:
    """The events, the documents about them, and the questions."""

    events: tuple[Event, ...]
    documents: tuple[Document, ...]
    questions: tuple[Question, ...]

    @cached_property
    def document(self) -> Mapping[str, Document]:
        """Documents by id."""
        return {each.id: each for each in self.documents}


def stamp(time: int) -> str:
    """The time in words."""
    return f"{day_of(time)}, {time % DAY // 60:02}:{time % 60:02}"


def day_of(time: int) -> str:
    """The day of a time in words."""
    return f"{WEEKDAYS[time // DAY % 7]} of week {time // DAY // 7 + 1}"


def working(time: int) -> int:
    """The time itself if it is in working hours, or the next one that is."""
    if time % DAY > CLOSES:
        time = (time // DAY + 1) * DAY
    time = max(time, time // DAY * DAY + OPENS)
    while time // DAY % 7 >= 5:
        time = (time // DAY + 1) * DAY + OPENS
    return time


@dataclass
class Clock:
    """The cursor of everybody, in minutes."""

    cursors: dict[str, int]

    def work(self, person: str, minutes: int, after: int = 0) -> tuple[int, int]:
        """Spend a person's time on own work; returns its start and its end."""
        started = working(max(self.cursors[person], after))
        self.cursors[person] = working(started + minutes)
        return started, self.cursors[person]

    def meet(self, people: Sequence[str], minutes: int, after: int = 0) -> int:
        """Spend several people's time on joint work; returns its end, the new cursor of all."""
        time = working(max(after, *(self.cursors[each] for each in people)) + minutes)
        self.cursors.update(dict.fromkeys(people, time))
        return time


@dataclass
class Ties:
    """How well people know each other: weights of pairs."""

    weights: dict[frozenset[str], float] = field(default_factory=dict)

    def meet(self, people: Sequence[str]) -> None:
        """Strengthen the tie of each person to the next one in the list."""
        for pair in map(frozenset, pairwise(people)):
            self.weights[pair] = self.weights.get(pair, FLOOR) + BOOST

    def pass_day(self) -> None:
        """Weaken all ties."""
        self.weights = {pair: max(FLOOR, DECAY * w) for pair, w in self.weights.items()}

    def path(self, start: str, end: str) -> tuple[str, ...]:
        """The cheapest way from one to another, where a step costs 1 / weight (Dijkstra)."""
        reached: set[str] = set()
        ways: list[tuple[float, tuple[str, ...]]] = [(0.0, (start,))]
        while ways:
            cost, way = heapq.heappop(ways)
            if way[-1] == end:
                return way
            if way[-1] in reached:
                continue
            reached.add(way[-1])
            for pair, weight in self.weights.items():
                if way[-1] in pair:
                    (other,) = pair - {way[-1]}
                    heapq.heappush(ways, (cost + 1 / weight, (*way, other)))
        return ()


@dataclass
class _Ticket:
    name: str
    system: str
    last: str  # id of its newest event
    time: int
    holder: str = ""
    held: set[str] = field(default_factory=set)  # everybody who ever had it


class _Firm:
    """Simulates the days of a firm and records its events."""

    def __init__(self, draw: random.Random, people: int) -> None:
        self.draw, self.events, self.number = draw, list[Event](), count(1)
        self.systems = draw.sample(SYSTEMS, len(SYSTEMS))
        self.effects = draw.sample(EFFECTS, len(EFFECTS))
        self.clock, self.ties = Clock({}), Ties()
        self.roles: dict[str, str] = {}  # the role of everybody who works there now
        self.names: set[str] = set()
        self.vacant: list[tuple[str, str, int]] = []  # vacant roles, the leaving events, times
        self.open: list[_Ticket] = []
        for role in (DESK, *draw.sample(ROLES[1:], people - 1)):
            self.join(role, OPENS)
        self.desk, *others = self.roles
        for one in others:
            self.ties.meet((one, self.desk if draw.random() < 0.4 else draw.choice(others)))
            self.ties.meet((self.desk, one))
        self.ties.weights = {pair: w for pair, w in self.ties.weights.items() if len(pair) == 2}

    def note(
        self, kind: str, time: int, actors: Sequence[str], follows: Sequence[str] = (),
        path: tuple[str, ...] = (), **facts: str,
    ) -> str:  # fmt: skip
        """Add an event to the log and return its id, which counts in the order of the calls."""
        event = Event(
            f"n{next(self.number)}", kind, time, tuple(actors), facts,
            tuple(filter(None, follows)), path,
        )  # fmt: skip
        self.events.append(event)
        return event.id

    def join(self, role: str, time: int, follows: str = "") -> None:
        """Let a new person join; one who follows somebody first meets the lead of the desk."""
        name = ""
        while not name or name in self.names:
            name = "".join(self.draw.choices(SYLLABLES, k=3)).capitalize()
        self.names.add(name)
        self.roles[name], self.clock.cursors[name] = role, time
        if follows:
            time = self.clock.meet((self.desk, name), self.draw.randint(*JOINT))
            self.ties.meet((self.desk, name))
        self.note("joined", time, (name,), (follows,), person=name, role=role)

    def leave(self) -> None:
        """Let a person leave; the tickets they held have no holder and must be reassigned."""
        person = self.draw.choice([each for each in self.roles if each != self.desk])
        role = self.roles.pop(person)
        _, time = self.clock.work(person, self.draw.randint(*JOINT))
        event = self.note("left", time, (person,), person=person, role=role)
        self.ties.weights = {pair: w for pair, w in self.ties.weights.items() if person not in pair}
        self.vacant.append((role, event, time))
        for ticket in self.open:
            if ticket.holder == person:
                ticket.holder, ticket.last, ticket.time = "", event, max(time, ticket.time)

    def report(self) -> None:
        """Let a person find during their work that a system fails."""
        reporter = self.draw.choice(list(self.roles))
        started, ended = self.clock.work(reporter, self.draw.randint(30, 120))
        time = working(started + self.draw.randint(1, max(ended - started, 1)))
        system, ticket = self.systems.pop(), f"IT-{101 + len(SYSTEMS) - len(self.systems)}"
        event = self.note("opened", time, (reporter,), ticket=ticket, system=system,
                          effect=self.effects.pop(), reporter=reporter)  # fmt: skip
        self.open.append(_Ticket(ticket, system, event, time))

    def free(self, ticket: _Ticket) -> list[str]:
        """The people who may get a ticket: they never had it and are not the desk."""
        return [each for each in self.roles if each != self.desk and each not in ticket.held]

    def assign(self, ticket: _Ticket) -> None:
        """Let the desk assign a ticket to somebody who never had it."""
        assignee = self.draw.choice(self.free(ticket))
        people = (self.desk, assignee)
        ticket.time = self.clock.meet(people, self.draw.randint(*JOINT), ticket.time)
        self.ties.meet(people)
        ticket.last = self.note("assigned", ticket.time, people, (ticket.last,), by=self.desk,
                                ticket=ticket.name, assignee=assignee)  # fmt: skip
        ticket.holder = assignee
        ticket.held.add(assignee)

    def escalate(self, ticket: _Ticket) -> bool:
        """Let the holder pass a ticket to somebody else, along the strongest ties.

        Returns whether that was possible.
        """
        expert = self.draw.choice([each for each in self.roles if each != ticket.holder])
        path = self.ties.path(ticket.holder, expert)
        if not path or ticket.held & set(path[1:]):
            return False
        ticket.time = self.clock.meet(path, self.draw.randint(*JOINT), ticket.time)
        self.ties.meet(path)
        ticket.last = self.note("escalated", ticket.time, path, (ticket.last,), path,
                                ticket=ticket.name, giver=path[0], taker=path[-1])  # fmt: skip
        ticket.holder = expert
        ticket.held.update(path)
        return True

    def resolve(self, ticket: _Ticket) -> None:
        """Let the holder work on a ticket until it is resolved."""
        _, time = self.clock.work(ticket.holder, self.draw.randint(30, 180), ticket.time)
        self.note("resolved", time, (ticket.holder,), (ticket.last,), ticket=ticket.name,
                  by=ticket.holder, system=ticket.system,
                  remedy=self.draw.choice(REMEDIES))  # fmt: skip
        self.open.remove(ticket)

    def act(self) -> None:
        """Make one event of a kind that is possible now."""
        waiting = [each for each in self.open if not each.holder and self.free(each)]
        held = [each for each in self.open if each.holder]
        chance = self.draw.random()
        if waiting and chance < 0.5:
            return self.assign(self.draw.choice(waiting))
        if held and chance < 0.8:
            ticket = self.draw.choice(held)
            if self.draw.random() < 0.5 and self.escalate(ticket):
                return None
            return self.resolve(ticket)
        return self.report()

    def play(self, days: int, events: int) -> None:
        """Make `events` events, spread evenly over the days; two people leave and are replaced."""
        leaving = set(self.draw.sample(range(1, days), 2)) if days > 2 else set[int]()
        time = OPENS
        for day in range(days):
            for person in self.roles:
                self.clock.cursors[person] = max(self.clock.cursors[person], time)
            for role, event, since in self.vacant:
                self.join(role, max(time, since), event)
            self.vacant.clear()
            if day in leaving:
                self.leave()
            for _ in range(events * (day + 1) // days - events * day // days):
                self.act()
            self.ties.pass_day()
            time = working((time // DAY + 1) * DAY)


def event_log(seed: int, people: int = 12, days: int = 10, events: int = 60,
              questions: int = 200) -> EventLog:  # fmt: skip
    """Generate the corpus of a seed. questions: the largest number of them."""
    draw = random.Random(seed)
    firm = _Firm(draw, people)
    firm.play(days, events)
    happened = _in_order(firm.events)
    documents = _documents(draw, happened)
    unused = firm.systems, firm.effects
    return EventLog(happened, documents, _questions(draw, happened, documents, unused, questions))


def _in_order(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events by time, with ids in that order."""
    ordered = sorted(events, key=lambda each: each.time)
    ids = {each.id: f"e{number}" for number, each in enumerate(ordered, 1)}
    return tuple(
        replace(each, id=ids[each.id], follows=tuple(ids[one] for one in each.follows))
        for each in ordered
    )


def _documents(draw: random.Random, events: Sequence[Event]) -> tuple[Document, ...]:
    """Write the documents of every event; an escalation has them for each of its hand-overs."""
    found = list[tuple[int, str, str, str, Mapping[str, str]]]()
    for event in events:
        reports = [event.facts]
        if event.path:
            reports = [{**event.facts, "giver": a, "taker": b} for a, b in pairwise(event.path)]
        written = [(template, facts) for facts in reports for template in TEMPLATES[event.kind]]
        kept = [each for each in written if event.path or draw.random() >= LEFT_OUT]
        time = event.time
        for number, (template, facts) in enumerate(kept or written[:1]):
            time = working(time + (draw.randint(*CADENCE[template.cadence]) if number else 0))
            holds = {key: value for key, value in facts.items() if f"{{{key}}}" in template.words}
            text = template.words.format(**facts)
            found.append((time, template.channel, text[0].upper() + text[1:], event.id, holds))
    ordered = sorted(found, key=lambda each: each[0])
    return tuple(Document(f"d{number}", *each) for number, each in enumerate(ordered, 1))


# ---- questions


class _View:
    """The events and documents up to a time."""

    def __init__(self, events: Sequence[Event], documents: Sequence[Document], cutoff: int) -> None:
        self.events = [each for each in events if each.time <= cutoff]
        self.documents = [each for each in documents if each.time <= cutoff]
        self.cutoff = cutoff

    def of(self, kind: str, **facts: str) -> list[Event]:
        """The events of a kind with these facts."""
        return [each for each in self.events if each.kind == kind
                and all(each.facts[key] == value for key, value in facts.items())]  # fmt: skip

    def statement(self, **facts: str) -> str:
        """The only document that holds these facts; empty where there is none."""
        found = [each.id for each in self.documents if facts.items() <= each.facts.items()]
        return found[0] if len(found) == 1 else ""

    def post(self, role: str) -> str:
        """The only person so far who had a role; empty where there are several."""
        holders = [each.facts["person"] for each in self.of("joined", role=role)]
        return holders[0] if len(holders) == 1 else ""

    def hands(self, ticket: str) -> list[tuple[str, str, Mapping[str, str]]]:
        """Who gave a ticket to whom, in order, with the facts of a document about it."""
        found = list[tuple[str, str, Mapping[str, str]]]()
        for event in self.events:
            if event.facts.get("ticket") == ticket and event.kind == "assigned":
                to = event.facts["assignee"]
                found.append((event.facts["by"], to, {"ticket": ticket, "assignee": to}))
            for giver, taker in pairwise(event.path if event.facts.get("ticket") == ticket else ()):
                found.append((giver, taker, {"ticket": ticket, "giver": giver, "taker": taker}))
        return found


Found = tuple[str, str, str, Sequence[str]]  # kind, question, answer, evidence


def _look_ups(view: _View) -> Iterator[Found]:
    for event in view.of("opened"):
        ticket, effect = event.facts["ticket"], event.facts["effect"]
        source = view.statement(effect=effect, reporter=event.facts["reporter"])
        yield "look-up", f"Who said that {effect}?", event.facts["reporter"], [source]
        if (hands := view.hands(ticket)) and not view.of("resolved", ticket=ticket):
            _, holder, facts = hands[-1]
            if not view.of("left", person=holder):
                yield "look-up", f"Who has {ticket}?", holder, [view.statement(**facts)]
    for kind, words, holds in (("left", "left the firm", ()), ("joined", "started", ("role",))):
        days = [day_of(each.time) for each in view.of(kind)]
        for event in view.of(kind):
            if days.count(day_of(event.time)) == 1:
                facts = {key: event.facts[key] for key in ("person", *holds)}
                asked = f"Who {words} on {day_of(event.time)}?"
                yield "look-up", asked, event.facts["person"], [view.statement(**facts)]


def _joins(view: _View) -> Iterator[Found]:
    for event in view.of("opened"):
        effect, system, reporter = (event.facts[key] for key in ("effect", "system", "reporter"))
        source = view.statement(effect=effect, reporter=reporter)
        (joined,) = view.of("joined", person=reporter)
        role = joined.facts["role"]
        post = view.statement(person=reporter, role=role)
        yield "join", f"Which role has the person who said that {effect}?", role, [source, post]
        for end in view.of("resolved", system=system):
            fixed = view.statement(system=system, by=end.facts["by"])
            asked = f"Who got to work again what had failed so that {effect}?"
            yield "join", asked, end.facts["by"], [source, fixed]
            day = day_of(event.time)
            same = [each for each in view.of("opened", reporter=reporter)
                    if day_of(each.time) == day]  # fmt: skip
            if view.post(role) and len(same) == 1:
                asked = f"Who got to work again what the {role} reported on {day}?"
                yield "join", asked, end.facts["by"], [post, source, fixed]


def _orders(view: _View) -> Iterator[Found]:
    for event in view.of("left"):
        person, role = event.facts["person"], event.facts["role"]
        if len(view.of("left", role=role)) > 1:
            continue
        shown = [view.statement(person=person, role=role), _farewell(view, person)]
        before = _View(view.events, view.documents, event.time)
        tickets = [each.facts["ticket"] for each in before.of("opened")
                   if not before.of("resolved", ticket=each.facts["ticket"])]  # fmt: skip
        held = [(each, hands[-1]) for each in tickets if (hands := before.hands(each))]
        mine = [(each, facts) for each, (_, holder, facts) in held if holder == person]
        if len(mine) == 1:
            asked = f"Which ticket did the {role} who left the firm leave unfinished?"
            yield "order", asked, mine[0][0], [*shown, view.statement(**mine[0][1])]
        later = [each for each in view.of("opened") if each.time > event.time]
        if later and [each.time for each in later].count(later[0].time) == 1:
            first = {key: later[0].facts[key] for key in ("ticket", "system")}
            asked = f"Which ticket was the first to be opened after the {role} had left the firm?"
            yield "order", asked, first["ticket"], [*shown, view.statement(**first)]


def _farewell(view: _View, person: str) -> str:
    found = [each.id for each in view.documents if each.facts == {"person": person}
             and any(event.id == each.event for event in view.of("left"))]  # fmt: skip
    return found[0] if found else ""


def _paths(view: _View) -> Iterator[Found]:
    for event in view.of("opened"):
        ticket, system = event.facts["ticket"], event.facts["system"]
        for giver, taker, facts in view.hands(ticket):
            role = next(each.facts["role"] for each in view.of("joined", person=giver))
            if "giver" in facts and view.post(role):
                post = view.statement(person=giver, role=role)
                asked = f"To whom did the {role} hand the ticket about {system}?"
                opened = view.statement(ticket=ticket, system=system)
                yield "path", asked, taker, [post, opened, view.statement(**facts)]


def _questions(
    draw: random.Random, events: Sequence[Event], documents: Sequence[Document],
    unused: tuple[Sequence[str], Sequence[str]], most: int,
) -> tuple[Question, ...]:  # fmt: skip
    """Generate questions as of the end of every day, each text once or twice.

    The documents of a question's evidence all exist.
    """
    found = dict[str, list[Question]]()
    ends = sorted({each.time // DAY * DAY + CLOSES for each in events})
    for cutoff in ends:
        view = _View(events, documents, cutoff)
        for kind, text, answer, evidence in chain.from_iterable(
            maker(view) for maker in (_look_ups, _joins, _orders, _paths)
        ):
            if all(evidence):
                asked = Question(text, answer, kind, tuple(evidence), cutoff)
                found.setdefault(text, []).append(asked)
    systems, effects = unused
    for system, effect in zip(systems[:10], effects, strict=False):
        for text in (f"Who got {system} to work again?", f"Who said that {effect}?"):
            found[text] = [Question(text, ABSENT, "absent", (), draw.choice(ends))]
    kept = [one for each in found.values() for one in draw.sample(each, min(2, len(each)))]
    return tuple(draw.sample(kept, min(most, len(kept))))
