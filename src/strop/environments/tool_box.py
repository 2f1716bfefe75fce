"""Tools that come with strop: a calculator, Python, read-only SQL and search in a corpus."""

import itertools
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from strop.environments.countdown import evaluate
from strop.environments.tools import Tool, ToolError, ToolsUnavailable, ToolTimeout, tool_of
from strop.sandbox.run import Limits, NotRun, run
from strop.support.errors import UserError, needs_extra

# What an SQL statement may do in sqlite; the authorizer refuses everything else.
ALLOWED = frozenset(
    (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
)
INSTRUCTIONS = 1000  # of sqlite between two checks of the time limit
MOST_VALUE_BYTES = 1 << 20  # of a text or blob that a statement makes
MOST_COLUMNS = 200  # of a result: a short statement can double its columns again and again
MOST_RESULT_BYTES = 1 << 26  # of all texts and blobs of a result


def calculator(expression: str) -> str:
    """Calculates an expression of whole numbers exactly.

    Args:
        expression: numbers, brackets and + - * /, such as (12+5)*34
    """
    value = evaluate(re.sub(r"\s+", " ", expression))
    if value is None:
        raise ToolError("this is no expression of numbers, brackets and + - * / with a value")
    return str(value)


PYTHON_LIMITS = Limits()


def python_tool(
    limits: Limits = PYTHON_LIMITS, isolate: bool = True, packages: bool = False
) -> Tool:
    """The tool `python`, whose code runs in the sandbox, each time in a new process.

    isolate: without network and files; packages: the packages that are installed for this
    interpreter can be imported.
    """

    def python(code: str) -> str:
        """Runs a Python program and gives what it prints. Nothing is kept between two calls.

        Args:
            code: the program; print what you want to know
        """
        raise NotImplementedError("the schema is read of it")

    def call(seconds: float, /, code: str) -> str:
        own = replace(limits, wall_seconds=min(limits.wall_seconds, seconds))
        try:
            ran = run(code, limits=own, isolate=isolate, packages=packages)
        except NotRun as error:
            raise ToolsUnavailable(str(error)) from error
        if ran.how.startswith("over"):
            raise ToolTimeout(f"the program took {ran.how}")
        if not ran.passed:
            lines = ran.errors.strip().splitlines()
            raise ToolError(ran.how or (lines[-1] if lines else "the program failed"))
        return ran.output.strip() or "(nothing was printed)"

    return Tool(tool_of(python).schema, call, has_limit=True)


class Database:
    """A sqlite database that can only be read: the tool `sql`.

    file: a database; without one, `script` makes it in memory. most_rows: the largest number of
    rows that a statement shows; a last line says that there are more.
    """

    def __init__(self, file: str = "", script: str = "", most_rows: int = 50) -> None:
        self.most_rows = most_rows
        if file and not Path(file).is_file():
            raise UserError(f"tools: there is no database {file}")
        where = f"{Path(file).resolve().as_uri()}?mode=ro" if file else ":memory:"
        # it may be closed in another thread than the one that queries it
        self.connection = sqlite3.connect(where, uri=bool(file), check_same_thread=False)
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # a script writes no other file
        try:
            self.connection.executescript(script)
        except sqlite3.Error as error:
            self.connection.close()
            raise UserError(
                f"tools: the script of a database fails: {error}; it begins with {script[:80]!r}"
            ) from error
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
        self.connection.set_authorizer(_authorize)

    def tool(self) -> Tool:
        """The tool `sql`."""
        return sql_tool(lambda: self)

    def query(self, statement: str, seconds: float) -> str:
        """The rows of a statement as lines, after a line with the columns' names."""
        names, rows = self.rows(statement, seconds, self.most_rows + 1)
        lines = ["|".join(names), *("|".join(map(str, row)) for row in rows[: self.most_rows])]
        if len(rows) > self.most_rows:
            lines.append(f"(more than {self.most_rows} rows)")
        return "\n".join(lines)

    def rows(
        self, statement: str, seconds: float, most: int
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Names of the columns of a statement, and its first rows. Raises ToolError."""
        deadline = time.monotonic() + seconds
        self.connection.set_progress_handler(lambda: time.monotonic() > deadline, INSTRUCTIONS)
        found, size = list[tuple[Any, ...]](), 0
        try:
            self.connection.execute("SELECT 1 FROM sqlite_master LIMIT 0")  # tables may be wider
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, MOST_COLUMNS)
            cursor = self.connection.execute(statement)
            for row in itertools.islice(cursor, most):
                found.append(row)
                size += sum(len(value) for value in row if isinstance(value, str | bytes))
                if size > MOST_RESULT_BYTES:
                    raise ToolError(f"the result has over {MOST_RESULT_BYTES} bytes")
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise ToolTimeout(f"the statement took over {seconds:g} s") from error
            raise ToolError(str(error)) from error
        except sqlite3.Error as error:
            raise ToolError(str(error)) from error
        finally:
            self.connection.set_progress_handler(None, 0)
        return [each[0] for each in cursor.description or ()], found

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def sql_tool(database: Callable[[], Database]) -> Tool:
    """The tool `sql` over the database that `database` returns at each call."""

    def sql(statement: str) -> str:
        """Reads a SQLite database by one SELECT statement; its rows come as lines.

        Args:
            statement: the SELECT statement
        """
        raise NotImplementedError("the schema is read of it")

    def call(seconds: float, /, statement: str) -> str:
        return database().query(statement, seconds)

    return Tool(tool_of(sql).schema, call, has_limit=True)


def _authorize(action: int, first: str | None, second: str | None, *place: Any) -> int:
    if action == sqlite3.SQLITE_FUNCTION and second in ("load_extension", "writefile", "readfile"):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY


class Corpus:
    """Documents searched by BM25: the tool `search`. Raises UserError without bm25s."""

    def __init__(self, documents: Sequence[str], most: int = 3) -> None:
        with needs_extra("search in a corpus needs the package bm25s", "search"):
            import bm25s
        if not documents:
            raise UserError("tools: a corpus needs at least one document")
        self.documents, self.most = list(documents), min(most, len(documents))
        self._tokens = bm25s.tokenize
        self._index = bm25s.BM25()
        tokens = bm25s.tokenize(self.documents, stopwords=None, show_progress=False)
        self._index.index(tokens, show_progress=False)

    def tool(self) -> Tool:
        """The tool `search`."""
        return search_tool(lambda: self)

    def search(self, query: str) -> str:
        """The best matching documents, a line each. Raises ToolError."""
        found = [self.documents[at] for at in self.places(query)]
        return "\n".join(found) if found else "(no document has these words)"

    def places(self, query: str) -> list[int]:
        """Indices of the best matching documents, the best first. Raises ToolError."""
        tokens = self._tokens([query], stopwords=None, show_progress=False, return_ids=False)
        if not tokens[0]:
            raise ToolError("the query has no words")
        places, scores = self._index.retrieve(tokens, k=self.most, show_progress=False)
        return [int(at) for at, score in zip(places[0], scores[0], strict=True) if score > 0]


def search_tool(corpus: Callable[[], Corpus]) -> Tool:
    """The tool `search` over the corpus that `corpus` returns at each call."""
    return searching(lambda query: corpus().search(query))


def searching(ask: Callable[[str], str]) -> Tool:
    """The tool `search`, where `ask` answers a query."""

    def search(query: str) -> str:
        """Searches the documents for words and gives those that fit best.

        Args:
            query: the words to look for
        """
        return ask(query)

    return tool_of(search)
