"""The crash matrix on every planted bug: each must be found, by the finding that names it."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.integration.crash_matrix import Matrix, run_matrix
from tests.integration.plants import PLANTS
from tests.kit.rounds import look_for
from tests.kit.verdict import Findings

ROUNDS = 4


def main() -> int:
    """Run all of them, or those named, and say how many were missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plants", nargs="*", default=list(PLANTS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    def play(name: str, attempt: int) -> tuple[Findings, float]:
        begun_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="waterclock-planted-") as folder:
            seed = options.seed + attempt
            matrix = Matrix(Path(folder), seed, ROUNDS, round_s_max=6.0, plant=name)
            matrix.ends = {"stop": 1} if "stop" in name else {"kill": 1}
            matrix.quiet_s_max = 15.0
            run_matrix(matrix)
        return matrix.history.findings, time.monotonic() - begun_s

    found = look_for(PLANTS, options.plants, play, tries=1, console=Console())
    return sum(not each for each in found.values())


if __name__ == "__main__":
    sys.exit(main())
