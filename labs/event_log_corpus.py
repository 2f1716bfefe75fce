"""Questions of a made-up firm's log, closed book, with the passages, and by own search. After
OrgForge (10.5281/zenodo.19036018), whose firm hosted models word; docs/LABS.md says what differs.

    strop labs event_log_corpus                        # what BM25 finds by a question's own words
    strop labs event_log_corpus --model MODEL_OR_RUN   # three ways to ask a model, 50 questions
    strop labs event_log_corpus --show 3               # documents and questions of a corpus

The environment is `event_log_corpus`. Questions are those of held-out corpora. With a model the
same questions are asked three times: what searching adds is search less closed book, what is lost
on the way to the right documents is passages less search. `--shots` shows solved questions of a
training corpus before each, for a model that nobody has tuned to chat and a template that has
`examples`.

Takes: a second; a model some seconds a question.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import strop
from strop.api.evaluate import interval
from strop.data.prompts import MAX_SPLIT_ROWS
from strop.environments.built_in.event_log_corpus import (
    MODES,
    RECALL_AT,
    EventLogCorpus,
    bm25_recall,
    made,
)
from strop.environments.event_log import KINDS
from strop.evaluation.retrieval import reading_gains
from strop.support.errors import UserError

HELD_OUT = 2 * MAX_SPLIT_ROWS  # seed of the first held-out corpus
TEMPLATE = "examples/gemma_with_tools.jinja"


def floor(corpora: int) -> list[tuple[str, int, list[float]]]:
    """Kind, number of questions, and BM25's recall at each of RECALL_AT; all of them last."""
    rows = [row for n in range(corpora) for row in bm25_recall(HELD_OUT + n)]
    found = []
    for name in (*KINDS, "all"):
        own = [recall for asked, recall in rows if name in (asked.kind, "all")]
        if own:
            means = [sum(each[k - 1] for each in own) / len(own) for k in RECALL_AT]
            found.append((name, len(own), means))
    return found


def shot(mode: str, seed: int, most: int) -> list[dict[str, str]]:
    """The messages of a solved question of the training split, from a seed on."""
    world = EventLogCorpus(mode=mode, most=most)
    while True:
        text = world.reset(seed).text
        said = world.asked.text.startswith("Who said that ")
        seed += 1
        if not (said and world.asked.evidence):
            continue
        messages = [{"role": "user", "content": text.strip()}]
        if mode == "search":
            query = world.asked.text.removeprefix("Who said that ").rstrip("?")
            call = f'{{"name": "search", "arguments": {{"query": "{query}"}}}}'
            messages.append({"role": "assistant", "content": f"<tool_call>{call}</tool_call>"})
            (answer,) = world.step(f'call search {{"query": "{query}"}}').answers
            messages.append({"role": "tool", "content": answer.text})
        return [*messages, {"role": "assistant", "content": world.asked.answer}]


def ask(model: str, mode: str, options: argparse.Namespace) -> Any:
    """The evaluation of a model in one of the modes."""
    given: dict[str, Any] = {"data.call_form": options.call_form} if options.call_form else {}
    if options.shots:
        shown = [shot(mode, 40 * n, options.most) for n in range(options.shots)]
        given |= {
            "model.chat_template": options.template, "data.stop_strings": ["\n"],
            "data.chat_template_kwargs": {"examples": [each for one in shown for each in one]},
        }  # fmt: skip
    config = {"mode": mode, "most": options.most, "max_turns": 3, "max_tokens": 64}
    return strop.evaluate(
        model, task="event_log_corpus", prompts=options.prompts, samples=options.samples, k=1,
        data_task_config=config, seed=options.seed, trust_files=options.trust_files, **given,
    )  # fmt: skip


def report(options: argparse.Namespace) -> None:
    """The three modes, and what lies between them."""
    found = {}
    for mode in MODES:
        found[mode] = ask(options.model, mode, options)
        print(f"{mode}: answered {interval(found[mode].estimates['pass@1'])}", flush=True)
        for name, each in found[mode].estimates.items():
            if name.startswith("measures/") and name != "measures/answer":
                print(f"  {name.removeprefix('measures/'):10} {interval(each)}")
    scores = {mode: each.by_prompt["mean@n"] for mode, each in found.items()}
    for name, each in reading_gains(**scores, seed=options.seed).items():
        print(f"{name}: {interval(each)} ({each.n_prompts} questions)")


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--corpora", type=int, default=8, help="held-out ones that BM25 searches")
    add("--show", type=int, default=0, help="documents and questions to print")
    add("--model", default="", help="a run, or a model's folder or name")
    add("--prompts", type=int, default=50, help="questions of it")
    add("--samples", type=int, default=1, help="answers to each")
    add("--most", type=int, default=3, help="documents of a search")
    add("--shots", type=int, default=0, help="solved questions that are shown before each")
    add("--template", default=TEMPLATE, help="a chat template with `examples`, for --shots")
    add("--call-form", default="", help="how the model writes calls, as data.call_form")
    add("--seed", type=int, default=0)
    add("--trust-files", action="store_true", help="as strop eval has it, for a run")
    options = parser.parse_args(words)
    for name in ("corpora", "prompts", "samples", "most"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.show:
        log = made(HELD_OUT, 12, 10, 60, 200)
        print(*log.documents[: options.show], sep="\n")
        for asked in log.questions[: options.show]:
            print(f"{asked.text} {asked.answer} ({asked.kind}: {' '.join(asked.evidence)})")
    print(f"BM25 with the question as it is, {options.corpora} held-out corpora: evidence recall")
    print(f"{'':8} questions" + "".join(f"  @{k:<4}" for k in RECALL_AT))
    for name, number, means in floor(options.corpora):
        print(f"{name:8} {number:9}" + "".join(f"  {mean:.3f}" for mean in means), flush=True)
    if options.model:
        try:
            report(options)
        except UserError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
