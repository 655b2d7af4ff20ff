"""The package as one zip, for clusters whose machines have pyarrow and gRPC but not Waterclock.

    python -m waterclock.spark.shipping waterclock.zip
    spark-submit --py-files waterclock.zip ...

It holds Python files and what lies beside them. Whatever is compiled, such as pyarrow, must be
installed where tasks run: a zip cannot carry it.
"""

import sys
import zipfile
from pathlib import Path

from waterclock.model.errors import BadInput

PACKAGES = ("waterclock", "pyspark_waterclock")
LEFT_OUT = {"__pycache__"}
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""A fixed date: the same files make the same zip."""


def write_zip(path: Path) -> int:
    """Write the packages into a zip; return how many files it has."""
    above = Path(__file__).parents[2]
    files = [
        file
        for package in PACKAGES
        for file in sorted((above / package).rglob("*"))
        if file.is_file() and not LEFT_OUT & set(file.parts)
    ]
    if not files:
        raise BadInput(f"{above} has no packages to ship: this module is in a zip itself")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for file in files:
            entry = zipfile.ZipInfo(file.relative_to(above).as_posix(), EARLIEST)
            entry.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(entry, file.read_bytes())
    return len(files)


def main() -> None:
    """Write the zip that the first argument names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m waterclock.spark.shipping FILE.zip")
    count = write_zip(Path(sys.argv[1]))
    sys.stdout.write(f"{sys.argv[1]}: {count} files\n")


if __name__ == "__main__":
    main()
