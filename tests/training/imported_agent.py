"""An agent in a module that imports little, since the process of its episodes imports it too."""

from typing import Any

from openai import OpenAI


def once_imported(row: dict[str, Any]) -> float:
    """1 if the answer has an even number of digits."""
    said = OpenAI().completions.create(model="policy", prompt=row["prompt"])
    return float(sum(c.isdigit() for c in said.choices[0].text) % 2 == 0)
