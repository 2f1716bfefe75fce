"""Write the training puzzles that a model seldom solves, as JSON Lines.

    python benchmarks/hard_puzzles.py MODEL_OR_CHECKPOINT --out hard.jsonl [--most 0.25]
        [--held-out hard_heldout.jsonl]

Each puzzle is answered 16 times (--rollouts); puzzles with at most the share --most of right
answers are written, with their numbers, target and a right answer. With --held-out every fourth of
them goes to that file instead. To train on them:

    strop train METHOD --data hard.jsonl --reward strop.environments.countdown:correct \\
        rollout.max_tokens=12
"""

import argparse
import json
from pathlib import Path

from entropy_theorem import open_world, rollouts

from strop.batch import segments
from strop.environments.countdown import puzzles


def main() -> None:
    """Sample, choose and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, help="every fourth puzzle goes here")
    parser.add_argument("--most", type=float, default=0.25, help="largest share of right answers")
    parser.add_argument("--rollouts", type=int, default=16)
    parser.set_defaults(data=[], prompts=len(puzzles("train")))
    options = parser.parse_args()
    world, algorithm = open_world(options.model, options)
    batch = rollouts(world, algorithm, 0)
    world.services.close()
    share_P = segments.mean(batch["reward_B"], batch["group_B"], batch.size("P"))
    by_uid = {prompt.uid: prompt for prompt in world.services.task.train}
    lines = [
        json.dumps({"prompt": by_uid[uid].prompt, **by_uid[uid].columns})
        for uid, share in zip(batch["uid_P"].tolist(), share_P.tolist(), strict=True)
        if share <= options.most
    ]
    kept = [line for number, line in enumerate(lines) if not options.held_out or number % 4]
    options.out.write_text("".join(f"{line}\n" for line in kept))
    if options.held_out:
        options.held_out.write_text("".join(f"{line}\n" for line in lines[::4]))
    print(f"{len(lines)} of {len(share_P)} puzzles, mean success {float(share_P.mean()):.3f}")


if __name__ == "__main__":
    main()
