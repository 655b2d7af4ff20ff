"""What spark-submit runs: a job of the pipeline, with the arguments of the command line.

    spark-submit --master spark://host:7077 --py-files waterclock.zip submit.py report orders

It runs the whole `waterclock` program with `pipeline` put before the arguments, so that there is
one way to say what a job is to do. The session finds that spark-submit has started the JVM, and
takes master and settings from it.
"""

import runpy
import sys


def main() -> None:
    """Run the job of this process's arguments."""
    sys.argv = ["waterclock", "pipeline", *sys.argv[1:]]
    runpy.run_module("waterclock", run_name="__main__")


if __name__ == "__main__":
    main()
