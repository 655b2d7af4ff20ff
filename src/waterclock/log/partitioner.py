"""Which partition a message goes to: that of its key, or of its id if it has none.

The hash is the one of the id index under a fixed seed, taken over a whole column at once. It is
part of the product: a client, or another node, that computes it gets the same answer, for ever.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.arrays import as_numpy
from waterclock.log.id_index.fingerprint import fingerprint, fingerprints
from waterclock.log.schema import binary_scalar

Int32s = npt.NDArray[np.int32]

SEED = 0x57617465


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key among so many."""
    return fingerprint(key, SEED) % partitions


def partitions_of_keys(keys: pa.BinaryArray, partitions: int, keyless: int | Int32s = 0) -> Int32s:
    """Return the partition of each key; rows without one take theirs from `keyless`."""
    filled = keys.fill_null(binary_scalar(b"")) if keys.null_count else keys
    found = (fingerprints(filled, SEED) % np.uint64(partitions)).astype(np.int32)
    if keys.null_count:
        return np.where(as_numpy(keys.is_null()), keyless, found).astype(np.int32)
    return found


def partitions_of_messages(keys: pa.BinaryArray, ids: pa.BinaryArray, partitions: int) -> Int32s:
    """Return the partition of each message: where its key belongs, or its id if it has none."""
    keyless = partitions_of_keys(ids, partitions) if keys.null_count else 0
    return partitions_of_keys(keys, partitions, keyless=keyless)
