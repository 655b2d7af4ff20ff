"""A backup written by every version so far is restored by today's code, message for message."""

import shutil
from pathlib import Path

import pytest

from waterclock.model.errors import ForeignFile
from waterclock.storage.backup.manifest import decode_manifest
from waterclock.storage.backup.restore import Restoring
from waterclock.storage.local_log import open_log

V1 = Path(__file__).parent / "backup_v1"
LATER_MS = 4_070_908_800_000


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Return a copy of the sample."""
    return Path(shutil.copytree(V1, tmp_path / "backup"))


def test_the_messages_of_a_backup_are_those_that_were_published(backup, tmp_path):
    with Restoring(backup, tmp_path / "data") as restoring:
        restoring.run(lambda count: None)

    (log,) = (tmp_path / "data" / "topics").glob("orders-*/0/log")
    with open_log(log) as opened:
        found = [(m.offset, m.message.message_id, m.message.key) for m in opened.read()]
        assert found == [(n, b"id-%d" % n, b"k%d" % (n % 3)) for n in range(12)]
        assert [tuple(each) for each in opened.scheduled()] == [(12, LATER_MS)]
        assert len(list(log.glob("*.seg"))) == 4


def test_the_manifest_says_whose_backup_it_is_and_from_when():
    manifest = decode_manifest("manifest.json", (V1 / "manifest.json").read_bytes())

    cut = manifest.cut
    assert (cut.node, cut.version, cut.streams_elsewhere) == ("test", "0.1.0", "")
    assert manifest.started_ms <= cut.cut_ms <= manifest.finished_ms
    assert [log.path.partition("-")[0] for log in cut.logs] == ["meta", "topics/orders", "streams"]
    assert len(manifest.checksums) == 6


def test_a_version_that_is_not_known_is_refused_by_its_number(backup, tmp_path):
    manifest = backup / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":1,', b'"version":2,', 1))

    with pytest.raises(ForeignFile, match="version 2"):
        Restoring(backup, tmp_path / "data")
