"""A disk that rots under a log while it is open."""

from waterclock.log.frame import HEADER_BYTES
from waterclock.node.partition.host import PartitionHost
from waterclock.storage.folders.os_folder import OsFolder


def rot(host: PartitionHost, offset: int) -> None:
    """Flip a bit of the frame that spans an offset, behind the back of who has it mapped."""
    store = host.store
    segment = store.segments[store.reader.segment_at(offset)]
    position = segment.position_of(offset) + HEADER_BYTES + 20
    assert isinstance(store.folder, OsFolder)
    with (store.folder.path / segment.file.name).open("r+b") as file:
        file.seek(position)
        (before,) = file.read(1)
        file.seek(position)
        file.write(bytes([before ^ 1]))
