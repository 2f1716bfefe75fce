"""A question about a database, answered by a query; intermediate queries are run and shown.

The policy thinks in `<think>`, and may write a query in `<intermediate_sql>`, at whose end it
stops: the query is run, its result is appended in `<result>` (the error, or the columns' names and
a few rows), and the policy continues. The query in `<final_sql>` is the answer.

    <think>Which years are there? <intermediate_sql>SELECT DISTINCT year FROM t</intermediate_sql>
    <result>
    year
    1990
    </result>
    Only one.</think><final_sql>SELECT COUNT(*) FROM t</final_sql>

The reward is 1 where the answer's rows are those of the gold query. Measures of the last action:
format, exact_match and execution, each 0 or 1.
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from strop.environments.base import Environment, Observation, check_number
from strop.environments.generated_questions import question_of
from strop.environments.row_files import RowFiles
from strop.environments.tool_box import Database
from strop.environments.tools import ToolError
from strop.support.errors import UserError

# The last token of an action may hold more than the end of the tag, a line break for example.
QUERY = re.compile(
    r"<intermediate_sql>((?:(?!<intermediate_sql>).)*)</intermediate_sql>\s*\Z", re.S
)
FINAL = re.compile(r"<final_sql>((?:(?!<final_sql>).)*)</final_sql>\s*\Z", re.S)
TAG = re.compile(r"<(/?)(think|intermediate_sql|result|final_sql)>")
QUOTED = re.compile(r"""('[^']*'|"[^"]*"|`[^`]*`)""")
ORDERED = re.compile(r"\border\s+by\b", re.I)
MOST_COMPARED = 100_000  # rows of two queries that are compared; a query with more is wrong
MOST_CHARACTERS = 2000  # of a result that is shown
SIZE = 30  # rows of a generated database
NOTHING = {"format": 0.0, "exact_match": 0.0, "execution": 0.0}
RULES = (
    "Think in <think> and </think>. There you may try queries, {most} at most: write "
    "<intermediate_sql>SELECT ...</intermediate_sql> and read its <result>. Then answer by one "
    "query, <final_sql>SELECT ...</final_sql>."
)


class Question(NamedTuple):
    """A question, its gold query, and its database: a file, or the script that makes it."""

    question: str
    sql: str
    database: str = ""
    script: str = ""


class TextToSql(Environment):
    """Options: questions (a JSON Lines file of rows with question, sql, and either database, a
    sqlite file beside it, or script; empty: generated ones), validation and heldout (files for
    these splits), max_executions (queries on the way), most_rows (of a result that are shown),
    call_seconds (that a query may take), max_tokens (of an action).
    """

    stop_strings: ClassVar[tuple[str, ...]] = ("</intermediate_sql>", "</final_sql>")
    reward_range = (0.0, 1.0)

    def __init__(
        self, questions: str = "", validation: str = "", max_executions: int = 10,
        most_rows: int = 3, call_seconds: float = 10.0, max_tokens: int = 512, heldout: str = "",
    ) -> None:  # fmt: skip
        check_number("text_to_sql: max_executions", max_executions, 0)
        check_number("text_to_sql: most_rows", most_rows, 1)
        check_number("text_to_sql: max_tokens", max_tokens, 1)
        check_number("text_to_sql: call_seconds", call_seconds, 0.001, whole=False)
        if not questions and (validation or heldout):
            raise UserError("text_to_sql: validation and heldout go with questions=FILE")
        self.files = RowFiles("text_to_sql", "the questions", _row, questions, validation,
                              heldout) if questions else None  # fmt: skip
        self.max_executions, self.most_rows = max_executions, most_rows
        self.call_seconds, self.max_tokens = float(call_seconds), max_tokens
        self.max_turns = max_executions + 1
        self.asked = Question("", "")
        self.database: Database | None = None
        self.written, self.executed = "", 0

    def reset(self, seed: int) -> Observation:
        """Open the database of a seed's question; shows its tables and the question."""
        self.close()
        self.written, self.executed = "", 0
        if self.files is not None:
            self.asked = self.files.row(seed)
        else:
            made = question_of(seed, ("sql",), SIZE)
            self.asked = Question(made.text, made.sql, script=made.script)
        self.database = Database(self.asked.database, self.asked.script, self.most_rows)
        _, tables = self._rows("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        shown = "\n".join(f"{sql};" for (sql,) in tables)
        rules = RULES.format(most=self.max_executions)
        return Observation(f"{shown}\n\n{self.asked.question}\n{rules}\n")

    def step(self, action: str) -> Observation:
        """Run the query at the end of an action, or judge the answer."""
        self.written += action
        query = QUERY.search(action)
        if query is None or self.executed == self.max_executions:
            measures = self._measures()
            reward = measures["execution"]
            return Observation("", reward, done=True, valid=query is None, measures=measures)
        self.executed += 1
        assert self.database is not None
        try:
            result, valid = self.database.query(query.group(1), self.call_seconds), True
        except ToolError as error:
            result, valid = f"error: {error}", False
        text = f"\n<result>\n{result[:MOST_CHARACTERS]}\n</result>\n"
        return Observation(text, valid=valid, measures=NOTHING)

    def num_episodes(self) -> Mapping[str, int] | None:
        """The rows of each split's file; any number where questions are generated."""
        return self.files.num_episodes() if self.files is not None else None

    def columns(self) -> Mapping[str, Any]:
        """The gold query."""
        return {"answer": self.asked.sql}

    def close(self) -> None:
        """Close the episode's database."""
        if self.database is not None:
            self.database.close()
        self.database = None

    def _measures(self) -> dict[str, float]:
        final = FINAL.search(self.written)
        sql = final.group(1) if final else ""
        return {
            "format": float(is_well_formed(self.written)),
            "exact_match": float(bool(sql) and normalised(sql) == normalised(self.asked.sql)),
            "execution": float(bool(sql) and self._gives_the_same(sql)),
        }

    def _gives_the_same(self, sql: str) -> bool:
        """Whether a query gives the rows of the gold query, in its order if it has ORDER BY."""
        try:
            _, wanted = self._rows(self.asked.sql)
        except ToolError as error:
            raise UserError(
                f"text_to_sql: the gold query {self.asked.sql!r} fails: {error}"
            ) from error
        if len(wanted) > MOST_COMPARED:
            raise UserError(
                f"text_to_sql: the gold query {self.asked.sql!r} has over {MOST_COMPARED} rows"
            )
        try:
            _, found = self._rows(sql, len(wanted) + 1)  # one more is enough to be wrong
        except ToolError:
            return False
        same_order = bool(ORDERED.search(self.asked.sql))
        return found == wanted if same_order else Counter(found) == Counter(wanted)

    def _rows(
        self, sql: str, most: int = MOST_COMPARED + 1
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        assert self.database is not None
        return self.database.rows(sql, self.call_seconds, most)


def is_well_formed(text: str) -> bool:
    """Whether thoughts come first, every tag is closed, one final query ends the text, and the
    policy wrote no result itself.
    """
    opened: list[str] = []
    for closes, name in TAG.findall(text):
        if name == "result" or (not closes and name in opened):
            return False
        if not closes:
            opened.append(name)
        elif not opened or opened.pop() != name:
            return False
    ends = text.count("<final_sql>") == 1 and FINAL.search(text) is not None
    return ends and not opened and text.lstrip().startswith("<think>")


def normalised(sql: str) -> str:
    """A query in lower case outside quotes, with single spaces, without the last semicolon."""
    pieces = QUOTED.split(" ".join(sql.split()).rstrip("; "))
    return "".join(piece if n % 2 else piece.lower() for n, piece in enumerate(pieces))


def _row(row: Any, place: str, file: Path) -> Question:
    given = row if isinstance(row, dict) else {}
    texts = {name: given.get(name) or "" for name in Question._fields}
    whole = all(isinstance(text, str) for text in texts.values())
    if not whole or not texts["question"] or not texts["sql"]:
        raise UserError(f'{place} must have "question" and "sql" (texts)')
    if bool(texts["database"]) == bool(texts["script"]):
        raise UserError(f'{place} must have either "database" (a sqlite file) or "script" (SQL)')
    if texts["database"]:
        texts["database"] = str(file.parent / texts["database"])
        if not Path(texts["database"]).is_file():
            raise UserError(f"{place} names {texts['database']}, and there is no such file")
    return Question(**texts)
