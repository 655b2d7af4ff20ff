"""The parallel consumer of a secured node."""

import pytest

from tests.client.secured import secured_folder, secured_node
from waterclock.burrow.runtime.waterclock_source import WaterclockSource
from waterclock.client.client import connect
from waterclock.model.errors import BadConfig, NotAuthenticated


async def test_a_source_connects_with_a_credential(tmp_path):
    async with secured_node(secured_folder(tmp_path / "secure")) as node:
        in_the_open = WaterclockSource("orders", group="billing", address=node.address)
        with pytest.raises(NotAuthenticated, match="give a credential"):
            await in_the_open.open(None)  # type: ignore[arg-type]

        source = WaterclockSource("orders", group="billing", credential=node.credential.encode())
        await source.open(None)  # type: ignore[arg-type]
        await node.until(lambda: any(call.endswith("Subscribe") for call in node.guard.calls))
        await source.close()
        assert node.credential.token not in repr(source)


async def test_a_client_brings_its_own_credential(tmp_path):
    folder = secured_folder(tmp_path / "secure")
    with pytest.raises(BadConfig, match="credential"):
        WaterclockSource(
            "orders", group="billing", client=connect(), credential=f"@{folder.admin_credential}"
        )
