"""An environment behind OpenEnv's own server: `python server.py PORT`."""

import sys

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    text: str
    speed: int = 1


class Hint(Observation):
    text: str


class Digits(Environment):
    """Say the seed's last digit; three guesses. `crash` raises, `mute` ends without a reward."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **given):
        self.digit, self.turn = str((seed or 0) % 10), 0
        return Hint(text=given.get("opening", "0-9:"))

    def step(self, action, timeout_s=None, **given):
        self.turn += 1
        if action.text == "crash":
            raise RuntimeError("it broke")
        if action.text == "mute":
            return Hint(text="", done=True)
        right = action.text == self.digit
        over = right or self.turn == 3
        return Hint(text=f":{self.turn}=", done=over, reward=float(right) if over else None)

    @property
    def state(self):
        return State(step_count=self.turn)


if __name__ == "__main__":
    app = create_app(Digits, Guess, Hint, env_name="digits", max_concurrent_envs=4)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
