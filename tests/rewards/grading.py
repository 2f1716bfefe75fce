"""Rewards of every kind, well-behaved and hostile, and short ways to grade with them."""

from strop.rewards.grader import Grader
from strop.rewards.source import RewardSpec

REWARDS = '''
import asyncio, os, random, re, sys, time

def length(completions, **columns):
    print("printed by a reward")
    os.write(1, b"written to descriptor one")
    return [float(len(text)) for text in completions]

def share(completions):
    """Depends on the whole batch: each length over the sum of lengths."""
    total = sum(len(text) for text in completions)
    return [len(text) / total for text in completions]

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def hostile(completions):
    for text in completions:
        if "mute" in text:
            raise Mute
        if "exit" in text:
            os._exit(7)
        if "raise" in text:
            raise RuntimeError("bad row: " + text)
        if "hang" in text:
            time.sleep(60)
        if "signal" in text:
            os.kill(os.getpid(), 11)
        if "system" in text:
            sys.exit("left")
    return share(completions)

def alone(completions):
    return [hostile([text])[0] + len(text) for text in completions]

def backtracks(completions):
    return [float(re.match("(a+)+$", text) is not None) for text in completions]

def jointly(completions):
    if len(completions) > 2:
        raise ValueError("too many")
    return [1.0] * len(completions)

async def sleepy(completions, answer, trainer_state):
    async def one(text, wanted):
        await asyncio.sleep(0.01)
        return (text == wanted) * trainer_state.global_step
    return await asyncio.gather(*(one(t, a) for t, a in zip(completions, answer)))

at_once = asyncio.Semaphore(1)

async def limited(completions):
    """Waits for an object of the module, as rewards with a client of their own do."""
    async def one(text):
        async with at_once:
            await asyncio.sleep(0.001)
            return float(len(text))
    return await asyncio.gather(*map(one, completions))

def logs(completions, log_metric, log_extra):
    log_metric("longest", max(len(text) for text in completions))
    log_extra("upper", [text.upper() for text in completions])
    return [None if text == "skip" else 0.5 for text in completions]

def also_logs(completions, log_metric, log_extra):
    log_metric("longest", 7.0)
    log_extra("upper", [text.lower() for text in completions])
    return [1.0] * len(completions)

def chat(prompts, completions):
    return [float(c[0]["role"] == "assistant" and c[0]["content"] == p[-1]["content"])
            for p, c in zip(prompts, completions)]

def ids(completion_ids):
    return [sum(row) for row in completion_ids]

def noise(completions):
    return [random.random() for text in completions]

def noise_of_libraries(completions):
    import numpy, torch
    return [numpy.random.rand() + float(torch.rand(())) for text in completions]

def process(completions):
    return [os.getpid()] * len(completions)

def child(completions):
    import subprocess
    pid = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]).pid
    with open("child.pid", "w") as file:
        file.write(str(pid))
    return [0.0 if text != "hang" else time.sleep(60) for text in completions]

def returns(completions, answer):
    return eval(answer[0])

def far_child(completions):
    """Starts a process in another session, by a parent that is gone at once."""
    import subprocess
    code = """if True:
        import os, sys, time
        if os.fork():
            os._exit(0)
        os.setsid()
        with open("child.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename("child.part", "child.pid")
        time.sleep(300)
    """
    subprocess.run([sys.executable, "-c", code], env={})
    while not os.path.exists("child.pid"):
        time.sleep(0.01)
    return hostile(completions)

def writes_to_files(completions):
    """Writes to every open file beside the standard ones, once a message has come."""
    bad = [text for text in completions if text.startswith("write ")]
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if bad and descriptor > 2:
            try:
                os.write(descriptor, eval(bad[0].removeprefix("write ")))
            except OSError:
                pass
    return [1.0] * len(completions)

def imports(completions):
    import slow_to_import
    if "hang" in completions:
        time.sleep(60)
    return [slow_to_import.VALUE] * len(completions)

def logs_what_is_no_json(completions, log_extra):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    log_extra("deep", [deep if text == "deep" else {(1, 2): 3} for text in completions])
    return [1.0] * len(completions)
'''


def spec(function, **options):
    return RewardSpec(function, f"rewards.py:{function}", **options)


def grade(grader, completions, prompts=None, step=0, strict=False, **columns):
    num = len(completions)
    ids = [[len(text)] * 2 for text in completions]
    return grader.grade(prompts or ["p"] * num, completions, ids, columns, step, strict=strict)


def grade_once(specs, completions, timeout_seconds=10.0, num_workers=1, **columns):
    with Grader(specs, timeout_seconds, num_workers) as grader:
        return grade(grader, completions, **columns)


def kinds(grades):
    return [(f.row, f.reward, f.cause.label) for f in grades.failures]
