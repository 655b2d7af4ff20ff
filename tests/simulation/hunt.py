"""Run histories of whole nodes, seed after seed, until one breaks a guarantee.

    python -m tests.simulation.hunt --seed 17 --count 1

tells one of them again, with all that was done in it.
"""

import argparse
import logging
import sys
import time

from tests.simulation.node_history import STEPS, NodeHistory


class Broken(AssertionError):
    """A history in which a scheduled message was broken."""

    def __init__(self, seed: int, story: list[str], problem: BaseException) -> None:
        super().__init__(f"{problem!r}\n\nagain with: make hunt N=1 SEED={seed}")
        self.story = story


def live(seed: int, steps: int = STEPS) -> None:
    """Live through the history of a seed."""
    history = NodeHistory(seed)
    try:
        history.run(steps)
    except Exception as error:
        raise Broken(seed, history.story, error) from error


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--count", type=int, default=1_000, help="how many histories")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each")
    asked = parser.parse_args()
    print(f"replay with: make hunt N={asked.count} SEED={asked.seed}", flush=True)
    logging.disable(logging.WARNING)  # nodes that were paused say so
    begun = time.monotonic()
    for seed in range(asked.seed, asked.seed + asked.count):
        try:
            live(seed, asked.steps)
        except Broken as broken:
            print(*broken.story, sep="\n")
            sys.exit(f"seed {seed}: {broken}")
    print(f"{asked.count} histories in {time.monotonic() - begun:.0f} s: no guarantee was broken")


if __name__ == "__main__":
    main()
