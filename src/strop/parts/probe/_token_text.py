"""Decodes tokens into one text, with the position of each token in it."""

import numpy as np
from torch import Tensor

from strop.method.services import Texts


class TokenText:
    """The text of consecutive tokens [N]; token n is its characters begin_N[n] to end_N[n]."""

    def __init__(self, id_N: Tensor, texts: Texts) -> None:
        self.id_N = id_N.cpu().numpy()
        ids = np.flatnonzero(np.bincount(self.id_N))
        pieces = np.full(int(ids[-1]) + 1 if len(ids) else 0, "", dtype=object)
        for id in ids.tolist():
            pieces[id] = texts.decode([id])
        length_N = np.array([len(piece) for piece in pieces], dtype=np.int64)[self.id_N]
        self.text = "".join(pieces[self.id_N].tolist())
        self.end_N = length_N.cumsum()
        self.begin_N = self.end_N - length_N

    def find(self, wanted: str) -> np.ndarray:
        """The positions of this string in the text, in order."""
        places, at = [], self.text.find(wanted)
        while at >= 0:
            places.append(at)
            at = self.text.find(wanted, at + 1)
        return np.array(places, dtype=np.int64)
