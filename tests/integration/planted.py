"""The crash matrix on every planted bug: each must be found, by the finding that names it."""

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.integration.crash_matrix import Matrix, run_matrix
from tests.integration.plants import PLANTS

ROUNDS = 4


def found_on(name: str, seed: int) -> dict[str, int]:
    """Return what is found on a node with that bug."""
    with tempfile.TemporaryDirectory(prefix="waterclock-planted-") as folder:
        matrix = Matrix(Path(folder), seed, ROUNDS, round_s_max=6.0, plant=name)
        matrix.ends = {"stop": 1} if "stop" in name else {"kill": 1}
        matrix.quiet_s_max = 15.0
        run_matrix(matrix)
        return dict(matrix.history.findings.counts)


def main() -> int:
    """Run all of them, or those named, and tell which were found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plants", nargs="*", default=list(PLANTS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    console = Console()
    table = Table("planted", "found", "given away by", title="Planted bugs")
    missed = 0
    for name in options.plants:
        found = found_on(name, options.seed)
        is_found = bool(PLANTS[name].gives_away & set(found))
        missed += not is_found
        found_by = ", ".join(f"{kind} {count}" for kind, count in sorted(found.items()))
        table.add_row(name, "yes" if is_found else "NO", found_by)
        console.print(f"{name}: {'found' if is_found else 'MISSED'} ({found_by})", soft_wrap=True)
    console.print(table)
    return missed


if __name__ == "__main__":
    sys.exit(main())
