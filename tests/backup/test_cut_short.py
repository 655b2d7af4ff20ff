"""Whatever ends `waterclock backup`, the backup before it is whole, and the next one is, too."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.integration.small_disk import MOUNT, ROOT, SmallDisk
from tests.server.served import running_server
from waterclock.cli.app import app
from waterclock.model.sections import LogConfig
from waterclock.storage.backup.restore import Restoring

SMALL = LogConfig(segment_bytes=64 << 10, preallocate_bytes=0)
COMMAND = (sys.executable, "-m", "waterclock")
KILLED = -9

MOMENTS = {
    "before the first segment has its name": "OsFolder.rename",
    "before the manifest": "BackupFolder.save",
    "while the manifest is written": "write_whole",
    "before what is left over is removed": "_prune",
}
DEADLY = """
import os, sys
from waterclock.cli.app import main
from waterclock.storage.backup import writer

owner, _, name = sys.argv.pop(1).rpartition(".")
def kill(*_): os.kill(os.getpid(), 9)
setattr(getattr(writer, owner) if owner else writer, name, kill)
main()
"""
"""The command, killed when it comes to something."""


async def fill(data: Path, first: int, count: int) -> None:
    """Run a node and publish 10 KB messages."""
    async with running_server(data, log=SMALL) as it:
        for number in range(first, first + count):
            await it.publish(b"%d " % number + bytes(10_000))


def back_up(backup: Path, data: Path) -> None:
    result = CliRunner().invoke(app, ["backup", str(backup), "--data", str(data)])
    assert result.exit_code == 0, result.output


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True)


def messages_in(backup: Path, data: Path) -> int:
    """Restore a backup; return how many messages it has."""
    with Restoring(backup, data) as restoring:
        restoring.run(lambda count: None)
        logs = restoring.manifest.cut.logs
    return next(log.end_offset for log in logs if log.path.startswith("topics/"))


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_backup_that_is_killed_leaves_the_one_before_it(tmp_path, moment):
    backup, data = tmp_path / "backup", tmp_path / "data"
    await fill(data, 0, 10)
    back_up(backup, data)
    await fill(data, 10, 10)

    killed = run(sys.executable, "-c", DEADLY, MOMENTS[moment], "backup", backup, "--data", data)
    left = messages_in(backup, tmp_path / "left")
    back_up(backup, data)

    assert killed.returncode == KILLED, killed
    is_finished = MOMENTS[moment] == "_prune"
    assert left == (20 if is_finished else 10)
    assert messages_in(backup, tmp_path / "again") == 20
    names = [file.name for file in backup.rglob("*.seg*")]
    assert not any(name.endswith(".tmp") for name in names)


async def test_a_backup_to_a_full_disk_leaves_the_one_before_it(tmp_path):
    await fill(tmp_path / "data", 0, 10)
    with SmallDisk(1) as disk:
        command = (*disk.prefix, *COMMAND)
        backup = f"{MOUNT}/backup"
        first = run(*command, "backup", backup, "--data", tmp_path / "data")
        await fill(tmp_path / "data", 10, 150)
        full = run(*command, "backup", backup, "--data", tmp_path / "data")
        restored = run(*command, "restore", backup, "--data", tmp_path / "restored")

    assert first.returncode == 0, first
    assert full.returncode == 2
    assert "No space left on device" in full.stderr
    assert "is still whole in /mnt/backup" in full.stderr
    assert restored.returncode == 0, restored
