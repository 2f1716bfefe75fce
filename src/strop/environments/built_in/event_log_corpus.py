"""Questions about events in a fictional firm, over documents that are searched, given or absent.

The firm is `strop.environments.event_log`: a log of facts from a seed, documents by templates, and
questions whose answers and evidence are known. A question is asked at a certain time; the corpus
also has later documents. Splits are by corpus, so facts learnt about one firm answer no question of
another split.

`mode` says what a question comes with: `search` gives the tool `search` (BM25), `passages` shows
the documents that hold the answer, and `closed` shows nothing. Search minus closed is the gain from
searching; passages minus search is what finding the right documents would add.

    Who got to work again what the storage engineer reported on Monday of week 1?
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from strop.data.prompts import MAX_SPLIT_ROWS
from strop.environments.base import Observation, check_number
from strop.environments.event_log import ABSENT, ROLES, EventLog, Question, event_log, stamp
from strop.environments.tool_box import Corpus, searching
from strop.environments.tool_environment import ToolEnvironment, plain
from strop.support.errors import UserError, did_you_mean

MODES = ("search", "passages", "closed")
RECALL_AT = (1, 3, 5, 10)  # documents
ASKED = (
    "It is {now}. {question} Answer with the name, the ticket or the role alone, or with "
    f"'{ABSENT}'.\n"
)


class EventLogCorpus(ToolEnvironment):
    """Options: mode (search, passages or closed), corpora (of a split), people (6 to 20), days,
    events (beside people who come and go), questions (of a corpus, at most), most (documents of a
    search), max_turns, max_tokens, max_calls.

    The answer is worth 1. Measures: answer; with evidence to be found also recall@k, its share
    among the first k documents that were opened, and recall among all; early, the share of opened
    documents that are later than the moment of the question; opened, their number.
    """

    def __init__(
        self,
        mode: str = "search",
        corpora: int = 8,
        people: int = 12,
        days: int = 10,
        events: int = 60,
        questions: int = 200,
        most: int = 3,
        max_turns: int = 6,
        max_tokens: int = 128,
        max_calls: int = 16,
    ) -> None:
        if mode not in MODES:
            hint = did_you_mean(str(mode), MODES)
            raise UserError(f"event_log_corpus: mode {mode!r} is none of {', '.join(MODES)}{hint}")
        counts = {"corpora": corpora, "days": days, "questions": questions, "most": most,
                  "max_turns": max_turns, "max_tokens": max_tokens,
                  "max_calls": max_calls}  # fmt: skip
        for name, value in counts.items():
            check_number(f"event_log_corpus: {name}", value, 1)
        check_number("event_log_corpus: people", people, 6, len(ROLES))
        check_number("event_log_corpus: events", events, 10, 60)
        self.mode, self.corpora, self.most = mode, corpora, most
        self.sizes = (people, days, events, questions)
        self.max_turns = max_turns if mode == "search" else 1
        self.max_tokens, self.max_calls = max_tokens, max_calls
        self.opened: list[str] = []
        if mode == "search":
            Corpus(["so that a missing package is found before the first episode"])

    def tools(self) -> Sequence[Any]:
        """The tool `search`, where there is something to search."""
        return [searching(self._search)] if self.mode == "search" else []

    def question(self, seed: int) -> str:
        """The question of the seed, with what the mode shows."""
        split, number = divmod(seed, MAX_SPLIT_ROWS)
        self.corpus = (split * MAX_SPLIT_ROWS + number % self.corpora, *self.sizes)
        self.log = made(*self.corpus)
        self.asked = self.log.questions[number // self.corpora % len(self.log.questions)]
        self.opened = []
        text = ASKED.format(now=stamp(self.asked.cutoff), question=self.asked.text)
        if self.mode != "passages":
            return text
        given = [str(self.log.document[each]) for each in self.asked.evidence]
        return "\n".join(["Documents:", *(given or ["(none)"]), "", text])

    def step(self, action: str) -> Observation:
        """Search, or judge the answer."""
        shown = super().step(action)
        return replace(shown, measures={"answer": shown.reward, **self._found()})

    def judge(self, answer: str) -> float:
        """1 for the right answer, in any case of its letters."""
        return float(plain(answer) == plain(self.asked.answer))

    def columns(self) -> Mapping[str, Any]:
        """The answer, the kind of the question, and the documents that give it."""
        return {"answer": self.asked.answer, "kind": self.asked.kind,
                "evidence": list(self.asked.evidence)}  # fmt: skip

    def _search(self, query: str) -> str:
        places = retriever(self.most, *self.corpus).places(query)
        found = [self.log.documents[at] for at in places]
        self.opened += [each.id for each in found if each.id not in self.opened]
        return "\n".join(map(str, found)) if found else "(no document has these words)"

    def _found(self) -> dict[str, float]:
        if self.mode != "search":
            return {}
        late = [self.log.document[each].time > self.asked.cutoff for each in self.opened]
        found = {"opened": float(len(late)), "early": sum(late) / max(len(late), 1)}
        if self.asked.evidence:
            recall = recall_at(self.asked.evidence, self.opened, max(len(late), *RECALL_AT))
            found |= {f"recall@{k}": recall[k - 1] for k in RECALL_AT} | {"recall": recall[-1]}
        return found


@lru_cache(maxsize=64)
def made(seed: int, *sizes: int) -> EventLog:
    """The corpus of a seed, which is generated once."""
    return event_log(seed, *sizes)


@lru_cache(maxsize=64)
def retriever(most: int, seed: int, *sizes: int) -> Corpus:
    """The BM25 index of the documents of a seed's corpus."""
    return Corpus([str(each) for each in made(seed, *sizes).documents], most)


def recall_at(evidence: Sequence[str], opened: Sequence[str], most: int) -> list[float]:
    """The share of the evidence among the first 1 .. `most` documents that were opened."""
    return [len(set(evidence) & set(opened[:k])) / len(evidence) for k in range(1, most + 1)]


def bm25_recall(
    seed: int, most: int = RECALL_AT[-1], sizes: Sequence[int] = (12, 10, 60, 200)
) -> list[tuple[Question, list[float]]]:
    """The questions of a corpus that have evidence, each with the recall at 1 .. `most` of a search
    for the question's own words: a baseline for agents.
    """
    log, corpus = made(seed, *sizes), retriever(most, seed, *sizes)
    ids = [each.id for each in log.documents]
    return [
        (each, recall_at(each.evidence, [ids[at] for at in corpus.places(each.text)], most))
        for each in log.questions
        if each.evidence
    ]
