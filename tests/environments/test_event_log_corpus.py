"""The firm's log, its documents and its questions, and the environment that asks them.

The readers here know only the texts and the log: they share no code with their generator.
"""

import re
from collections import defaultdict

import pytest

from strop.environments import event_log as firm
from strop.environments.base import EnvironmentSource
from strop.environments.built_in import event_log_corpus as corpus
from strop.environments.built_in.event_log_corpus import EventLogCorpus
from strop.environments.episodes import Episodes
from strop.environments.event_log import ABSENT, Clock, Ties, event_log, stamp
from strop.support.errors import UserError

NAME, TICKET = r"(?P<{}>[A-Z][a-z]+)", r"(?P<ticket>IT-\d+)"


def told(kind, words, *names):
    """The pattern of a document's words, and the kind of the event that it tells of."""
    for name in names:
        words = words.replace(name.upper(), NAME.format(name))
    words = words.replace("TICKET", TICKET).replace("SYSTEM", r"(?P<system>[Tt]he .+?)")
    words = words.replace("ROLE", r"(?P<role>.+)").replace("EFFECT", r"(?P<effect>.+)")
    return kind, re.compile(words.replace("REMEDY", r"(?P<remedy>.+)"))


TOLD = [
    told("joined", r"PERSON works here as ROLE\.", "person"),
    told("joined", r"Welcome to PERSON, who starts with us\.", "person"),
    told("opened", r"TICKET is opened: SYSTEM fails\."),
    told("opened", r"REPORTER says that SYSTEM fails, so EFFECT\.", "reporter"),
    told("opened", r"A word to everybody: EFFECT\. We are on it\."),
    told("assigned", r"TICKET is given to ASSIGNEE\.", "assignee"),
    told("assigned", r"BY has found somebody for TICKET\.", "by"),
    told("escalated", r"GIVER cannot finish TICKET and hands it to TAKER\.", "giver", "taker"),
    told("resolved", r"TICKET is closed: REMEDY\."),
    told("resolved", r"SYSTEM works again, thanks to BY\.", "by"),
    told("left", r"PERSON has left the firm\.", "person"),
    told("left", r"The post of ROLE is vacant\."),
]


def agrees(event, facts):
    facts = {key: value.replace("The ", "the ", key == "system") for key, value in facts.items()}
    if event.kind == "escalated":
        steps = list(zip(event.path, event.path[1:], strict=False))
        return (
            event.facts["ticket"] == facts["ticket"] and (facts["giver"], facts["taker"]) in steps
        )
    return facts.items() <= event.facts.items()


def answers(events, text, now):
    """All answers to a question that the log allows at a moment."""
    before = [each for each in events if each.time <= now]

    def of(kind, **facts):
        return [
            each for each in before if each.kind == kind and facts.items() <= each.facts.items()
        ]

    def holders(ticket, until=now):
        mine = [
            each for each in before if each.facts.get("ticket") == ticket and each.time <= until
        ]
        if any(each.kind == "resolved" for each in mine):
            return []
        return [(each.path or each.actors)[-1] for each in mine if each.kind != "opened"]

    def is_day(event, day):
        return stamp(event.time).startswith(day + ",")

    def role_of(person):
        return [each.facts["role"] for each in of("joined", person=person)]

    def fixers(opened):
        return [done.facts["by"] for each in opened
                for done in of("resolved", ticket=each.facts["ticket"])]  # fmt: skip

    rules = {
        r"Who said that (.+)\?": lambda effect: [
            each.facts["reporter"] for each in of("opened", effect=effect)] or [ABSENT],
        r"Who got (the .+) to work again\?": lambda system: [
            each.facts["by"] for each in of("resolved", system=system)] or [ABSENT],
        r"Who has (IT-\d+)\?": lambda ticket: holders(ticket)[-1:],
        r"Who left the firm on (.+)\?": lambda day: [
            each.facts["person"] for each in of("left") if is_day(each, day)],
        r"Who started on (.+)\?": lambda day: [
            each.facts["person"] for each in of("joined") if is_day(each, day)],
        r"Which role has the person who said that (.+)\?": lambda effect: [
            role for each in of("opened", effect=effect) for role in role_of(each.actors[0])],
        r"Who got to work again what had failed so that (.+)\?": lambda effect: fixers(
            of("opened", effect=effect)),
        r"Who got to work again what the (.+) reported on (.+)\?": lambda role, day: fixers([
            each for each in of("opened")
            if is_day(each, day) and role in role_of(each.actors[0])]),
        r"Which ticket did the (.+) who left the firm leave unfinished\?": lambda role: [
            opened.facts["ticket"] for gone in of("left", role=role) for opened in of("opened")
            if holders(opened.facts["ticket"], gone.time)[-1:] == [gone.actors[0]]],
        r"Which ticket was the first to be opened after the (.+) had left the firm\?": lambda
        role: [
            each.facts["ticket"] for gone in of("left", role=role) for each in of("opened")
            if each.time == min(one.time for one in of("opened") if one.time > gone.time)],
        r"To whom did the (.+) hand the ticket about (.+)\?": lambda role, system: [
            taker for opened in of("opened", system=system)
            for moved in of("escalated", ticket=opened.facts["ticket"])
            for giver, taker in zip(moved.path, moved.path[1:], strict=False)
            if role in role_of(giver)],
    }  # fmt: skip
    (found,) = [rule(*fit.groups()) for words, rule in rules.items()
                if (fit := re.fullmatch(words, text))]  # fmt: skip
    return found


def test_no_document_contradicts_the_log_and_every_question_has_one_answer():
    kinds = set()
    for seed in range(100):
        log = event_log(seed)
        assert all(asked.cutoff % firm.DAY == firm.CLOSES for asked in log.questions)
        event, of_kind = {each.id: each for each in log.events}, defaultdict(list)
        for each in log.events:
            of_kind[each.kind].append(each)
        for each in log.events:
            assert all(event[one].time < each.time for one in each.follows)
        for document in log.documents:
            readings = [(kind, fit.groupdict()) for kind, words in TOLD
                        if (fit := words.fullmatch(document.text))]  # fmt: skip
            assert any(
                each.time <= document.time and agrees(each, facts)
                for kind, facts in readings for each in of_kind[kind]
            ), document  # fmt: skip
        for asked in log.questions:
            assert answers(log.events, asked.text, asked.cutoff) == [asked.answer], (seed, asked)
            given = [log.document[one] for one in asked.evidence]
            assert all(one.time <= asked.cutoff for one in given)
            if asked.kind == "absent":
                (thing,) = re.fullmatch(r"Who (?:got|said that) (.+?)(?: to work again)?\?",
                                        asked.text).groups()  # fmt: skip
                assert not any(thing.lower() in one.text.lower() for one in log.documents)
            else:
                assert any(asked.answer in one.text for one in given), (seed, asked)
        kinds |= {asked.kind for asked in log.questions}
        assert len(log.questions) == len({(each.text, each.cutoff) for each in log.questions})
    assert kinds == set(firm.KINDS)


def test_who_is_not_there_does_nothing():
    for seed in range(5):
        there = set()
        for event in event_log(seed).events:
            if event.kind == "joined":
                there.add(event.actors[0])
            assert set(event.actors) <= there
            if event.kind == "left":
                there.discard(event.actors[0])


def test_the_clock_by_hand():
    clock = Clock({"A": 9 * 60, "B": 9 * 60 + 30})
    clock.work("A", 120)
    assert clock.cursors == {"A": 11 * 60, "B": 9 * 60 + 30}
    assert clock.meet(("A", "B"), 7) == 11 * 60 + 7
    assert clock.cursors == {"A": 11 * 60 + 7, "B": 11 * 60 + 7}
    friday = 4 * firm.DAY + firm.CLOSES
    assert stamp(firm.working(friday)) == "Friday of week 1, 17:30"
    assert stamp(firm.working(friday + 1)) == "Monday of week 2, 09:00"
    assert stamp(firm.working(firm.DAY)) == "Tuesday of week 1, 09:00"


def test_the_ties_by_hand():
    pair = frozenset
    ties = Ties({pair("AB"): 2.0, pair("BC"): 1.0, pair("AC"): 0.5})
    assert ties.path("A", "C") == ("A", "B", "C")  # 1/2 + 1/1 against 1/.5
    assert ties.path("A", "D") == ()
    ties.pass_day()
    assert ties.weights == {pair("AB"): 1.94, pair("BC"): 0.97, pair("AC"): 0.5}
    ties.meet(("A", "B"))
    assert ties.weights[pair("AB")] == pytest.approx(2.44)


def test_recall_by_hand():
    assert corpus.recall_at(("d3", "d7"), ("d1", "d3", "d9", "d7"), 4) == [0, 0.5, 0.5, 1]


def asked_of(kind, **options):
    """An episode whose question is of a kind and has evidence that is found by its words."""
    environment = EventLogCorpus(**options)
    for seed in range(400):
        shown = environment.reset(seed)
        if environment.asked.kind == kind:
            return environment, shown
    raise AssertionError(f"no question is of the kind {kind}")


def test_a_search_opens_documents():
    environment, shown = asked_of("look-up", most=2)
    asked, log = environment.asked, environment.log
    assert shown.text.startswith(f"It is {stamp(asked.cutoff)}. {asked.text} Answer with ")
    (evidence,) = asked.evidence
    words = re.sub(r"\W+", " ", log.document[evidence].text)
    shown = environment.step(f'call search {{"query": "{words}"}}')
    assert f"[{evidence}] " in shown.text
    late = sum(log.document[each].time > asked.cutoff for each in environment.opened)
    expected = {"answer": 0, "opened": 2, "early": late / 2, "recall": 1, "recall@10": 1}
    assert {name: shown.measures[name] for name in expected} == expected
    environment.step(f'call search {{"query": "{words}"}}')
    assert len(environment.opened) == 2  # opened once
    shown = environment.step(f"Answer: {asked.answer.upper()}.")
    assert (shown.reward, shown.done, shown.measures["answer"]) == (1, True, 1)
    assert environment.columns()["evidence"] == [evidence]


def test_a_later_document_is_early():
    environment, _ = asked_of("absent", days=10)
    last = environment.log.documents[-1]
    environment.opened = [environment.log.documents[0].id, last.id]
    assert last.time > environment.asked.cutoff
    found = environment.step(f"Answer: {ABSENT}")
    assert found.measures == {"answer": 1, "opened": 2, "early": 0.5}  # no evidence, no recall


@pytest.mark.parametrize("mode", ["passages", "closed"])
def test_without_a_search(mode):
    environment, shown = asked_of("join", mode=mode)
    given = [str(environment.log.document[each]) for each in environment.asked.evidence]
    assert [each in shown.text for each in given] == [mode == "passages"] * len(given)
    assert (environment.tools(), environment.max_turns) == ([], 1)
    assert environment.step("Nobody").measures == {"answer": 0}


def test_splits_have_corpora_of_their_own():
    environment, seen = EventLogCorpus(corpora=2), []
    for first in (0, 10**9, 2 * 10**9):
        logs = {environment.reset(first + n).text and id(environment.log) for n in range(6)}
        assert len(logs) == 2
        assert environment.corpus[0] == first + 1  # of the second corpus, as the last seed is odd
        seen.extend(logs)
    assert len(set(seen)) == 6


def test_the_floor_is_of_the_questions_own_words():
    rows = corpus.bm25_recall(3)
    assert {asked.kind for asked, _ in rows} <= {"look-up", "join", "order", "path"}
    assert all(recall == sorted(recall) for _, recall in rows)
    joins = [recall[9] for asked, recall in rows if asked.kind == "join"]
    assert sum(joins) / len(joins) < 0.8  # a second search is needed


def test_episodes_repeat():
    source = EnvironmentSource("event_log_corpus", {"mode": "search"})
    texts = [[each.text for each in Episodes(source, [0, 1, 2]).reset()] for _ in range(2)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "serach"}, "mode 'serach' is none of search, passages, closed .did you mean"),
        ({"people": 30}, "people must be a whole number from 6 to 20"),
        ({"most": 0}, "most must be a whole number of at least 1"),
    ],
)  # fmt: skip
def test_options_that_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        EventLogCorpus(**options)
