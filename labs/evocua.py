"""Tasks and validators, a pool of experience, and steps learnt from failures, on a web page. After
EvoCUA, arXiv 2601.15876: its loop is published, its losses are not; docs/LABS.md says what is
inferred.

    strop labs evocua                        # two rounds, three seeds
    strop labs evocua --seeds 1 --rounds 1   # one of each

A page has a shelf with things to count and a button that saves. Headless Chromium shows it, and the
policy sees its accessibility tree and presses elements by number. In a round

1. tasks are made by walks on the page, each with a validator that is run in the page,
2. the policy plays them; each episode goes into the pool with the validator's verdict,
3. successes are imitated (sft), and steps at which failures left every known way to success are
   paired with a step that stayed on one (dpo).

Needs Chromium: a program of the name chromium or chromium-browser, or the one that CHROMIUM names.
Takes: two minutes a round.
"""

import argparse
import fcntl
import itertools
import json
import os
import random
import re
import selectors
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import strop
from strop.environments import Environment, Observation
from strop.evaluation.seeds import over_seeds
from strop.support import processes

VALIDATION = 10**9  # the first seed of validation and of the held-out split
THINGS = ("apples", "pears", "plums")
ROLES = ("button", "spinbutton", "status")  # what an observation shows of a page
MOST = 3  # of a thing in a goal
# The browser reads its third file and writes its fourth.
LAUNCH = """
import os, sys
read, write, *words = sys.argv[1:]
os.dup2(int(read), 3), os.dup2(int(write), 4)
os.execv(words[0], words)
"""
CALL_SECONDS = 60.0  # that the browser may take to answer
APP = """<!doctype html><html lang="en"><title>Shelf</title><main><h1>Shelf</h1>
<div id="things"></div><button id="none">Clear all</button><button id="save">Save</button>
<p role="status"></p></main><script>
const shelf = {}, page = document.getElementById("things");
for (const name of NAMES) {
  const count = document.createElement("input"), more = document.createElement("button");
  Object.assign(count, {type: "number", value: 0, readOnly: true, ariaLabel: name});
  more.textContent = "More " + name;
  more.onclick = () => { count.value = Number(count.value) + 1; };
  page.append(count, more);
  shelf[name] = count;
}
document.getElementById("none").onclick = () => { for (const n of NAMES) shelf[n].value = 0; };
document.getElementById("save").onclick = () => {
  window.saved = Object.fromEntries(NAMES.map((name) => [name, Number(shelf[name].value)]));
  document.querySelector("[role=status]").textContent = "Saved";
};
</script></html>""".replace("NAMES", json.dumps(THINGS))


# ---- the browser


class Lost(ConnectionError):
    """The browser ended or does not answer."""


class Browser:
    """A headless Chromium with one page; each episode has a frame of its own in it.

    Spoken to by its debugging protocol over two pipes. Raises UserError where there is none.
    """

    def __init__(self) -> None:
        found = os.environ.get("CHROMIUM") or shutil.which("chromium")
        program = shutil.which(found or "chromium-browser")
        if not program:
            where = found or "chromium"
            raise strop.UserError(f"there is no {where}: install Chromium, or set CHROMIUM to it")
        self._profile = tempfile.TemporaryDirectory()
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
        command = [
            sys.executable, "-I", "-S", "-c", LAUNCH, *map(str, ends), program, "--headless",
            "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
            f"--user-data-dir={self._profile.name}", "about:blank",
        ]  # fmt: skip
        with open(os.devnull, "wb") as nothing:
            self._process = processes.start(command, pass_fds=ends, stdout=nothing, stderr=nothing)
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        self._in, self._out, self._read, self._number = ours_in, ours_out, b"", 0
        self._session, self.lost = "", False
        pages = self.call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in pages if each["type"] == "page")
        given = {"targetId": page, "flatten": True}
        self._session = self.call("Target.attachToTarget", **given)["sessionId"]
        for domain in ("Page", "DOM", "Accessibility", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """What a command of the protocol gives. Raises Lost."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": given}
        asked |= {"sessionId": self._session} if self._session else {}
        try:
            os.write(self._out, json.dumps(asked).encode() + b"\0")
        except OSError as error:
            self.lost = True
            raise Lost(f"the browser ended: {error}") from error
        for told in self._messages():
            if told.get("id") == self._number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']['message']}")
                return dict(told["result"])
        self.lost = True
        raise Lost("the browser ended, or it did not answer")

    def _messages(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + CALL_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_READ)
            while True:
                line, found, rest = self._read.partition(b"\0")
                if found:
                    self._read = rest
                    yield json.loads(line)
                    continue
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    return
                if not (piece := os.read(self._in, 1 << 16)):
                    return
                self._read += piece

    def run(self, script: str, **given: Any) -> Any:
        """The value of an expression in the page."""
        given = {"expression": script, "awaitPromise": True, "returnByValue": True, **given}
        told = self.call("Runtime.evaluate", **given)
        if "exceptionDetails" in told:
            raise RuntimeError(told["exceptionDetails"]["exception"].get("description", script))
        return told["result"].get("value")

    def close(self) -> None:
        """End it."""
        processes.end(self._process)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()


@cache
def opened() -> list[Browser]:
    """The one of this process, once there is one; a cache, as it is no part of the environment that
    is kept with a run.
    """
    return []


def browser() -> Browser:
    """The one of this process; another one where it was lost."""
    if opened() and opened()[0].lost:
        opened().pop().close()
    if not opened():
        opened().append(Browser())
    return opened()[0]


@dataclass(frozen=True)
class Element:
    """Something on the page that can be pressed or read, as its accessibility tree has it."""

    node: int
    role: str
    name: str
    value: str


class Frame:
    """A copy of the page, in a frame of its own."""

    number = 0

    def __init__(self, owner: Browser) -> None:
        Frame.number += 1
        self.browser, self.name = owner, f"episode{Frame.number}"
        owner.run(
            "new Promise((done) => { const f = document.createElement('iframe'); "
            f"f.name = {json.dumps(self.name)}; f.srcdoc = {json.dumps(APP)}; "
            "f.onload = () => done(true); document.body.append(f); })"
        )
        frames = owner.call("Page.getFrameTree")["frameTree"]["childFrames"]
        own = [each["frame"] for each in frames if each["frame"].get("name") == self.name]
        self.frame = own[0]["id"]

    def elements(self) -> list[Element]:
        """What its accessibility tree shows, in the order of the page."""
        nodes = self.browser.call("Accessibility.getFullAXTree", frameId=self.frame)["nodes"]
        known, left, found = {each["nodeId"]: each for each in nodes}, [nodes[0]["nodeId"]], []
        while left:
            each = known[left.pop()]
            left += [child for child in reversed(each.get("childIds", [])) if child in known]
            role = each.get("role", {}).get("value", "")
            if role in ROLES and not each["ignored"]:
                name, value = (str(each.get(w, {}).get("value", "")) for w in ("name", "value"))
                found.append(Element(each["backendDOMNodeId"], role, name, value))
        return found

    def press(self, element: Element) -> None:
        """Click on an element."""
        found = self.browser.call("DOM.resolveNode", backendNodeId=element.node)["object"]
        given = {"objectId": found["objectId"], "functionDeclaration": "function() {this.click()}"}
        self.browser.call("Runtime.callFunctionOn", **given)

    def validate(self, validator: str) -> bool:
        """What a validator says of the page."""
        inside = f"(({{saved}}) => {validator})(window[{json.dumps(self.name)}])"
        return bool(self.browser.run(inside))

    def close(self) -> None:
        """Take it out of the page, if that is still there."""
        if not self.browser.lost:
            self.browser.run(f"document.getElementsByName({json.dumps(self.name)})[0].remove()")


# ---- 1. tasks and validators


@dataclass(frozen=True)
class Task:
    """What to do, the validator that says whether it is done, and a walk that does it."""

    goal: tuple[int, ...]
    validator: str
    walk: tuple[int, ...]  # numbers of the buttons


# What a walk of at most twice MOST presses can put on the shelf.
GOALS = [
    goal
    for goal in itertools.product(range(MOST + 1), repeat=len(THINGS))
    if 0 < sum(goal) <= 2 * MOST
]


def make_task(goal: tuple[int, ...], draw: random.Random) -> Task:
    """A task from a walk on the page, and a validator of what the walk has saved. Both are tried in
    the page: the walk passes, and saving at once does not.
    """
    presses = [number for number, count in enumerate(goal, 1) for _ in range(count)]
    draw.shuffle(presses)
    wanted = json.dumps(dict(zip(THINGS, goal, strict=True)))
    validator = f"JSON.stringify(saved) === JSON.stringify({wanted})"
    task = Task(goal, validator, (*presses, len(THINGS) + 2))
    if not works(task, task.walk) or works(task, task.walk[-1:]):
        raise RuntimeError(f"the validator of {task} does not tell its walk from none")
    return task


def works(task: Task, walk: Sequence[int]) -> bool:
    """Whether the validator says so after these presses."""
    frame = Frame(browser())
    try:
        buttons = [each for each in frame.elements() if each.role == "button"]
        for number in walk:
            frame.press(buttons[number - 1])
        return frame.validate(task.validator)
    finally:
        frame.close()


def make_tasks(file: Path, train: int, held_out: int, seed: int) -> None:
    """Write tasks, each of a goal of its own; those that are held out come last."""
    if train + held_out > len(GOALS):
        raise strop.UserError(f"{train + held_out} tasks: there are {len(GOALS)} goals")
    draw = random.Random(seed)
    goals = draw.sample(GOALS, train + held_out)
    rows = [
        asdict(make_task(goal, draw)) | {"held_out": i >= train} for i, goal in enumerate(goals)
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


# ---- 2. episodes, and the pool


class WebTask(Environment):
    """A task on the page. An action is the number of a button; what cannot be pressed is answered.

    An observation is all that the policy sees in its turn: the goal, and the page as its
    accessibility tree has it. style `plain` has lines; `compact` the counts alone, `1,0,2:1,0,0=`.
    """

    rewrites, max_tokens, reward_range = True, 1, (0.0, 1.0)

    def __init__(self, tasks: str, style: str = "plain", max_turns: int = 10) -> None:
        try:
            rows = [json.loads(line) for line in Path(tasks).read_text("utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise strop.UserError(f"the tasks {tasks!r} cannot be read: {error}") from error
        self.training = [row for row in rows if not row["held_out"]]
        self.others = [row for row in rows if row["held_out"]]
        self.compact, self.max_turns = style == "compact", max_turns
        self.frame: Frame | None = None
        self.seen: list[Element] = []  # what the policy was shown last

    def reset(self, seed: int) -> Observation:
        """Open a fresh page."""
        self.close()
        among = self.others if seed >= VALIDATION else self.training
        self.task = among[seed % VALIDATION % len(among)]
        self.frame = Frame(browser())
        return self._observed()

    def step(self, action: str) -> Observation:
        """Press a button; saving ends the episode."""
        assert self.frame is not None
        buttons = [each for each in self.seen if each.role == "button"]
        text = action.strip()
        if not re.fullmatch(r"[1-9]", text) or int(text) > len(buttons):
            return self._observed(valid=False)
        pressed = buttons[int(text) - 1]
        self.frame.press(pressed)
        if pressed.name != "Save":
            return self._observed()
        return Observation("", reward=float(self.frame.validate(self.task["validator"])), done=True)

    def _observed(self, valid: bool = True) -> Observation:
        assert self.frame is not None
        found = self.seen = self.frame.elements()
        counts = [each for each in found if each.role == "spinbutton"]
        if self.compact:
            goal = ",".join(map(str, self.task["goal"]))
            text = f"{goal}:{','.join(each.value for each in counts)}="
        else:
            wanted = ", ".join(f"{n} {t}" for n, t in zip(self.task["goal"], THINGS, strict=True))
            buttons = iter(range(1, len(found) + 1))
            text = f"Put {wanted} on the shelf and save. Answer with the number of a button.\n"
            for each in found:
                number = f"[{next(buttons)}] " if each.role == "button" else ""
                value = f" = {each.value}" if each.value else ""
                text += f'{number}{each.role} "{each.name}"{value}\n'
        return Observation(text, valid=valid)

    def close(self) -> None:
        """Take the page away."""
        if self.frame is not None:
            self.frame.close()
            self.frame = None


@dataclass(frozen=True)
class Episode:
    """What a policy saw and did, and the validator's verdict."""

    task: str
    steps: tuple[tuple[str, str], ...]
    success: bool
    round: int


def records(table: Any) -> list[dict[str, Any]]:
    """The rows of a table of a run, with pandas and without."""
    return list(table.to_pylist() if hasattr(table, "to_pylist") else table.to_dict("records"))


@dataclass
class Pool:
    """All episodes so far."""

    episodes: list[Episode] = field(default_factory=list)

    def add(self, rollouts: Any, round: int) -> float:
        """Take over a table of rollouts; the share of successes among them."""
        found = [
            Episode(
                row["prompt"].partition(":")[0],
                tuple((turn["observation"], turn["action"]) for turn in json.loads(row["turns"])),
                row["reward"] >= 1, round,
            )
            for row in records(rollouts) if row["scored"]
        ]  # fmt: skip
        self.episodes += found
        return sum(each.success for each in found) / max(len(found), 1)

    def demonstrations(self) -> list[dict[str, str]]:
        """Every step of every success that moved on, once."""
        steps = {
            step: None for each in self.episodes if each.success for step in moving(each.steps)
        }
        return [{"prompt": seen, "completion": action} for seen, action in steps]

    def pairs(self, walks: Sequence[Episode] = ()) -> list[dict[str, str]]:
        """For the step at which a failure left the known ways to success: what was done there on
        one of them.

        A way is an episode that succeeded at the same task, or the walk that the task was made of.
        Where nothing was written there is no answer to reject.
        """
        good: dict[str, dict[str, None]] = {}  # page -> what was done there on a way to success
        for each in (*self.episodes, *walks):
            if each.success:
                for seen, action in moving(each.steps):
                    good.setdefault(seen, {})[action] = None
        found: dict[tuple[str, str, str], None] = {}
        for each in self.episodes:
            if not each.success:
                for number, (seen, action) in enumerate(each.steps):
                    after = each.steps[number + 1][0] if number + 1 < len(each.steps) else ""
                    if seen in good and after not in good:
                        found |= {(seen, right, action): None for right in good[seen]}
                        break
        return [
            {"prompt": seen, "chosen": right, "rejected": wrong}
            for seen, right, wrong in found
            if wrong and right != wrong
        ]


def moving(steps: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The steps after which the page was another one, and was not met again."""
    last = {seen: number for number, (seen, _) in enumerate(steps)}
    return [step for number, step in enumerate(steps) if last[step[0]] == number]


# ---- 3. rounds


@dataclass(frozen=True)
class Sizes:
    """Of one seed."""

    train: int = 32  # tasks
    held_out: int = 20
    walks: int = 16  # tasks whose walks are imitated at first
    cold: int = 120  # updates on them
    temperature: float = 1.5  # of play: such a small model is soon sure of all that it does
    plays: int = 4  # episodes of a task in a round
    steps: int = 60  # updates of a round, on successes and on pairs each
    lr: float = 1e-3


def options(out: Path, seed: int, **more: Any) -> dict[str, Any]:
    """Of every run here."""
    return {"evaluation_every": 0, "seed": seed, "out": str(out), "progress": False} | more


def learned(recipe: str, model: str, rows: Any, out: Path, seed: int, steps: int, lr: float) -> str:
    """The folder of a model that was trained on given answers."""
    more = {"training_steps": steps, "training_lr": lr, "sampling_num_prompts": min(16, len(rows))}
    run = strop.train(recipe, model=model, data=rows, **options(out, seed, **more))
    return str(strop.export(run, str(out) + "-model"))


def task_options(tasks: Path, train: int, held_out: int) -> dict[str, Any]:
    """The environment, for `strop.train` and `strop.evaluate`."""
    return {
        "task": WebTask, "data_task_config": {"tasks": str(tasks), "style": "compact"},
        "data_train_size": train, "data_validation_size": 1, "data_heldout_size": held_out,
    }  # fmt: skip


def play(model: str, tasks: Path, sizes: Sizes, out: Path, seed: int) -> Any:
    """The table of a policy's rollouts: a run whose rate of learning is 0."""
    more = {
        "training_steps": sizes.plays // 4, "training_lr": 0.0, "training_rollouts_every": 1,
        "sampling_num_prompts": sizes.train, "sampling_num_rollouts": 4,
        "rollout_temperature": sizes.temperature,
    }  # fmt: skip
    given = task_options(tasks, sizes.train, 1) | options(out, seed, **more)
    return strop.train("grpo", model=model, **given).rollouts


def score(model: str, tasks: Path, sizes: Sizes) -> float:
    """Success on tasks that are held out."""
    found = strop.evaluate(model, k=1, samples=4, **task_options(tasks, 1, sizes.held_out))
    return found["pass@1"]


def one_seed(sizes: Sizes, rounds: int, seed: int, out: Path) -> dict[str, float]:
    """Success after each phase. Each round begins with what the last one made of both; beside it
    stands imitation alone, of the same pool and with as many updates.
    """
    out.mkdir(parents=True, exist_ok=True)
    tasks = out / "tasks.jsonl"
    make_tasks(tasks, sizes.train, sizes.held_out, seed)
    environment = WebTask(str(tasks), "compact")
    walks = [walked(environment, number) for number in range(sizes.train)]
    start = ("sft", "tiny", Pool(walks[: sizes.walks]).demonstrations())
    model = learned(*start, out / "cold", seed, sizes.cold, sizes.lr)
    scores, pool = {"cold": score(model, tasks, sizes)}, Pool()
    for number in range(rounds):
        at = out / f"round-{number}"
        share = pool.add(play(model, tasks, sizes, at / "play", seed), number)
        rows, pairs = pool.demonstrations(), pool.pairs(walks)
        told = f"{share:.3f} succeed; {len(rows)} steps, {len(pairs)} pairs"
        print(f"  round {number}: {told}", flush=True)
        if not rows or not pairs:
            raise strop.UserError("the pool has no success, or no failure: play more")
        alone = learned("sft", model, rows, at / "alone", seed, 2 * sizes.steps, sizes.lr)
        model = learned("sft", model, rows, at / "sft", seed, sizes.steps, sizes.lr)
        model = learned("dpo", model, pairs, at / "dpo", seed, sizes.steps, sizes.lr / 10)
        scores[f"round {number}, sft and dpo"] = score(model, tasks, sizes)
        scores[f"round {number}, sft alone"] = score(alone, tasks, sizes)
    print("  " + ", ".join(f"{name} {value:.3f}" for name, value in scores.items()), flush=True)
    return scores


def walked(environment: WebTask, seed: int) -> Episode:
    """The episode of a task's own walk."""
    seen, steps = environment.reset(seed), []
    task = seen.text.partition(":")[0]
    for number in environment.task["walk"]:
        steps.append((seen.text, str(number)))
        seen = environment.step(str(number))
    environment.close()
    return Episode(task, tuple(steps), seen.reward >= 1, -1)


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--seeds", type=int, default=3)
    add("--rounds", type=int, default=2)
    add("--steps", type=int, default=Sizes.steps, help="updates of a round, of each recipe")
    add("--plays", type=int, default=Sizes.plays, help="episodes of a task in a round")
    add("--out", type=Path, help="folder of the runs; default: a temporary one")
    given = parser.parse_args(words)
    for name in ("seeds", "rounds", "steps", "plays"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1")
    sizes, results = Sizes(steps=given.steps, plays=given.plays), []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(given.seeds):
                print(f"seed {seed}")
                out = (given.out or Path(folder)) / f"seed-{seed}"
                results.append(one_seed(sizes, given.rounds, seed, out))
        report(results)
    except strop.UserError as error:
        parser.error(str(error))
    finally:
        while opened():
            opened().pop().close()


def report(results: Sequence[Mapping[str, float]]) -> None:
    """Means over seeds, with their 95% Student-t intervals."""
    for name in results[0]:
        values = [each[name] for each in results]
        print(f"{name:22} {over_seeds(values):.3f}; seeds "
              f"{', '.join(f'{value:.3f}' for value in values)}")  # fmt: skip


if __name__ == "__main__":
    main()
