"""A shortage that passes, or a quiet hour, costs no message and no restart."""

import resource
import subprocess
import sys
import threading
from pathlib import Path

from waterclock.model.message import Message
from waterclock.model.sections import LogConfig
from waterclock.storage.local_log import open_log

OUT_OF_DESCRIPTORS = """
import os, resource, sys
from waterclock.model.sections import LogConfig
from waterclock.model.errors import StorageFull
from waterclock.model.message import Message
from waterclock.storage.local_log import open_log

log = open_log(sys.argv[1], log=LogConfig(segment_bytes=4096, preallocate_bytes=0))
log.publish([Message(b"v" * 3000, message_id=b"a")])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    log.publish([Message(b"v" * 3000, message_id=b"b")])
    print("published")
except StorageFull as error:
    print("refused:", error)
for number in held:
    os.close(number)
print("then offset", log.publish([Message(b"v" * 3000, message_id=b"b")]).offsets[0])
log.close()
"""


def test_without_descriptors_a_publish_is_refused_and_the_log_goes_on_later(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 64
    command = [sys.executable, "-c", OUT_OF_DESCRIPTORS, str(tmp_path / "log")]

    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert out[0].startswith("refused: ")
    assert "Too many open files" in out[0]
    assert out[1:] == ["then offset 1"]


def test_under_interval_the_last_publish_is_flushed_though_nobody_publishes_again(
    tmp_path: Path,
) -> None:
    flushed = threading.Event()
    with open_log(tmp_path / "log", log=LogConfig(fsync="interval", fsync_interval_ms=1)) as log:
        real = log._commit.step

        def step() -> None:
            real()
            if log._store.flushed_end == log._store.end == 1:
                flushed.set()

        log.publish([Message(b"v", message_id=b"a")])
        log._commit.step = step  # type: ignore[method-assign]

        assert flushed.wait(timeout=30)
