"""The core of waterclock.burrow is pure, and stands on the model alone."""

import pytest

from tests.tidy.test_imports import IMPURE_EXCEPTIONS, IMPURE_MODULES, SRC, imports_of

CORE = (
    "backpressure", "commits", "config", "effects", "engine", "failures", "offset_map", "partition",
    "records", "retries", "scaling", "work",
)  # fmt: skip


@pytest.mark.parametrize("module", CORE)
def test_a_module_of_the_core_imports_no_clock_thread_or_dice_and_none_of_the_shell(module):
    found = [
        (imported, name)
        for _, imported, name in imports_of(SRC / "burrow" / "core" / f"{module}.py", root=SRC)
        if (imported.split(".")[0] in IMPURE_MODULES and (imported, name) not in IMPURE_EXCEPTIONS)
        or (imported.startswith("waterclock.burrow.") and imported.split(".")[2] != "core")
        or (
            imported.startswith("waterclock.") and imported.split(".")[1] not in ("burrow", "model")
        )
    ]

    assert found == []
