"""Spark on our topics, beside native Parquet and Spark's own Kafka source.

    python -m benchmarks.spark              the table, then one line of JSON
    python -m benchmarks.spark --record     also writes RESULTS.md and the plot beside it

All have the same 20 million rows (8 B key, 100 B random value, no headers) in four partitions, and
all columns are read, into Spark's sink for nothing. One session with the settings of `waterclock
pipeline` does all of it. Parquet holds the columns ours has, as Spark writes it by default; Kafka's
has its own seven. Reads include what Spark takes to plan them. A ratio is ours by theirs. Written
rows are acknowledged after an fsync. What has no peer is in `spark_jobs.py`.
"""

from statistics import median

from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import Contest, cpu_note
from benchmarks.harness import Bar, Report, Result
from benchmarks.spark_jobs import SparkJobs, job_steps
from benchmarks.spark_stage import FILTERED, Stage

ROUNDS = 3
RATE = "rows/s"
BARS = {"write_rows": Bar(300_000)}
FRACTION_BAR = Bar(0.05, is_floor=False)
AGREED = (
    "read_rows",
    "read_filtered_fraction",
    "write_rows",
    "compact_10m_s",
    "fast_replay",
    "publish_p99_during_schedule_ms",
)
"""The names that are compared over time; all others are extra."""
ORDER = {case: number for number, case in enumerate(AGREED)}
RATIO_BARS = {"read_vs_parquet": Bar(0.7), "read_vs_kafka": Bar(2)}

STAGE = Stage()
CONTEST = Contest(
    bench="spark",
    openers={"node": STAGE.node, "parquet": STAGE.parquet, "kafka": STAGE.kafka},
    ours=STAGE.our_cases(),
    theirs=STAGE.their_cases(),
    rounds=ROUNDS,
)
PLOT = {
    "read_rows": "Waterclock, read",
    "parquet_read_rows": "Parquet, read",
    "kafka_read_rows": "Kafka, read",
    "stream_read_rows": "Waterclock, streaming read",
    "kafka_stream_read_rows": "Kafka, streaming read",
    "write_rows": "Waterclock, write",
    "kafka_write_rows": "Kafka, write",
}


def main() -> None:
    """Run everything."""
    plots = {"spark": ("Rows through Spark on two cores", PLOT)}
    run_bench(CONTEST, __doc__, finish, plots=plots, then=SparkJobs, steps=job_steps())


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put the results into the report, and compare."""
    report.machine["spark"] = STAGE.version
    for case in (*CONTEST.ours, *CONTEST.theirs):
        if case.name in watches and case.name not in FILTERED:
            found = watches[case.name]
            note = "; ".join(filter(None, [case.note, cpu_note(found)]))
            results = report.results if case in CONTEST.ours else report.peers
            rates = [watch.rate for watch in found]
            results.append(Result(case.name, rates, RATE, BARS.get(case.name), note))
    add_fraction(report, watches)
    report.results.sort(key=lambda result: ORDER.get(result.case, len(ORDER)))
    compare(report)


def add_fraction(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Tell what part of a full read's time a thousandth takes: the slower of the two ways."""
    full = watches["read_rows"]
    notes, parts = [], []
    for name in FILTERED:
        found = watches[name]
        parts.append([part.wall_s / whole.wall_s for part, whole in zip(found, full, strict=True)])
        wall = median(watch.wall_s for watch in found)
        notes.append(f"{name} {wall:.2f} s for {found[0].messages:,} rows")
    samples = [max(both) for both in zip(*parts, strict=True)]
    note = f"{'; '.join(notes)}; all {median(watch.wall_s for watch in full):.2f} s"
    report.add("read_filtered_fraction", samples, "of a full read", bar=FRACTION_BAR, note=note)


def compare(report: Report) -> None:
    """Put the ratios into the report, and what they must be."""
    values = {result.case: result.value for result in (*report.results, *report.peers)}
    for theirs in report.peers:
        peer, _, case = theirs.case.partition("_")
        report.ratios[f"{case.removesuffix('_rows')}_vs_{peer}"] = values[case] / theirs.value
    report.ratio_bars |= RATIO_BARS
    if "kafka_read_rows" in values:
        report.notes.append(
            "Kafka's connector is that of Spark 4.2.0, the newest there is, in the same session."
        )


if __name__ == "__main__":
    main()
