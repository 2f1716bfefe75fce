"""Generates questions that need a tool from a seed: arithmetic, a table, a set of documents."""

import random
from dataclasses import dataclass

KINDS = ("arithmetic", "sql", "search")
GOODS = ("apples", "bolts", "candles", "drums", "files", "gloves", "hats", "jars", "kites", "lamps")
CITIES = ("Arlen", "Bruma", "Corin", "Delby", "Elmet", "Farro", "Gavle", "Hesta", "Ibron", "Jolan")
TRADES = ("baker", "carter", "dyer", "farrier", "glazier", "mason", "potter", "tailor")
SYLLABLES = (
    "ba",
    "ce",
    "do",
    "fa",
    "gi",
    "ko",
    "lu",
    "ma",
    "ne",
    "pi",
    "ro",
    "su",
    "ta",
    "ve",
    "zo",
)
NUM_NAMES = len(SYLLABLES) ** 3  # of people; more documents than that cannot be made


@dataclass(frozen=True)
class Question:
    """A question, its answer, and its source: the script of a database, or documents.

    sql: the statement that gives the answer.
    """

    text: str
    answer: str
    kind: str
    script: str = ""
    documents: tuple[str, ...] = ()
    sql: str = ""


def question_of(seed: int, kinds: tuple[str, ...], size: int) -> Question:
    """The question of a seed. size: the largest number, and the number of rows or documents."""
    draw = random.Random(seed)
    kind = draw.choice(kinds)
    return {"arithmetic": _arithmetic, "sql": _sql, "search": _search}[kind](draw, size)


def _arithmetic(draw: random.Random, size: int) -> Question:
    a, b, c = (draw.randint(2, size) for _ in range(3))
    text, value = draw.choice(
        ((f"({a}+{b})*{c}", (a + b) * c), (f"{a}*{b}-{c}", a * b - c), (f"{a}*{b}+{c}", a * b + c))
    )
    return Question(f"What is {text}?", str(value), "arithmetic")


def _sql(draw: random.Random, size: int) -> Question:
    rows = [
        (place, draw.choice(CITIES), draw.choice(GOODS), draw.randint(1, size))
        for place in range(1, size + 1)
    ]
    values = ",".join(f"({n},'{city}','{good}',{count})" for n, city, good, count in rows)
    script = (
        "CREATE TABLE orders (id INTEGER, city TEXT, good TEXT, count INTEGER);"
        f"INSERT INTO orders VALUES {values};"
    )
    _, city, good, _ = draw.choice(rows)
    sql = f"SELECT SUM(count) FROM orders WHERE good = '{good}'"
    if draw.random() < 0.5:
        asked = f"How many {good} were ordered in all"
        total = sum(count for _, _, theirs, count in rows if theirs == good)
    else:
        asked = f"How many {good} were ordered to {city}"
        total = sum(count for _, where, theirs, count in rows if (where, theirs) == (city, good))
        sql += f" AND city = '{city}'"
    text = f"A table orders has the columns id, city, good and count. {asked} (the sum of count)?"
    return Question(text, str(total), "sql", script=script, sql=sql)


def _search(draw: random.Random, size: int) -> Question:
    names = set[str]()
    while len(names) < size:
        names.add("".join(draw.choices(SYLLABLES, k=3)).capitalize())
    people = [(name, draw.choice(TRADES), draw.choice(CITIES), draw.randint(1200, 1899))
              for name in sorted(names)]  # fmt: skip
    documents = tuple(
        f"{name} was a {trade} in {city}, born in {year}." for name, trade, city, year in people
    )
    name, trade, city, year = draw.choice(people)
    asked, answer = draw.choice(
        ((f"In what year was {name} born?", str(year)), (f"In what city did {name} live?", city),
         (f"What trade had {name}?", trade))
    )  # fmt: skip
    return Question(f"There is a collection of documents. {asked}", answer, "search",
                    documents=documents)  # fmt: skip
