"""The files of the console: all of them are in the wheel, and together they are small."""

import subprocess
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from waterclock.server.console.assets import FOLDER, assets

ROOT = Path(__file__).parents[2]
STATIC = "src/waterclock/server/console/static"
BYTES_MAX = 300_000


def test_a_wheel_has_every_file_of_the_console():
    listed = subprocess.run(
        ["git", "ls-files", STATIC], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    # As the build chooses them, without building.
    included = {file.relative_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}

    assert len(listed) > 20
    assert [path for path in listed if path not in included] == []
    assert {Path(path).name for path in listed} == set(assets())


def test_the_console_stays_small():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= BYTES_MAX
