"""What pages show in Python and SQL runs, twice, in the session that the tests share.

`make docs-run` runs the same from the wheel, in a session of its own, and the commands as well.
"""

import asyncio

import pytest

from tests.docs.pages import PAGES, blocks
from tests.docs.play import run_program


@pytest.mark.parametrize("page", ["README.md", "spark.md"])
def test_programs_of_a_page_run_twice(spark, node, page, tmp_path):
    node.client.publish("orders", b'{"city": "Oslo"}', key=b"ada")
    for topic in ("reminders", "counts"):
        node.client.topics.create(topic, if_absent=True)
    (file,) = (each for each in PAGES if each.name == page)
    shown = [
        block
        for block in blocks(file.read_text())
        if block.kind == "sql" or (block.kind == "python" and 'waterclock")' in block.text)
    ]
    assert shown

    for _ in range(2):
        names: dict[str, object] = {"spark": spark}
        for block in shown:
            # The environment, where the address would be, was given to the JVM when it began.
            text = block.text.replace("localhost:9000", node.servers)
            here = f'.format("waterclock").option("servers", "{node.servers}")'
            text = text.replace('.format("waterclock")', here)
            text = text.replace('"checkpoints/', f'"{tmp_path}/')  # the JVM has a folder of its own
            if block.kind == "sql":
                for statement in filter(str.strip, text.split(";")):
                    spark.sql(statement).collect()
            else:
                with asyncio.Runner() as loop:
                    run_program(text, f"{page}:{block.line}", names, loop)
