"""Questions that are answered with tools: generated ones, or those of a file.

Generated questions are arithmetic (the tool `calculator`), sums over a table (`sql`) and look-ups
in a collection of documents (`search`), by seed. A file has rows with `question` and `answer`, and
its tools are given by name: `calculator`, `python`, `sql` with `database`, `search` with `corpus`,
and all tools of an MCP server, `mcp`.

    Which trade had Bakoro?   ->   search {"query": "Bakoro"}   ->   potter
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from strop.environments.base import check_number
from strop.environments.generated_questions import KINDS, NUM_NAMES, Question, question_of
from strop.environments.mcp_tools import McpTools
from strop.environments.row_files import RowFiles
from strop.environments.tool_box import (
    Corpus,
    Database,
    calculator,
    python_tool,
    search_tool,
    sql_tool,
)
from strop.environments.tool_environment import ToolEnvironment, plain
from strop.environments.tools import STATUSES, Tool
from strop.sandbox.run import check_isolation
from strop.support.errors import UserError, did_you_mean
from strop.support.files import text_of

TOOL_OF_KIND = {"arithmetic": "calculator", "sql": "sql", "search": "search"}
TOOLS = ("calculator", "python", "sql", "search")


class ToolQuestions(ToolEnvironment):
    """Options: kinds (of generated questions: arithmetic, sql, search), size (largest number, rows
    and documents; 30), questions (a JSON Lines file in their place), validation and heldout (files
    for these splits), tools (names), database (a sqlite file), corpus (a text file, a document a
    line), mcp (command of a server), mcp_env (its variables), max_turns, max_tokens, max_calls,
    call_seconds, most_characters, ends_at (statuses of calls that end the episode with tool_error).
    """

    def __init__(
        self,
        kinds: Sequence[str] = ("arithmetic", "sql"),
        size: int = 30,
        questions: str = "",
        validation: str = "",
        tools: Sequence[str] = (),
        database: str = "",
        corpus: str = "",
        mcp: str = "",
        mcp_env: Mapping[str, str] | None = None,
        max_turns: int = 6,
        max_tokens: int = 256,
        max_calls: int = 16,
        call_seconds: float = 10.0,
        most_characters: int = 4000,
        ends_at: Sequence[str] = (),
        heldout: str = "",
    ) -> None:
        self.kinds = _names("kinds", kinds, KINDS)
        tools = _names("tools", tools, TOOLS)
        self.ends_at = _names("ends_at", ends_at, STATUSES)
        searched, most = (
            (" with the kind search", NUM_NAMES) if "search" in self.kinds else ("", 10**6)
        )
        check_number(f"tool_questions: size{searched}", size, 5, most)
        counts = {"max_turns": max_turns, "max_tokens": max_tokens, "max_calls": max_calls,
                  "most_characters": most_characters}  # fmt: skip
        for name, value in counts.items():
            check_number(f"tool_questions: {name}", value, 1)
        check_number("tool_questions: call_seconds", call_seconds, 0.001, whole=False)
        for pair in ({"database": database, "corpus": corpus},
                     {"validation": validation, "heldout": heldout}):  # fmt: skip
            if not questions and any(pair.values()):
                raise UserError(f"tool_questions: {' and '.join(pair)} go with questions=FILE")
        self.files = RowFiles("tool_questions", "the questions", _row, questions, validation,
                              heldout) if questions else None  # fmt: skip
        self.size = size
        self.max_turns, self.max_tokens, self.max_calls = max_turns, max_tokens, max_calls
        self.call_seconds, self.most_characters = float(call_seconds), most_characters
        self.asked = Question("", "", "")
        self.server = McpTools(mcp, mcp_env) if mcp else None
        generated = () if questions else tuple(TOOL_OF_KIND[kind] for kind in self.kinds)
        self.names = tuple(dict.fromkeys((*generated, *tools)))
        if questions and not self.names and self.server is None:
            raise UserError(
                f"tool_questions: name the tools of {questions}: tools=[...] or mcp=..."
            )
        if "python" in self.names:
            check_isolation()
        if database:
            Database(database).close()  # so that a missing one is found before the first episode
        self.database_file = database
        self.database: Database | None = None
        self.corpus = corpus_of(str(Path(corpus).resolve())) if corpus else None
        for name, there, option in (("sql", database, "database"), ("search", corpus, "corpus")):
            if questions and (name in self.names) != bool(there):
                raise UserError(f"tool_questions: the tool {name} and {option}=FILE go together")
        if "search" in self.names and not corpus:
            Corpus(["so that a missing package is found before the first episode"])

    def tools(self) -> Sequence[Tool | Any]:
        """The tools by their names, and those of the server."""
        made: Mapping[str, Callable[[], Any]] = {
            "calculator": lambda: calculator,
            "python": python_tool,
            "sql": lambda: sql_tool(self._open_database),
            "search": lambda: search_tool(self._open_corpus),
        }
        return [*(made[name]() for name in self.names), *(self.server.tools if self.server else ())]

    def question(self, seed: int) -> str:
        """The question of the seed."""
        self.close()
        if self.files is not None:
            self.asked = self.files.row(seed)
            return f"{self.asked.text}\n"
        self.asked = question_of(seed, self.kinds, self.size)
        return f"{self.asked.text} Use a tool, then answer with the value alone.\n"

    def judge(self, answer: str) -> float:
        """1 for the right answer, in any case of its letters."""
        return float(plain(answer) == plain(self.asked.answer))

    def num_episodes(self) -> Mapping[str, int] | None:
        """The rows of each split's file; any number where questions are generated."""
        return self.files.num_episodes() if self.files is not None else None

    def columns(self) -> Mapping[str, Any]:
        """The answer and the kind of the question."""
        return {"answer": self.asked.answer, "kind": self.asked.kind}

    def close(self) -> None:
        """Close the episode's own resources: the server, the database and a generated corpus."""
        if self.server is not None:
            self.server.end()
        if self.database is not None:
            self.database.close()
        self.database = None
        if self.files is None:
            self.corpus = None

    def _open_database(self) -> Database:
        if self.database is None:
            script = self.asked.script or "CREATE TABLE orders (id, city, good, count);"
            self.database = Database(self.database_file, "" if self.database_file else script)
        return self.database

    def _open_corpus(self) -> Corpus:
        if self.corpus is None:
            self.corpus = Corpus(self.asked.documents or ("(the collection is empty)",))
        return self.corpus


def _names(option: str, given: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names of an option, which may be one without a list. Raises UserError."""
    found = (given,) if isinstance(given, str) else tuple(given)
    for name in found:
        if name not in known:
            raise UserError(
                f"tool_questions: {option} has {name!r}{did_you_mean(str(name), known)}; there are "
                f"{', '.join(known)}"
            )
    if option == "kinds" and not found:
        raise UserError(f"tool_questions: kinds needs one of {', '.join(known)}")
    return found


@cache
def corpus_of(path: str) -> Corpus:
    """The non-empty lines of a file, indexed once for all episodes. Raises UserError."""
    lines = text_of(Path(path), "the corpus").split("\n")
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise UserError(f"tool_questions: the corpus {path} is empty")
    return Corpus(found)


def _row(row: Any, place: str, file: Path) -> Question:
    question = row.get("question") if isinstance(row, dict) else None
    if not isinstance(question, str) or not question.strip() or row.get("answer") is None:
        raise UserError(f'{place} must have "question" (a text) and "answer"')
    return Question(question.strip(), str(row["answer"]), "file")
