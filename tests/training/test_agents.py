"""Training of agents that are written for OpenAI's client: data.task=agent:FILE.py:FUNCTION."""

import asyncio
import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from commands import Strop, ended, launch, lives
from imported_agent import once_imported
from models import save_model
from test_examples import blocks, last_metrics, obey, write_files

import strop
from strop import UserError
from strop.engines.asynchronous import AsyncEngine
from strop.environments.agent_process import Outcome, _returned
from strop.environments.agents import Agents
from strop.environments.episodes import CallLimits
from strop.method.services import AgentEnd, ModelCall, Withdrawn
from strop.parts.rollout._agent_calls import AgentCalls
from strop.support.errors import RunStopped
from strop.support.exits import Exit
from strop.training.loading import load_model
from strop.training.parallel.ranks import Ranks
from strop.training.rows import chat_of
from strop.training.services import agents
from strop.training.services.agents import Episode
from strop.training.settings import config
from strop.training.setup import load_prompts, make_world

AGENT = """
import asyncio, os, sys, time
import openai
from openai import AsyncOpenAI, OpenAI


def score(text):
    return float(sum(c.isdigit() for c in text) % 2 == 0)


def once(row, **more):
    said = OpenAI().completions.create(model="policy", prompt=row["prompt"], **more)
    return score(said.choices[0].text)


def responds(row):
    return score(OpenAI().responses.create(model="policy", input=row["prompt"]).output_text)


def twice(row):
    client, prompt = OpenAI(), row["prompt"]
    first = client.completions.create(model="policy", prompt=prompt, max_tokens=3)
    prompt += first.choices[0].text + "1"
    second = client.completions.create(model="policy", prompt=prompt, max_tokens=3)
    return {"first": score(first.choices[0].text), "second": 2 * score(second.choices[0].text)}


def surely(row):
    asked = {"temperature": 0, "logprobs": 0, "max_tokens": 3}
    said = OpenAI().completions.create(model="policy", prompt=row["prompt"], **asked)
    return float(not any(said.choices[0].logprobs.token_logprobs))


async def beside(row):
    client = AsyncOpenAI()
    calls = [client.completions.create(model="policy", prompt=row["prompt"], n=2) for _ in "ab"]
    said = await asyncio.gather(*calls)
    texts = [choice.text for each in said for choice in each.choices]
    return sum(map(score, texts)) / len(texts)


def fails(row):
    uid = int(row["seed"])
    if uid % 8 == 7:
        return 1.0  # without a call
    value = once(row, max_tokens=3)
    if uid % 8 == 1:
        raise ValueError("no answer in it")
    if uid % 8 == 2:
        os._exit(3)
    if uid % 8 == 3:
        time.sleep(600)
    if uid % 8 == 4:
        raise ConnectionError("the shop is closed")
    if uid % 8 == 5:
        return "much"
    if uid % 8 == 6:
        return None
    return 1.0


async def helpers(row):
    async def searches():
        raise ConnectionError("the search is closed")

    async def asks(prompt):
        await AsyncOpenAI().completions.create(model="policy", prompt=prompt, max_tokens=3)

    await asks(row["prompt"])
    if int(row["seed"]) % 2 == 0:
        return 1.0
    async with asyncio.TaskGroup() as group:
        group.create_task(asks(row["prompt"]))
        group.create_task(searches())


def endless(row):
    client = OpenAI(max_retries=0)
    while True:
        client.completions.create(model="policy", prompt=row["prompt"], max_tokens=1)


class Mine:
    pass


def junk(row):
    once(row, max_tokens=3)
    return {0: Mine(), 1: {"reward": None, "other": 2}, 2: {"a": None, "b": 3}, 3: 10**400}[
        int(row["seed"]) % 4
    ]


def gives_up(row):
    try:
        OpenAI(timeout=1.0, max_retries=0).completions.create(model="policy", prompt=row["prompt"])
    except openai.APITimeoutError:
        if int(row["seed"]) % 2:
            raise
    return 1.0


def stubborn(row):
    client = OpenAI(max_retries=0)
    while True:
        try:
            client.completions.create(model="policy", prompt=row["prompt"], max_tokens=1)
        except openai.BadRequestError:
            pass


def grows(row):
    prompt = row["prompt"]
    while True:
        said = OpenAI().completions.create(model="policy", prompt=prompt, max_tokens=2)
        prompt += said.choices[0].text + "1" * 20


def complains(row):
    raise ValueError("x" * 1_000_000)


def waits(row):
    open(f"{os.environ['STROP_TEST']}/{os.getpid()}", "w").close()
    time.sleep(600)
"""
# Its client takes a second to import, and agents of other clients do without it.
BY_MESSAGES = """
import os

import anthropic


def by_messages(row):
    client = anthropic.Anthropic(
        base_url=os.environ["STROP_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
    )
    said = client.messages.create(
        model="policy", max_tokens=99, messages=[{"role": "user", "content": row["prompt"]}]
    )
    return float(sum(c.isdigit() for c in said.content[0].text) % 2 == 0)
"""
SHORT = {"rollout_max_tokens": 6, "sampling_num_prompts": 2, "sampling_num_rollouts": 4,
         "training_steps": 2, "training_lr": 1e-3, "training_rollouts_every": 1,
         "evaluation_every": 0, "progress": False}  # fmt: skip


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "my_agent.py"
    path.write_text(AGENT)
    return path


def numbers(run: Any) -> list[dict[str, Any]]:
    apart = ("perf/", "timing_s/", "turns/", "episode/", "rewards/", "reward_", "data/")
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(apart) and k != "step_time"}
        for line in lines
    ]


def rollouts(run: Any, step: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((run.folder / "rollouts").glob("*.parquet")):
        found += [row for row in pq.read_table(path).to_pylist() if row["step"] == step]
    return found


def test_an_agent_of_one_call_is_the_method_itself(lab: Any, agent: Path, here: Path) -> None:
    given = {"model": str(lab.model), "data": str(lab.data), **SHORT}
    reward = agent.with_name("rewards.py")
    reward.write_text(
        "def even(completions, **columns):\n"
        "    return [float(sum(c.isdigit() for c in text) % 2 == 0) for text in completions]\n"
    )
    plain = strop.train("grpo", reward=f"{reward}:even", **given)
    # of the same label, so that its seeds are the same
    given["rollout"] = "run_agents(max_tokens=6) @ sample_independently"
    other = agent.with_name("other_agent.py")
    other.write_text(BY_MESSAGES)
    for source in (f"{agent}:once", f"{agent}:responds", f"{other}:by_messages"):
        played = strop.train("grpo", data_task=f"agent:{source}", **given)
        # rows that arrive at other times are computed beside others, which rounds differently
        for one, expected in zip(numbers(played), numbers(plain), strict=True):
            assert one == pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)
        said = [[row["completion"] for row in rollouts(run)] for run in (played, plain)]
        assert said[0] == said[1]


def test_an_agents_model_may_write_calls_of_tools_in_any_form() -> None:
    task: Any = SimpleNamespace(agent=True, environment=None)
    for form in ("auto", "glm45"):
        data = config.DataSettings(task="agent:x.py:f", call_form=form)
        assert chat_of(data, task, None).call_form == form


def test_calls_go_on_from_each_other(lab: Any, agent: Path, here: Path) -> None:
    run = strop.train("grpo", model=str(lab.model), task=f"agent:{agent}:twice", **SHORT)
    rows = rollouts(run)
    assert len(rows) == 8
    for row in rows:
        first, second = json.loads(row["turns"])
        assert first["observation"]
        assert second["observation"].endswith("1")
        assert row["reward"] == row["recorded_first"] + row["recorded_second"]
    lines = [json.loads(each) for each in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["turns/clean"] + lines[0]["turns/realign"] > 0.5
    assert lines[0]["episode/turns_mean"] == 2


def test_log_probabilities_are_told_of_the_runs_own_draw(lab: Any, agent: Path, here: Path) -> None:
    for top_k, reward in ((1, 1.0), (2, 0.0)):  # the likeliest of one is certain
        run = strop.train(
            "grpo", model=str(lab.model), task=f"agent:{agent}:surely", rollout_top_k=top_k,
            **{**SHORT, "training_steps": 1},
        )  # fmt: skip
        assert {row["reward"] for row in rollouts(run)} == {reward}


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_several_processes_that_would_play_an_agent_refuse_it(
    max_staleness: int, agent: Path
) -> None:
    """Also where another process collects, and they play its validation."""

    class Second(Ranks):
        number, count = 1, 2

    settings = config.make({
        "recipe": "grpo", "model": {"name": "tiny"}, "data": {"task": f"agent:{agent}:once"},
        "training": {"steps": 2, "max_staleness": max_staleness},
        "algorithm": {"rollout.max_tokens": 6},
    })  # fmt: skip
    loaded, task = load_model(settings), load_prompts(settings.data, settings.reward)
    with pytest.raises(UserError, match="calls the model when it likes, and several processes"):
        make_world(settings, settings.build(), loaded, task, Second())


def test_calls_beside_each_other_have_draws_of_their_own(lab: Any, agent: Path, here: Path) -> None:
    run = strop.train("grpo", model=str(lab.model), task=f"agent:{agent}:beside", **SHORT)
    rows = rollouts(run)
    said = [[turn["action"] for turn in json.loads(row["turns"])] for row in rows]
    assert [len(each) for each in said] == [4] * 8
    assert any(len(set(each)) > 1 for each in said)


def test_every_end_has_a_cause_and_failing_pays_nothing(lab: Any, agent: Path, here: Path) -> None:
    options = {**SHORT, "sampling_num_prompts": 8, "sampling_num_rollouts": 2, "training_steps": 1}
    run = strop.train(
        "grpo", model=str(lab.model), task=f"agent:{agent}:fails", data_train_size=8,
        data_env_timeout_seconds=5.0, **options,
    )  # fmt: skip
    found = {int(row["uid"]): row for row in rollouts(run)}
    assert {uid: (row["exit"], row["scored"]) for uid, row in found.items()} == {
        0: ("done", True), 1: ("exception", True), 2: ("crash", True), 3: ("timeout", True),
        4: ("unreachable", False), 5: ("unreadable", True), 6: ("declared", False),
        7: ("done", True),
    }  # fmt: skip
    assert [found[uid]["reward"] for uid in (0, 1, 2, 3, 5, 7)] == [1, 0, 0, 0, 0, 1]
    assert found[7]["completion"] == ""
    for uid, said in ((1, "ValueError: no answer in it"), (2, "exit code 3"), (3, "over 5 s"),
                      (4, "the shop is closed"), (5, "returned 'much'")):  # fmt: skip
        assert said in found[uid]["exit_why"]
    assert found[6]["exit_why"] == (
        "it ended without a reward (None), which leaves it unscored: a number is a reward, and so "
        "are several by name"
    )


def test_the_first_error_of_helpers_at_once_is_the_agents(
    lab: Any, agent: Path, here: Path
) -> None:
    options = {**SHORT, "sampling_num_rollouts": 2, "training_steps": 1}
    task = f"agent:{agent}:helpers"
    run = strop.train("grpo", model=str(lab.model), task=task, data_train_size=2, **options)
    failed = [row for row in rollouts(run) if row["uid"] == 1]
    assert len(failed) == 2
    for row in failed:
        assert (row["exit"], row["scored"]) == ("unreachable", False)
        assert row["exit_why"].startswith(
            "the agent raised ConnectionError: the search is closed ("
        )


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (AgentEnd(Exit.UNREACHABLE, timed_out=True), Exit.TIMEOUT),  # its client's limit of time
        (AgentEnd(Exit.UNREACHABLE), Exit.UNREACHABLE),  # something beside the call
        (AgentEnd(Exit.EXCEPTION, timed_out=True), Exit.EXCEPTION),
    ],
)
def test_an_agent_that_gave_up_a_call_failed_for_it_only_by_a_limit_of_time(end, expected):
    calls: Any = SimpleNamespace(limit=Exit.TIMEOUT)
    assert AgentCalls.exit_of(calls, end) is expected


TOO_LONG = """import random
from openai import OpenAI


def play(row):
    size = 5000 + random.randrange(1000)
    OpenAI().completions.create(model="policy", prompt="1" * size, max_tokens=12)
"""


def test_agents_whose_calls_never_fit_stop_the_run_and_show_one_traceback(
    lab: Any, here: Path
) -> None:
    Path("long.py").write_text(TOO_LONG)
    words = ["train", "grpo", f"model.name={lab.model}", "data.task=agent:long.py:play",
             "data.train_size=2", "sampling.num_prompts=1", "sampling.num_rollouts=2",
             "training.steps=1", "evaluation.every=0", "rollout.max_tokens=8",
             "--out", "run"]  # fmt: skip
    done = ended(words, here)
    assert done.code == 1
    assert "Token indices sequence length" not in done.err
    trace = f'  File "{here}/long.py", line 7, in play'
    assert done.err.count(trace) == done.err.count("BadRequestError: Error code: 400") == 1
    assert re.search(
        rf"the context of this model is 64 tokens: the prompt has 5\d\d\d \({here}/long.py:7\)",
        " ".join(done.out.split()),
    )
    assert (
        "in the first step the policy sampled no token, so nothing is learned (rollouts ended"
        in (done.err)
    )


def test_an_agent_that_never_ends_is_cut(lab: Any, agent: Path, here: Path) -> None:
    run = strop.train(
        "grpo", model=str(lab.model), task=f"agent:{agent}:endless", rollout_max_turns=3,
        **{**SHORT, "training_steps": 1},
    )  # fmt: skip
    rows = rollouts(run)
    assert {row["exit"] for row in rows} == {"turn_limit"}
    assert {len(json.loads(row["turns"])) for row in rows} == {3}


def test_a_function_is_given_from_python(lab: Any, here: Path) -> None:
    rows = [{"prompt": "1+2="}, {"prompt": "3+4="}]
    short = {**SHORT, "training_steps": 1}
    run = strop.train("grpo", model=str(lab.model), task=once_imported, data=rows, **short)
    exits = [row["exit"] for row in rollouts(run)]
    assert len(exits) == 8
    assert set(exits) <= {"done", "token_limit"}
    with pytest.raises(UserError, match="which cannot be loaded again by a name"):
        strop.train("grpo", model=str(lab.model), task=lambda row: 1.0, data=rows, **short)


def test_a_prompt_that_fills_the_context_is_the_limit_of_tokens(
    lab: Any, agent: Path, here: Path
) -> None:
    short = {**SHORT, "training_steps": 1}
    run = strop.train("grpo", model=str(lab.model), task=f"agent:{agent}:grows", **short)
    assert {(row["exit"], row["reward"]) for row in rollouts(run)} == {("token_limit", 0.0)}
    assert [
        row["exit_why"] for row in rollouts(run) if "the context of" not in row["exit_why"]
    ] == []


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("agent:nowhere.py:play", "cannot be loaded: UserError: no file nowhere.py"),
        ("agent:broken.py:play", "cannot be loaded: UserError"),
        ("agent:early.py:play", "make the client in the function"),
        ("agent:play", "give the agent's function, agent:my_agent.py:play"),
    ],
)
def test_what_is_no_agent_is_refused(lab: Any, here: Path, task: str, message: str) -> None:
    Path("broken.py").write_text("import no_such_module\n")
    early = "import os\nKEY = os.environ['OPENAI_API_KEY']\n"
    Path("early.py").write_text(f"{early}def play(row): return 1.0\n")
    with pytest.raises(UserError, match=message):
        strop.train("grpo", model=str(lab.model), task=task, out="run", **SHORT)
    assert not Path("run").exists()


def test_a_method_that_draws_in_a_way_of_its_own_is_refused(agent: Path, lab: Any) -> None:
    with pytest.raises(UserError, match="samples answers in its own way, and an agent"):
        strop.train("spo_tree", model=str(lab.model), task=f"agent:{agent}:once", **SHORT)


def test_it_is_the_same_however_many_at_once_and_after_a_resume(
    lab: Any, agent: Path, here: Path
) -> None:
    words = ["train", "grpo", "--model", str(lab.model), f"data.task=agent:{agent}:twice",
             "rollout.max_tokens=6", "sampling.num_prompts=2", "sampling.num_rollouts=4",
             "training.lr=1e-3", "evaluation.every=0", "training.save_every=1",
             "--quiet"]  # fmt: skip
    assert not ended([*words, "training.steps=2", "--out", "whole"], here).code
    assert not ended([*words, "training.steps=1", "data.env_workers=1", "--out", "cut"], here).code
    assert not ended(["train", "--resume", "cut", "training.steps=2", "--quiet"], here).code
    whole, cut = ([json.loads(x) for x in Path(f, "metrics.jsonl").read_text().splitlines()]
                  for f in ("whole", "cut"))  # fmt: skip
    for one, other in zip(whole, cut, strict=True):
        for name in ("reward", "completions/mean_length", "turns/drift_tokens"):
            assert one[name] == other[name]
        for name in ("grad_norm", "entropy"):  # with other rows beside them, they round differently
            assert one[name] == pytest.approx(other[name], rel=1e-4)


def test_agents_end_with_the_run(lab: Any, agent: Path, here: Path) -> None:
    place = here / "pids"
    place.mkdir()
    process = launch(
        ["train", "grpo", "--model", str(lab.model), f"data.task=agent:{agent}:waits",
         "rollout.max_tokens=6", "sampling.num_prompts=2", "sampling.num_rollouts=2",
         "evaluation.every=0", "--out", "run"],
        here / "said", folder=here, environment={"STROP_TEST": str(place)},
    )  # fmt: skip
    last = time.monotonic() + 120
    while len(pids := [int(each.name) for each in place.iterdir()]) < 4:
        assert time.monotonic() < last, (here / "said").read_text()
        time.sleep(0.05)
    assert all(map(lives, pids))
    os.kill(process.pid, 9)
    process.join()
    while any(map(lives, pids)):
        assert time.monotonic() < last
        time.sleep(0.05)


def test_the_example_of_the_page_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "docs/AGENTS.md"
    write_files(page, here)
    obey(blocks(page, "run")["agent"], Strop(monkeypatch, capsys))
    found = last_metrics(Path("runs/agent"))
    assert 0 < found["reward"] <= 1
    assert found["episode/turns_mean"] >= 1


def test_junk_of_a_class_of_its_own_and_parts_without_a_number(
    lab: Any, agent: Path, here: Path
) -> None:
    options = {**SHORT, "sampling_num_prompts": 4, "sampling_num_rollouts": 1, "training_steps": 1}
    run = strop.train(
        "grpo", model=str(lab.model), task=f"agent:{agent}:junk", data_train_size=4, **options
    )
    found = {int(row["uid"]): row for row in rollouts(run)}
    assert {uid: (row["exit"], row["scored"]) for uid, row in found.items()} == {
        0: ("unreadable", True), 1: ("declared", False), 2: ("done", True),
        3: ("unreadable", True),
    }  # fmt: skip
    assert found[2]["reward"] == 3.0
    assert "Mine object" in found[0]["exit_why"]


@pytest.mark.parametrize("value", [np.array(0.5), torch.tensor(0.5), np.float32(0.5), 0.5])
def test_a_reward_is_a_number_of_any_library(value: Any) -> None:
    assert _returned(value) == Outcome("returned", 0.5)
    assert _returned({"a": value}) == Outcome("returned", {"a": 0.5})


def test_an_outcome_is_read_while_a_row_is_sent_and_a_long_error_is_cut(agent: Path) -> None:
    running = Agents(f"{agent}:complains")
    with running.lock:  # as while `begin` waits for room in the socket
        outcome = running.begin({}, {}).ended.result(20)
    running.close()
    assert outcome.why.startswith("ValueError: xxx")
    assert "... (" in outcome.why  # the place is kept
    assert len(outcome.why) < 800


def test_rollouts_draw_random_numbers_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "draws.py"
    file.write_text(
        "import random\n\nimport numpy as np\nimport torch\n\n\ndef play(row):\n"
        "    found = random.random(), np.random.random(), torch.rand(1).item()\n"
        "    return dict(zip('pnt', found))\n"
    )
    running = Agents(f"{file}:play")
    drawn = [running.begin({}, {}).ended.result(60).value for _ in range(3)]
    running.close()
    assert [len({each[name] for each in drawn}) for name in "pnt"] == [3, 3, 3]


def test_an_agent_that_swallows_refusals_is_ended(lab: Any, agent: Path, here: Path) -> None:
    options = {**SHORT, "sampling_num_prompts": 1, "sampling_num_rollouts": 2, "training_steps": 1}
    run = strop.train(
        "grpo", model=str(lab.model), task=f"agent:{agent}:stubborn", rollout_max_turns=2, **options
    )
    rows = rollouts(run)
    assert {row["exit"] for row in rows} == {"turn_limit"}
    assert all("called on after 2 refusals" in row["exit_why"] for row in rows)


def test_a_call_that_the_agent_gives_up_is_drawn_no_further(
    agent: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    step, stop = AsyncEngine.step, AsyncEngine.stop

    def slowly(self: AsyncEngine, seconds: float | None = None) -> None:
        time.sleep(0.3)
        step(self, seconds)

    def stopped(self: AsyncEngine, started: Any) -> None:
        was_open = not started.done
        stop(self, started)
        if was_open:
            ended.append(started.events[-1].ended)

    monkeypatch.setattr(AsyncEngine, "step", slowly)
    monkeypatch.setattr(AsyncEngine, "stop", stopped)
    options = {**SHORT, "sampling_num_prompts": 2, "sampling_num_rollouts": 1, "training_steps": 1}
    model = str(save_model(here / "two_layers"))  # of which no answer ends at once
    with pytest.raises(RunStopped, match="in the first step the policy sampled no token"):
        strop.train(
            "grpo", model=model, task=f"agent:{agent}:gives_up", data_train_size=2, out="run",
            **options,
        )  # fmt: skip
    found = {int(row["uid"]): row for row in rollouts(SimpleNamespace(folder=Path("run")))}
    assert set(ended) == {"aborted"}  # one may be withdrawn before it is begun
    assert [(found[uid]["exit"], found[uid]["reward"]) for uid in (0, 1)] == [
        ("done", 1.0), ("timeout", 0.0)
    ]  # fmt: skip
    assert [row["completion"] for row in found.values()] == ["", ""]


def test_a_call_is_withdrawn_before_or_after_the_loop_has_heard_of_it() -> None:
    async def cancelled(heard: bool) -> list[Any]:
        episode = Episode("key", CallLimits())
        call = ModelCall("completions", (1,))
        saying = asyncio.ensure_future(episode.say(call))
        await asyncio.sleep(0)
        found: list[Any] = [await episode.next()] if heard else []
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
        episode.reply(call, [])  # which nobody hears
        return [*found, *episode.events, *episode.answers]

    (call, gone) = asyncio.run(cancelled(heard=True))
    assert gone == Withdrawn(call.id)
    assert asyncio.run(cancelled(heard=False)) == []


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome("returned", 0.5), AgentEnd(Exit.DONE, "", 0.5)),
        (Outcome("lost", why="w"), AgentEnd(Exit.ENVIRONMENT_CRASH, "w")),
        (Outcome("died", why="w"), AgentEnd(Exit.CRASH, "the agent's process: w", 0.0)),
        (Outcome("raised", why="w"), AgentEnd(Exit.EXCEPTION, "the agent raised w", 0.0)),
        (
            Outcome("raised", why="w", transient=True),
            AgentEnd(Exit.UNREACHABLE, "the agent raised w", 0.0),
        ),
        (Outcome("late", why="w"), AgentEnd(Exit.TIMEOUT, "w", 0.0)),
    ],
)
def test_what_an_agent_itself_brings_about_pays_nothing(outcome, expected):
    assert agents.ended(outcome) == expected
    unreadable = agents.ended(Outcome("unreadable", why="'x'"))
    assert (unreadable.exit, unreadable.value) == (Exit.UNREADABLE, 0.0)
    assert unreadable.why.startswith("the agent returned 'x': give")
