"""Predicts a row's next token: the one that followed the same few tokens in an earlier row.

A table holds one token for each ending of a text, and the chance that it is drawn there. Rows are
looked up and entered together; a new entry replaces an older one in the same place of the table.
"""

import numpy as np

from strop.engines.local.slots import RECENT
from strop.engines.sampling import mix

# Endings that are looked up; the first known one counts. Each has a number of tokens, and says
# whether only the own group's text counts. Other groups' text helps where no longer one is known.
ENDS = ((8, True), (4, True), (5, False))
PLACES = 1 << 18  # entries of the table
MEMORY = 0.9  # decay per step of the sums of predicted and accepted drafts
PRIOR = 8.0  # tokens' worth of trust before any were drawn


class Continuations:
    """The table. `foretell` looks up, `learn` enters, `judge` records how good the chances were."""

    def __init__(self) -> None:
        length, own = (np.array(each) for each in zip(*ENDS, strict=True))
        numbers = mix(np.arange(1, (RECENT + 2) * len(ENDS) + 1, dtype=np.uint64)) | np.uint64(1)
        factors = numbers.reshape(RECENT + 2, len(ENDS))
        used = np.arange(RECENT)[:, None] >= RECENT - length
        self.by_token = np.where(used, factors[:RECENT], np.uint64(0))  # [RECENT, ends]
        self.by_group = np.where(own, factors[RECENT], np.uint64(0))
        self.salt = factors[RECENT + 1]
        self.key = np.zeros(PLACES, np.uint64)  # 0: empty
        self.token = np.zeros(PLACES, np.int32)
        self.chance = np.zeros(PLACES, np.float32)
        self.foretold = self.came = 0.0

    def clear(self) -> None:
        """Empty the table."""
        self.key[:] = 0
        self.foretold = self.came = 0.0

    def foretell(
        self, recent: np.ndarray, group: np.ndarray, most: np.ndarray, least: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [N, K] and the chances [N, K] that they and those before them are drawn.

        recent [N, RECENT]: newest tokens; most [N]: most tokens of a row. A row's tokens end where
        the chance falls below `least`; from there on it is 0.
        """
        wide = int(most.max(initial=0))
        token, chance = np.zeros((len(most), wide), np.int64), np.zeros((len(most), wide))
        row = np.flatnonzero(most > 0)
        trust = min((self.came + PRIOR) / (self.foretold + PRIOR), 1.0)
        window, so_far = recent[row], np.full(len(row), trust)
        for place in range(wide):
            next_token, next_chance = self._look_up(window, group[row])
            so_far = so_far * next_chance
            kept = np.flatnonzero((so_far >= least) & (most[row] > place))
            if not len(kept):
                return token[:, :place], chance[:, :place]
            row, so_far, next_token = row[kept], so_far[kept], next_token[kept]
            window = np.concatenate([window[kept, 1:], next_token[:, None]], axis=1)
            token[row, place], chance[row, place] = next_token, so_far
        return token, chance

    def learn(
        self, recent: np.ndarray, group: np.ndarray, token: np.ndarray, chance: np.ndarray
    ) -> None:
        """Enter the token that was drawn after each of these endings, with its probability."""
        key = self._keys(recent, group)
        place = key & np.uint64(PLACES - 1)
        known, before = self.key[place] == key, self.chance[place]
        same = known & (self.token[place] == token)
        stays = known & ~same & (before > chance)
        other = np.minimum(before, 1 - chance)  # the chance of the token that stays
        now = np.where(same, (before + chance) / 2, np.where(stays, (before + other) / 2, chance))
        self.token[place] = np.where(stays, self.token[place], token)
        self.key[place], self.chance[place] = key, now

    def judge(self, foretold: float, came: int) -> None:
        """Record that `came` drafts were accepted where the chances predicted `foretold`."""
        self.foretold = MEMORY * self.foretold + foretold
        self.came = MEMORY * self.came + came

    def _look_up(self, recent: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        key = self._keys(recent, group)
        place = key & np.uint64(PLACES - 1)
        known = self.key[place] == key
        first, every = known.argmax(axis=0), np.arange(len(group))
        chosen = place[first, every]
        chance = np.where(known[first, every], self.chance[chosen], 0.0)
        return self.token[chosen].astype(np.int64), chance

    def _keys(self, recent: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Keys [ends, N] of the endings, never 0."""
        tokens = (recent + 1).astype(np.uint64) @ self.by_token
        groups = group.astype(np.uint64)[:, None] * self.by_group
        return mix((tokens + groups + self.salt).T) | np.uint64(1 << 63)
