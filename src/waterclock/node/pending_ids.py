"""Where the messages of some ids are: the index of ids proposes, the stored ids decide.

The index spans the dedup window; a message may be pending for longer. So what the index does not
know is looked for in the side-cars of the segments it has forgotten.
"""

from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.ids import Candidates
from waterclock.model.errors import BadInput
from waterclock.node.partition_host import PartitionHost
from waterclock.storage.forgotten_ids import ForgottenIds
from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]

NOWHERE = -1


class IdSearch:
    """Finds messages by id."""

    def __init__(self) -> None:
        self._forgotten: WeakKeyDictionary[PartitionStore, ForgottenIds] = WeakKeyDictionary()

    def find(self, host: PartitionHost, ids: pa.BinaryArray) -> Int64s:
        """Return the offset of the message of each id in a partition, -1 where there is none.

        If an id was published more than once, the one that is pending is meant, or else the last.
        """
        store = host.store
        index = store.ids
        if index is None:
            raise BadInput(
                "message_id: this node keeps no index of ids (dedup.enabled is off): "
                "name the message by its partition and offset"
            )
        found = np.full(len(ids), NOWHERE, np.int64)
        fps = index.fingerprints(ids)
        self._take(host, ids, index.lookup(fps), found)
        left = np.flatnonzero(found == NOWHERE)
        if len(left):
            forgotten = self._forgotten.get(store)
            if forgotten is None:
                forgotten = self._forgotten[store] = ForgottenIds(store)
            rows, offsets = forgotten.lookup(fps[left])
            self._take(host, ids, Candidates(left[rows], offsets), found)
        return found

    @staticmethod
    def _take(
        host: PartitionHost, ids: pa.BinaryArray, candidates: Candidates, found: Int64s
    ) -> None:
        """Note which candidates are indeed of the ids they are proposed for."""
        rows, offsets = candidates
        if not len(rows):
            return
        wanted = ids.take(pa.array(rows)).to_pylist()
        is_it = host.store.reader.has_ids(offsets, wanted)
        rows, offsets = rows[is_it], offsets[is_it]
        # Of several for one row the last assignment stays: those that are pending come last.
        order = np.lexsort((offsets, host.scheduler.is_open(offsets)))
        found[rows[order]] = offsets[order]
