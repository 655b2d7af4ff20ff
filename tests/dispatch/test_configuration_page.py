"""`docs/dispatch_configuration.md` lists exactly the settings there are.

Its table is made from the code: WATERCLOCK_REWRITE=1 writes it anew; then read the diff.
"""

import ast
import inspect
import os
import textwrap
from pathlib import Path

import pytest

from waterclock.dispatch.config import SECTIONS, DispatcherConfig, WorkerConfig, load_config
from waterclock.model.settings import Section, settings_of

PAGE = Path(__file__).parents[2] / "docs" / "dispatch_configuration.md"
HEAD = ["| setting | default | allowed | what it trades |", "|---|---|---|---|"]


def docstrings(section: type[Section]) -> dict[str, str]:
    """Return the text below each field of a section."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                found[name] = " ".join(text.split())
    return found


def table() -> list[str]:
    rows = []
    for section in SECTIONS.values():
        said = docstrings(section)
        for setting in settings_of(section):
            default = setting.kind.show(setting.default) or "empty"
            what = said[setting.attribute]
            rows.append(f"| `{setting.path}` | {default} | {setting.kind.allowed} | {what} |")
    return HEAD + rows


def rewrite_page() -> None:
    lines = PAGE.read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rest = [line for line in lines[start:] if not line.startswith("|")]
    PAGE.write_text("\n".join([*lines[:start], *table(), *rest]) + "\n")


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_every_setting_says_what_it_trades(section):
    assert set(docstrings(section)) == {setting.attribute for setting in settings_of(section)}


def test_the_page_lists_every_setting_with_its_default_and_range():
    if os.environ.get("WATERCLOCK_REWRITE"):
        rewrite_page()

    lines = PAGE.read_text().splitlines()
    assert [line for line in lines if line.startswith("|")] == table()


def test_the_example_on_the_page_loads():
    example = PAGE.read_text().split("```yaml\n")[1].split("```")[0]

    dispatcher = load_config(DispatcherConfig, yaml_text=example, environ={}, flags={})
    worker = load_config(WorkerConfig, yaml_text=example, environ={}, flags={})

    assert dispatcher.output == worker.output == "readings"
