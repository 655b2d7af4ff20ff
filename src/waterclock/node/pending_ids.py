"""Where the messages of some ids are: the index of ids proposes, the stored ids decide."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.model.errors import BadInput
from waterclock.node.partition_host import PartitionHost

Int64s = npt.NDArray[np.int64]

NOWHERE = -1


def find_ids(host: PartitionHost, ids: pa.BinaryArray) -> Int64s:
    """Return the offset of the message of each id in a partition, -1 where there is none.

    If an id was published more than once, the message that is pending is meant, or else the last.
    """
    index = host.store.ids
    if index is None:
        raise BadInput(
            "message_id: this node keeps no index of ids (dedup.enabled is off): "
            "name the message by its partition and offset"
        )
    found = np.full(len(ids), NOWHERE, np.int64)
    rows, offsets = index.lookup(index.fingerprints(ids))
    if not len(rows):
        return found
    wanted = ids.take(pa.array(rows)).to_pylist()
    is_it = host.store.reader.has_ids(offsets, wanted)
    rows, offsets = rows[is_it], offsets[is_it]
    # Of several for one row the last assignment stays: those that are pending come last.
    order = np.lexsort((offsets, host.scheduler.is_open(offsets)))
    found[rows[order]] = offsets[order]
    return found
