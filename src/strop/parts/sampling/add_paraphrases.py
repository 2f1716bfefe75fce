"""Draw all wordings of a question together."""

from dataclasses import dataclass

from strop.method.part import Draw
from strop.method.services import Texts
from strop.support.errors import UserError


@dataclass(frozen=True)
class AddParaphrases:
    """Whenever a prompt is practised, the other prompts of its set are practised with it.

        draws <- draws and, after each, one of every other prompt in the pool with the same set

    The set is a column of the training data, equal in all wordings of a question. A prompt that
    was drawn already is not drawn again. This part follows one that draws prompts.

    Reads: draws, pool; texts (the rows of the data).   Writes: draws.
    Source: arXiv 2510.04392 (paraphrase sets).
    Differs from the source: no.
    Nearest part: draw_in_shuffled_order, which it follows.
    Edges: a set of one -> unchanged; data without the column -> UserError. A step then has more
    prompts than requested; no state lasts between steps.
    """

    # Column of the data that names a prompt's set. Default: ours.
    column: str = "set"

    def __call__(
        self, draws: tuple[Draw, ...], pool: tuple[int, ...], texts: Texts
    ) -> tuple[Draw, ...]:
        names = dict(zip(pool, texts.values(self.column, pool), strict=True))
        if None in names.values():
            raise UserError(
                f"a prompt of the training data has no {self.column}: give every row a column "
                f"{self.column!r} that is equal in all wordings of a question"
            )
        sets: dict[object, list[int]] = {}
        for uid, name in names.items():
            sets.setdefault(name, []).append(uid)
        drawn: dict[int, Draw] = {}
        for draw in draws:
            for uid in (draw.uid, *sets[names[draw.uid]]):
                drawn.setdefault(uid, draw._replace(uid=uid, probability=None))
        return tuple(drawn.values())
