"""Logs to Trackio: a database on this machine (TRACKIO_DIR), or a Space (TRACKIO_SPACE_ID)."""

import secrets
from collections.abc import Mapping

from strop.tracking.base import RunInfo, Samples, Tracker


class ToTrackio(Tracker):
    """Numbers by step, the settings as its configuration, tables of rollouts.

    Trackio identifies a run by its name, so a few characters are added to make it unique.
    """

    def __init__(self, info: RunInfo) -> None:
        import trackio

        super().__init__(info)
        self.id = info.id or f"{info.name}-{secrets.token_hex(3)}"
        self.tables = trackio.Table
        self.run = trackio.init(
            project=info.project,
            name=self.id,
            config=dict(info.config),
            resume="allow" if info.id else "never",
            embed=False,
        )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Log a line."""
        self.run.log(dict(values), step=step)

    def samples(self, step: int, samples: Samples) -> None:
        """Log a table at its step."""
        rows = [dict(zip(samples.columns, row, strict=True)) for row in samples.rows]
        self.run.log({"rollouts": self.tables(dataframe=_Records(rows))}, step=step)

    def end(self, ok: bool) -> None:
        """Write what is pending."""
        self.run.finish()


class _Records(list[dict[str, object]]):
    """Rows with as much of a data frame's interface as a table needs, without pandas."""

    def to_dict(self, orient: str) -> list[dict[str, object]]:
        """The rows; `orient` is "records"."""
        return list(self)
