"""Tools: schemas, checked calls, limits; the shipped ones; an environment of tools."""

import asyncio
import sqlite3
import time

import pytest

from strop.data.tool_calls import ParsedCall, described
from strop.environments import Exit, Tool, ToolEnvironment, ToolError
from strop.environments.built_in.tool_questions import ToolQuestions
from strop.environments.generated_questions import question_of
from strop.environments.tool_box import INSTRUCTIONS, Corpus, Database, calculator, python_tool
from strop.environments.tools import answer_call, tools_of
from strop.support.errors import UserError


def add(a: int, b: int, note: str | None = None) -> int:
    """Adds two numbers.

    Args:
        a: the first
        b: the second
        note: of no effect
    """
    return a + b


async def later(seconds: float) -> str:
    """Waits.

    Args:
        seconds: how long
    """
    await asyncio.sleep(seconds)
    return "done"


def broken(why: str) -> str:
    """Fails.

    Args:
        why: the reason
    """
    raise ToolError(why) if why != "bug" else KeyError(why)


def call(tools, name, seconds=5.0, most=100, **arguments):
    answer = answer_call(ParsedCall(name, arguments), tools_of(tools), seconds, most)
    return answer.status, answer.text


def test_the_schema_is_of_hints_and_docstring():
    (tool,) = tools_of([add])
    assert tool.schema["function"] == {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "the first"},
                "b": {"type": "integer", "description": "the second"},
                "note": {"type": ["string", "null"], "description": "of no effect"},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    }
    assert "- add: Adds two numbers." in described((tool.schema,))
    with pytest.raises(UserError, match="two tools are called add"):
        tools_of([add, add])
    with pytest.raises(UserError, match="the tool <lambda> has no schema"):
        tools_of([lambda x: x])


def test_calls_are_checked_and_made():
    tools = [add, later, broken]
    assert call(tools, "add", a=1, b=2, note=None) == ("ok", "3")
    assert call(tools, "later", seconds=5.0, most=100) == (
        "wrong_arguments", "error: wrong_arguments: 'seconds' is a required property",
    )  # fmt: skip
    assert (
        call(tools, "add", a=1, b="2")[1]
        == "error: wrong_arguments: b: '2' is not of type 'integer'"
    )
    assert call(tools, "add", a=1, b=2, c=3)[0] == "wrong_arguments"
    assert call(tools, "sub", a=1)[0] == "unknown_tool"
    assert call(tools, "broken", why="no") == ("failed", "error: no")
    assert call(tools, "broken", why="bug") == ("failed", "error: KeyError: 'bug'")
    answer = answer_call(ParsedCall("add", [1]), tools_of(tools), 1.0, 100)
    assert answer.status == "wrong_arguments"
    bad = answer_call(ParsedCall(problem="invalid_json", detail="why"), tools_of(tools), 1.0, 100)
    assert (bad.status, bad.text) == ("invalid_json", "error: invalid_json: why")


def test_calls_have_limits():
    started = time.monotonic()
    late = answer_call(ParsedCall("later", {"seconds": 60.0}), tools_of([later]), 0.1, 100)
    assert (late.status, late.text) == ("timeout", "error: timeout: it took over 0.1 s")
    assert time.monotonic() - started < 5
    soon = answer_call(ParsedCall("later", {"seconds": 0.0}), tools_of([later]), 5.0, 2)
    assert (soon.status, soon.text) == ("ok", "do\n(2 more characters)")


def test_asynchronous_calls_share_an_event_loop():
    loops = []

    async def looks(wait: float) -> str:
        """Notes its loop.

        Args:
            wait: seconds that it takes
        """
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(wait)
        return "done"

    async def blocks() -> str:
        """Holds up its loop."""
        loops.append(asyncio.get_running_loop())
        time.sleep(3)
        return "done"

    async def leaves() -> str:
        """Ends its thread."""
        raise SystemExit

    tools = [looks, blocks, leaves]
    assert call(tools, "looks", wait=0) == ("ok", "done")
    assert call(tools, "leaves") == ("failed", "error: SystemExit")
    assert call(tools, "looks", wait=60, seconds=0.1)[0] == "timeout"
    assert call(tools, "looks", wait=0) == ("ok", "done")
    assert len(loops) == 3
    assert len(set(loops)) == 1
    assert call(tools, "blocks", seconds=0.1)[0] == "timeout"
    assert call(tools, "looks", wait=0, seconds=1.0) == ("ok", "done")
    assert loops[-1] is not loops[0]


def test_the_calculator_and_python():
    assert call([calculator], "calculator", expression="(12 + 5) * 34") == ("ok", "578")
    for wrong in ("1/0", "1 2+3"):
        assert call([calculator], "calculator", expression=wrong)[0] == "failed"
    tool = python_tool()
    assert call([tool], "python", code="print(2**10)") == ("ok", "1024")
    assert call([tool], "python", code="x = 1") == ("ok", "(nothing was printed)")
    assert call([tool], "python", code="1/0") == (
        "failed",
        "error: ZeroDivisionError: division by zero",
    )
    assert call([tool], "python", code="while True: pass", seconds=0.5)[0] == "timeout"
    assert call([tool], "python", code="print(open('/etc/passwd').read())")[0] == "failed"


def test_sql_reads_and_nothing_else(tmp_path):
    database = Database(script="CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, NULL);")
    tools = [database.tool()]

    def sql(statement, seconds=5.0):
        parsed = ParsedCall("sql", {"statement": statement})
        answer = answer_call(parsed, tools_of(tools), seconds, 1000)
        return answer.status, answer.text

    assert sql("SELECT * FROM t") == ("ok", "a|b\n1|x\n2|None")
    for refused in (
        "INSERT INTO t VALUES (3, 4)", "DELETE FROM t", "UPDATE t SET a = 0", "DROP TABLE t",
        f"ATTACH '{tmp_path}/other.db' AS other", f"VACUUM INTO '{tmp_path}/copy.db'",
        "PRAGMA journal_mode = DELETE", "CREATE TABLE u (a)", "BEGIN",
        "SELECT load_extension('x')",
    ):  # fmt: skip
        assert sql(refused)[0] == "failed", refused
    assert list(tmp_path.iterdir()) == []
    assert sql("SELECT count(*) FROM t")[1].endswith("2")
    endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r{}) SELECT x FROM r"
    assert sql(endless.format("") + " WHERE x < 0", 0.2) == (
        "timeout",
        "error: timeout: the statement took over 0.2 s",
    )
    long = f"SELECT count(*) FROM ({endless.format(f' LIMIT {INSTRUCTIONS}')})"
    assert sql(long) == ("ok", f"count(*)\n{INSTRUCTIONS}")  # which is looked at on its way
    assert sql("SELECT 1; SELECT 2")[0] == "failed"
    assert sql("SELECT randomblob(100000000)")[0] == "failed"
    assert sql(endless.format(" LIMIT 99"))[1].splitlines()[-2:] == ["50", "(more than 50 rows)"]
    database.close()


def test_no_script_of_a_data_row_writes_another_file(tmp_path):
    for script in (
        f"ATTACH '{tmp_path}/other.db' AS other; CREATE TABLE other.t (a);",
        f"CREATE TABLE t (a); VACUUM INTO '{tmp_path}/copy.db';",
    ):
        with pytest.raises(UserError, match="script of a database fails: too many attached"):
            Database(script=script)
    assert list(tmp_path.iterdir()) == []


def test_no_short_statement_fills_the_memory():
    wide = ", ".join(f"c{n}" for n in range(300))
    database = Database(script=f"CREATE TABLE t ({wide}); INSERT INTO t (c7) VALUES (1);")
    assert call([database.tool()], "sql", statement="SELECT c7 FROM t") == ("ok", "c7\n1")
    doubled = "SELECT zeroblob(10) a, zeroblob(10) b"
    for _ in range(9):
        doubled = f"SELECT *, * FROM ({doubled})"
    status, text = call([database.tool()], "sql", statement=doubled)
    assert (status, "too many columns" in text) == ("failed", True)
    large = ", ".join(["zeroblob(1000000)"] * 10)
    long = f"SELECT {large} FROM (VALUES {', '.join(['(1)'] * 9)})"
    status, text = call([database.tool()], "sql", statement=long)
    assert (status, "over 67108864 bytes" in text) == ("failed", True)
    database.close()


def test_a_file_is_opened_to_be_read(tmp_path):
    file = tmp_path / "a.db"
    with sqlite3.connect(file) as made:
        made.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (7);")
    made.close()
    database = Database(str(file))
    assert call([database.tool()], "sql", statement="SELECT a FROM t") == ("ok", "a\n7")
    database.close()
    with pytest.raises(UserError, match="no database"):
        Database(str(tmp_path / "none.db"))
    with pytest.raises(UserError, match=r'script of a database fails: near "TABEL".*CREATE TABEL'):
        Database(script="CREATE TABEL t (a);")


def test_search_finds_words():
    tools = [Corpus(["the cat sat on a mat", "a dog ran", "nothing here"], most=2).tool()]
    assert call(tools, "search", query="Cat?") == ("ok", "the cat sat on a mat")
    assert call(tools, "search", query="zebra") == ("ok", "(no document has these words)")
    assert call(tools, "search", query="?")[0] == "failed"


class Sum(ToolEnvironment):
    max_calls = 2
    ends_at = ("timeout",)

    def tools(self):
        return [add]

    def question(self, seed):
        return f"What is {seed}+1?"

    def judge(self, answer):
        return float(answer == "3")


def test_an_environment_of_tools():
    environment = Sum()
    assert environment.reset(2).text == "What is 2+1?"
    shown = environment.step('call add {"a": 2, "b": 1}')
    assert (shown.text, shown.valid, shown.done) == ("result: 3\n", True, False)
    assert shown.answers[0].message == {"role": "tool", "name": "add", "content": "3"}
    unclear = environment.step("<think>hm</think>")
    assert (unclear.valid, unclear.done) == (False, False)
    two = environment.step('call add {"a": 2}\ncall add {"a": 2, "b": 1}')
    assert [each.status for each in two.answers] == ["wrong_arguments", "over_limit"]
    assert not two.valid
    for text, reward in (("Answer: 3", 1.0), ("so \\boxed{3}", 1.0), ("4", 0.0)):
        environment.reset(2)
        assert environment.step(text).reward == reward
        assert environment.step(text).done
    assert environment.reset(2).answers == ()
    assert environment.step('call add {"a": 2, "b": 1}').answers[0].status == "ok"


def test_a_status_may_end_the_episode():
    class Strict(Sum):
        ends_at = ("unknown_tool",)

    environment = Strict()
    environment.reset(2)
    shown = environment.step("call f")
    assert (shown.done, shown.exit, shown.valid) == (True, Exit.TOOL_ERROR, False)


def test_tools_may_be_made_by_hand():
    schema = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert call([Tool(schema, lambda **given: given)], "f", x=1) == ("ok", '{"x": 1}')


SOLVED = {
    "arithmetic": lambda e: f'call calculator {{"expression": "{e.asked.text[8:-1]}"}}',
    "sql": lambda e: 'call sql {"statement": "SELECT sum(count) FROM orders WHERE '
    + " AND ".join(
        [f"good = '{e.asked.text.split('How many ')[1].split()[0]}'"]
        + ([f"city = '{e.asked.text.split('ordered to ')[1].split()[0]}'"]
           if "ordered to" in e.asked.text else [])
    ) + '"}',
    "search": lambda e: f'call search {{"query": "{e.asked.text[36:]}"}}',
}  # fmt: skip


@pytest.mark.parametrize("kind", SOLVED)
def test_generated_questions_are_answered_by_their_tool(kind):
    environment, again = ToolQuestions(kinds=[kind]), ToolQuestions(kinds=[kind])
    for seed in range(12):
        first = environment.reset(seed)
        assert first == again.reset(seed)
        answer = environment.columns()["answer"]
        assert answer not in first.text or kind == "arithmetic"
        shown = environment.step(SOLVED[kind](environment))
        assert answer in shown.text
        assert environment.step(f"Answer: {answer}").reward == 1.0
        assert environment.step("Answer: none").reward == 0.0
    environment.close()


def test_generated_sql_asks_for_all_orders_or_for_those_of_a_city():
    """What a seed asks stays as it was, or runs of before would have had other tasks."""
    of_a_city, of_all = (question_of(seed, ("sql",), 3) for seed in (0, 1))
    assert "How many jars were ordered to Elmet (" in of_a_city.text
    assert of_a_city.sql.endswith("WHERE good = 'jars' AND city = 'Elmet'")
    assert of_a_city.answer == "2"  # of the 4 jars, 2 went to Ibron
    assert "How many bolts were ordered in all (" in of_all.text
    assert of_all.sql.endswith("WHERE good = 'bolts'")


def test_questions_of_a_file(tmp_path):
    file, corpus = tmp_path / "q.jsonl", tmp_path / "corpus.txt"
    file.write_text(
        '{"question": "Who sat?", "answer": "The cat"}\n\n{"question": "2*3?", "answer": 6}\n'
    )
    corpus.write_text("the cat sat\na dog ran\n")
    options = {"questions": str(file), "tools": ["calculator", "search"], "corpus": str(corpus)}
    made = ToolQuestions(**options)
    assert made.corpus is ToolQuestions(**options).corpus  # indexed once
    assert [made.reset(seed).text for seed in (0, 1, 2)] == ["Who sat?\n", "2*3?\n", "Who sat?\n"]
    assert made.step('call search {"query": "sat"}').text == "result: the cat sat\n"
    assert made.step("the  cat.").reward == 1.0
    assert made.columns() == {"answer": "The cat", "kind": "file"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ["sum"]}, "kinds has 'sum'"),
        ({"kinds": []}, "kinds needs one of"),
        ({"kinds": "sum"}, "kinds has 'sum'"),
        ({"ends_at": ["time-out"]}, r"ends_at has 'time-out' \(did you mean 'timeout'\?\)"),
        ({"tools": ["pyton"]}, "did you mean 'python'"),
        ({"corpus": "x.txt"}, "go with questions=FILE"),
        ({"call_seconds": 0}, "call_seconds must be a number"),
        ({"max_calls": 0}, "max_calls must be a whole number"),
        ({"kinds": ["search"], "size": 3376}, "size with the kind search must be .* 5 to 3375"),
        ({"questions": "none.jsonl"}, "name the tools of none.jsonl"),
        ({"questions": "none.jsonl", "tools": ["search"]}, "search and corpus=FILE go together"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        ToolQuestions(**options)


def test_one_name_stands_for_a_list_of_one():
    made = ToolQuestions(kinds="sql", tools="calculator", ends_at="timeout")
    assert (made.kinds, made.names, made.ends_at) == (
        ("sql",), ("sql", "calculator"), ("timeout",)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "line 1 is not JSON"), ('{"question": ""}', "line 1 must have"), ("\n", "has no rows")],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    file = tmp_path / "q.jsonl"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        ToolQuestions(questions=str(file), tools=["calculator"]).reset(0)
