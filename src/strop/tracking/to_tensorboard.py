"""Logs to TensorBoard: event files in the run's folder, `tensorboard --logdir runs`."""

from collections.abc import Mapping

from strop.tracking.base import RunInfo, Samples, Tracker

FOLDER = "tensorboard"


class ToTensorboard(Tracker):
    """Scalars by step; settings and tables of rollouts as texts.

    A resumed run writes another file, which declares later steps of earlier files void.
    """

    def __init__(self, info: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(info)
        self.id = FOLDER
        begins = info.step + 1 if info.id else None
        self.writer = SummaryWriter(str(info.folder / FOLDER), purge_step=begins)
        self.writer.add_text("config", f"```toml\n{info.text}\n```", info.step)
        self.writer.flush()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Log a point of every curve."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def samples(self, step: int, samples: Samples) -> None:
        """Log a table in Markdown."""
        lines = [samples.columns, ["---"] * len(samples.columns), *samples.rows]
        table = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        self.writer.add_text("rollouts", table, step)
        self.writer.flush()

    def end(self, ok: bool) -> None:
        """Close the file."""
        self.writer.close()


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    for plain, marked in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("\n", "<br>")):
        text = text.replace(plain, marked)
    return text
