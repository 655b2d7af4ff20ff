"""Which rows a node meant when it refused a batch: all over the limit that it names, at once.

Halving a batch finds one bad row in a dozen requests; a batch of ten thousand bad ones would take
twenty thousand. The refusal says which field is over which limit, so the rows can be measured here.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.spark.write.schema import Rows, header_bytes, pair_bounds, sizes_of

Bools = npt.NDArray[np.bool_]
Measure = Callable[[pa.RecordBatch], npt.NDArray[np.integer]]


def refused_rows(rows: pa.RecordBatch, refusal: BadInput) -> Bools | None:
    """Return which messages are over the limit that a refusal names; None if that finds none."""
    if not isinstance(refusal, LimitExceeded) or refusal.limit is None:
        return None
    measure = _MEASURES.get(refusal.field or "")
    if measure is None:
        return None
    is_over = np.asarray(measure(rows) > refusal.limit)
    return is_over if bool(is_over.any()) else None


def _length(name: str) -> Measure:
    def measure(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        return _filled(pc.binary_length(rows.column(name)))

    return measure


def _filled(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(column.fill_null(0).to_numpy()).astype(np.int64)


_MEASURES: dict[str, Measure] = {
    "key bytes": _length("key"),
    "message_id bytes": _length("message_id"),
    "message bytes": lambda rows: sizes_of(Rows(rows, rows.column("message_id"))),
    "headers": lambda rows: np.diff(pair_bounds(rows.column("headers"))),
    "header bytes": lambda rows: header_bytes(rows.column("headers")),
    "due_ms": lambda rows: _filled(rows.column("due_ms")),
}
