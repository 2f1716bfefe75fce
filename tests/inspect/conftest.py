"""A synthetic run folder with the tokens of a step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_steps import rollout_rows, token_columns

MakeStep = Callable[..., Path]
CONFIG = 'recipe = "grpo"\n[model]\nname = "tiny"\n[data]\ntask = "countdown"\n'


@pytest.fixture
def make_step(tmp_path: Path) -> MakeStep:
    """make_step(num, size, group, texts, change, rows) writes a run's folder and returns it."""

    def make(
        num: int = 8,
        size: int = 12,
        group: int = 4,
        texts: tuple[str, ...] = tuple("0123456789+-*/="),
        steps: tuple[int, ...] = (3,),
        **changes: Any,
    ) -> Path:
        folder = tmp_path / "run"
        columns = {**token_columns(num, size, group, list(texts)), **changes.get("tokens", {})}
        rows = {**rollout_rows(num, group), **changes.get("rollouts", {})}
        for name, table in (("tokens", columns), ("rollouts", rows)):
            (folder / name).mkdir(parents=True)
            for step in steps:
                pq.write_table(pa.table(table), folder / name / f"step-{step:06d}.parquet")
        (folder / "config.toml").write_text(CONFIG)
        return folder

    return make
