"""A node that cannot reach the leader of the records: its folder holds, and it says so."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest

from tests.cluster.through import LedBy
from tests.kit.clock import ManualClock
from tests.node.record_logs import RecordReplica, replicas
from tests.node.test_rights import committed, rights_of
from waterclock.model.errors import NotAuthenticated, Unreachable
from waterclock.model.units import DAY_MS
from waterclock.security.folder import Grant, SecureFolder
from waterclock.security.principals import record_of
from waterclock.security.rights import parse_rights
from waterclock.security.shared_folder import COMMON_FILE, SharedFolder, read_common
from waterclock.security.shared_rights import Change, Standing
from waterclock.server.access import Access
from waterclock.server.cluster.calls import forwarding
from waterclock.server.cluster.calls.remote_calls import RemoteCalls
from waterclock.server.cluster.calls.remote_rights import RemoteRights
from waterclock.server.cluster.rights_sync import APART_MS, RightsSync


class NoWay:
    """The links of a node that has none."""

    def __init__(self) -> None:
        self.linked: list[str] = []

    def ask(self, node_id: str, *args: Any, **options: Any) -> NoReturn:
        raise Unreachable(f"there is no link to {node_id}")


def sync_of(replica: RecordReplica, folder: SecureFolder, links: NoWay) -> tuple[Access, Any]:
    """Return whom a node lets in, and what shares that, for one that does not lead."""
    rights, clock = rights_of(replica), replica._clock
    node: Any = SimpleNamespace(rights=rights, clock=clock, more_problems=[])
    access, peers = Access(clock, folder), links
    remote = RemoteRights(RemoteCalls(links), LedBy("front"), rights)
    sync = RightsSync(node, access, SharedFolder(folder.path), remote, peers)  # type: ignore[arg-type]
    return access, sync


def token_of(folder: SecureFolder, name: str, clock: ManualClock) -> str:
    now_ms = clock.now_ms()
    grant = Grant(rights=parse_rights({"read": ["*"]}), expires_ms=now_ms + DAY_MS)
    credential = folder.add(name, grant, now_ms=now_ms)
    assert credential is not None
    return f"Bearer {credential.token}"


async def test_a_node_that_is_cut_off_goes_by_its_folder_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(forwarding, "ASK_S", 0.01)
    with replicas() as made:
        clock, links = made[0]._clock, NoWay()
        folder = SecureFolder(tmp_path / "secure")
        folder.make(grpc_port=1, http_port=2, now_ms=clock.now_ms())
        token = token_of(folder, "ada", clock)
        leader = rights_of(made[0])
        access, sync = sync_of(made[1], folder, links)
        known = {name: record_of(each) for name, each in access.state.principals.known.items()}
        await committed(made, leader.begin("r", known))
        await sync._pass()
        clock.advance(1_000)
        folder.revoke("ada")
        await access.reload()

        await sync._pass()
        with pytest.raises(NotAuthenticated):
            access.principal_of(token)
        assert sync.problems() == []  # another may lead in a moment
        clock.advance(APART_MS)
        await sync._pass()
        (problem,) = sync.problems()
        assert (problem.name, problem.is_blocking) == ("rightsApart", False)
        assert "have not heard of changes of ada" in problem.detail
        assert "rights_apart" in caplog.text

        removal = Change("ada", Standing(known["ada"]), Standing(ended_ms=clock.now_ms()))
        await committed(made, leader.share([removal], keeps_admin=True))
        links.linked = ["owner"]
        await sync._pass()
        assert sync.problems() == []


async def test_a_folder_that_is_ahead_of_older_records_is_told_of_until_it_goes_by_them(tmp_path):
    with replicas() as made:
        clock, links = made[0]._clock, NoWay()
        links.linked = ["owner"]
        folder = SecureFolder(tmp_path / "secure")
        folder.make(grpc_port=1, http_port=2, now_ms=clock.now_ms())
        leader = rights_of(made[0])
        access, sync = sync_of(made[1], folder, links)
        known = {name: record_of(each) for name, each in access.state.principals.known.items()}
        await committed(made, leader.begin("r", known))
        await sync._pass()
        shared, common = SharedFolder(folder.path), read_common(folder.path)
        assert common is not None
        shared._write_common(msgspec.structs.replace(common, revision=9))

        await sync._pass()
        clock.advance(APART_MS)
        assert ["older backup" in each.detail for each in sync.problems()] == [True]

        (folder.path / COMMON_FILE).unlink()
        await sync._pass()
        assert sync.problems() == []
