"""An orchestrator outside the run: it samples with OpenAI's client and posts the rollouts.

python live_driver.py RUN    # until the run has finally ended: it has a report
"""

import json
import sys
import time
from pathlib import Path

import httpx2
import openai
from openai import OpenAI

TASKS = ("1+2=", "3+4=", "5+", "7*2=")
SIZE = 4


def score(text: str) -> float:
    return float(sum(c.isdigit() for c in text) % 2 == 0)


def main(folder: Path) -> None:
    number = 0
    while not (folder / "report.html").exists():
        try:
            told = json.loads((folder / "serving.json").read_text())
            client = OpenAI(base_url=f"{told['url']}/v1", api_key=told["key"], max_retries=1)
            with client:
                play(client, TASKS[number % len(TASKS)], number, told)
            number += 1
        except (OSError, openai.APIError, httpx2.HTTPError):
            time.sleep(0.2)  # it is away, or does not draw now


def play(client: OpenAI, task: str, number: int, told: dict) -> None:
    said = client.completions.create(
        model=told["model"], prompt=task, n=SIZE, max_tokens=4,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    rollouts = [
        {
            "id": f"{number}-{place}",
            "reward": score(choice.text),
            "rewards": {"number": number * SIZE + place},
            "turns": [{"prompt_ids": choice.prompt_token_ids, "output_ids": choice.token_ids}],
        }
        for place, choice in enumerate(said.choices)
    ]
    body = {"group": task, "rollouts": rollouts}
    headers = {"Authorization": f"Bearer {told['key']}"}
    while True:
        posted = httpx2.post(f"{told['url']}/v1/rollouts", json=body, headers=headers, timeout=60)
        if posted.status_code != 429:
            break
        time.sleep(int(posted.headers["retry-after"]))
    if posted.status_code not in (200, 409, 422, 503):  # what is too old is played again
        raise SystemExit(f"{posted.status_code} {posted.text}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
