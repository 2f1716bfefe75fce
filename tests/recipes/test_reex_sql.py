"""Queries that run during an episode: the environment by hand, the reward, a run."""

import json
import sqlite3

import pyarrow.parquet as pq
import pytest
import torch
from fakes.services import FakeLog
from scripted_model import save_scripted

from strop.environments.base import EnvironmentSource
from strop.environments.built_in.text_to_sql import NOTHING, is_well_formed, normalised
from strop.parts.reward.weigh_measures import WeighMeasures
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes.grpo import grpo
from strop.recipes.reex_sql import reex_sql
from strop.support.errors import UserError

SCRIPT = "CREATE TABLE t (name TEXT, n INTEGER);" + "".join(
    f"INSERT INTO t VALUES ('{name}', {n});" for n, name in enumerate("abcde")
)
GOLD = "SELECT name FROM t WHERE n < 2"
TRY = "<think>x<intermediate_sql>{}</intermediate_sql>"
ANSWER = "</think><final_sql>{}</final_sql>"


def rows_file(folder, **row):
    row = {"question": "Which names?", "sql": GOLD, "script": SCRIPT} | row
    file = folder / "rows.jsonl"
    file.write_text(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n")
    return str(file)


def started(folder, gold=GOLD, **options):
    made = EnvironmentSource("text_to_sql", {"questions": rows_file(folder, sql=gold)} | options)
    environment = made.make()
    return environment, environment.reset(0)


def judged(folder, final, gold=GOLD):
    environment, _ = started(folder, gold)
    answer = environment.step("<think>x" + ANSWER.format(final))
    environment.close()
    assert answer.done
    assert answer.reward == answer.measures["execution"]
    return answer.measures["exact_match"], answer.measures["execution"]


def paid(algorithm, *measures):
    """The rewards of rollouts of one turn each."""
    (pay,) = [use.part for use in algorithm.reward if isinstance(use.part, WeighMeasures)]
    log = FakeLog()
    log.log_rollouts("turns", {uid: [{"measures": each}] for uid, each in enumerate(measures)})
    uids = torch.arange(len(measures))
    return pay(torch.zeros(len(measures)), uids, log)


def test_worked_example():
    # 2 * 1 + 1 * 0 + 3 * 1 + 1 * 1 + 2 * 0.5
    given = {"format": 1.0, "exact_match": 0.0, "execution": 1.0}
    found = paid(reex_sql(entities=1, exploration=2), given | {"entities": 1.0, "exploration": 0.5})
    assert found.value.tolist() == [7.0]
    # what nobody measures stays out
    found = paid(reex_sql(), given, {"format": 1.0, "exact_match": 1.0, "execution": 0.0})
    assert found.value.tolist() == [5.0, 3.0]
    assert found.metrics == {
        "measures/format": 1.0, "measures/exact_match": 0.5, "measures/execution": 0.5,
    }  # fmt: skip


def test_the_last_measures_of_a_rollout_count_and_a_rollout_without_has_none():
    log = FakeLog()
    turns = [{"measures": {"execution": 0.0}}, {"measures": {"execution": 1.0}}, {}]
    log.log_rollouts("turns", {4: turns})
    found = WeighMeasures(("execution",), (3.0,))(torch.ones(2), torch.tensor([4, 5]), log)
    assert found.value.tolist() == [3.0, 0.0]


def test_a_measure_that_there_is_not_is_named():
    with pytest.raises(UserError, match="does not measure entities; it measures execution, format"):
        paid(reex_sql(exact_match=0, entities=1), {"format": 1.0, "execution": 1.0})
    with pytest.raises(UserError, match="weights must be numbers"):
        WeighMeasures(("a",), (float("nan"),))
    unequal = WeighMeasures(("a",), (1.0, 2.0))  # options are set one after another
    with pytest.raises(UserError, match="1 names and 2 weights: give each its own"):
        unequal(torch.zeros(0), torch.zeros(0), FakeLog())


def test_a_query_is_run_and_its_first_rows_are_shown(tmp_path):
    environment, first = started(tmp_path)
    assert first.text.startswith("CREATE TABLE t (name TEXT, n INTEGER);\n\nWhich names?\n")
    shown = environment.step(TRY.format("SELECT * FROM t"))
    assert shown.text == "\n<result>\nname|n\na|0\nb|1\nc|2\n(more than 3 rows)\n</result>\n"
    assert not shown.done
    failed = environment.step(TRY.format("DELETE FROM t") + "\n")  # of the last token
    assert failed.text == "\n<result>\nerror: not authorized\n</result>\n"
    assert not failed.valid
    last = environment.step(ANSWER.format(GOLD))
    # <think> is opened twice, so the form is wrong
    assert last.measures == {"format": 0.0, "exact_match": 1.0, "execution": 1.0}
    assert (last.reward, last.done) == (1.0, True)
    environment.close()


def test_a_query_too_many_is_an_answer_without_one(tmp_path):
    environment, _ = started(tmp_path, max_executions=1)
    assert environment.max_turns == 2
    assert not environment.step(TRY.format("SELECT 1")).done
    last = environment.step("<intermediate_sql>SELECT 2</intermediate_sql>")
    assert last.done
    assert not last.valid
    assert set(last.measures.values()) == {0.0}
    environment.close()


@pytest.mark.parametrize(
    ("final", "gold", "found"),
    [
        (" select  name FROM t where n < 2; ", GOLD, (1, 1)),
        ("SELECT name FROM t WHERE n IN (1, 0)", GOLD, (0, 1)),
        ("SELECT name FROM t ORDER BY n DESC LIMIT 5", "SELECT name FROM t", (0, 1)),
        ("SELECT name FROM t ORDER BY n DESC", "SELECT name FROM t ORDER BY n", (0, 0)),
        ("SELECT 'A'", "SELECT 'a'", (0, 0)),
        ("SELECT name FROM t", GOLD, (0, 0)),
        ("SELECT missing", GOLD, (0, 0)),
        ("", GOLD, (0, 0)),
    ],
)
def test_an_answer_has_the_rows_of_the_gold_query(tmp_path, final, gold, found):
    assert judged(tmp_path, final, gold) == found


def test_of_an_answer_one_row_more_than_the_gold_query_has_is_read(tmp_path, monkeypatch):
    environment, _ = started(tmp_path)
    read, limits = environment.database.rows, []
    monkeypatch.setattr(
        environment.database, "rows", lambda *given: limits.append(given[2]) or read(*given)
    )
    assert environment.step(ANSWER.format("SELECT name FROM t")).reward == 0
    assert limits == [100_001, 3]
    environment.close()


def test_a_gold_query_that_fails_is_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match="the gold query 'SELECT missing' fails: no such column"):
        judged(tmp_path, "SELECT 1", "SELECT missing")


def test_the_form_of_an_answer():
    good = "<think>a<intermediate_sql>b</intermediate_sql>c</think><final_sql>d</final_sql>"
    assert is_well_formed(f" {good}\n")
    assert is_well_formed(good.replace("c</think>", "</think><think>c</think>"))
    for bad in (
        good.replace("<think>", ""), good.replace("</think>", ""), good + "!", good + good,
        good.replace("c", "<result>c</result>"), "x" + good, good.replace("a", "<think>"),
        "<final_sql>d</final_sql>", "",
    ):  # fmt: skip
        assert not is_well_formed(bad)
    assert normalised("SELECT  'A' ;") == "select 'A'"


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({"sql": None}, 'must have "question" and "sql"'),
        ({"question": 3}, 'must have "question" and "sql"'),
        ({"script": None}, 'must have either "database"'),
        ({"database": "a.db"}, 'must have either "database"'),
        ({"script": None, "database": "a.db"}, "a.db, and there is no such file"),
    ],
)
def test_rows_that_are_none_are_named(tmp_path, row, wrong):
    environment = EnvironmentSource("text_to_sql", {"questions": rows_file(tmp_path, **row)}).make()
    with pytest.raises(UserError, match=f"line 1.*{wrong}"):
        environment.reset(0)


def test_texts_that_end_an_action_are_those_of_any_environment():
    stops = ("</intermediate_sql>", "</final_sql>")
    assert EnvironmentSource("text_to_sql").stop_strings == stops
    assert EnvironmentSource("corridor + text_to_sql").stop_strings == stops
    assert EnvironmentSource("corridor").stop_strings == ()


def test_generated_questions_have_a_gold_query():
    environment = EnvironmentSource("text_to_sql").make()
    for seed in range(4):
        assert "CREATE TABLE orders" in environment.reset(seed).text
        final = f"<think></think><final_sql>{environment.columns()['answer']}</final_sql>"
        assert environment.step(final).measures == dict.fromkeys(NOTHING, 1.0)
    environment.close()


def test_composes():
    algorithm, parent = reex_sql(), grpo(num_rollouts=8)
    assert algorithm.rollout.part == PlayTurns()
    assert algorithm.terms == parent.terms
    assert algorithm.advantage == parent.advantage
    assert algorithm.reward[-1].part.weights == (2.0, 1.0, 3.0)


def test_a_run_stops_at_a_query_and_learns_from_its_own_tokens_alone(tmp_path, strop):
    """Answers of one token each: what is inserted between them counts in no length."""
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.executescript(SCRIPT)
    connection.close()
    rows = rows_file(tmp_path, script=None, database="a.db")
    query, final = TRY.format("SELECT n FROM t"), ANSWER.format(GOLD)
    model = save_scripted(tmp_path / "model", {query: 0.6, final: 0.4})
    result = strop(
        "train", "reex_sql(format=0)", "--model", model, "data.task=text_to_sql",
        f"data.task_config={{'questions': '{rows}', 'max_tokens': 8}}", "training.steps=1",
        "evaluation.every=0",
        "sampling.num_prompts=2", "training.rollouts_every=1", "--out", tmp_path / "run", "--quiet",
    )  # fmt: skip
    assert result.code == 0, result.err
    (line,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    table = pq.read_table(next((tmp_path / "run").glob("rollouts/**/*.parquet"))).to_pylist()
    turns = [json.loads(row["turns"]) for row in table]
    assert len(turns) == 16
    assert max(map(len, turns)) > 2
    assert (
        line["completions/mean_length"] == sum(map(len, turns)) / 16 == line["episode/turns_mean"]
    )
    for row, said_in in zip(table, turns, strict=True):
        assert [turn["action"] for turn in said_in] == [query] * (len(said_in) - 1) + [final]
        assert all("<result>\nn\n0\n" in turn["observation"] for turn in said_in[1:])
        assert row["reward"] == 4.0  # all alike: such a model has no finite gradient
    assert line["measures/execution"] == 1.0
    measured = [each[-1]["measures"]["format"] for each in turns]
    assert measured == [float(len(each) == 2) for each in turns]  # thoughts are opened once
