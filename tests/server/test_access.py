"""Whom a node lets in, and which open calls it ends when the secure folder changes."""

import asyncio
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.kit.clock import ManualClock
from waterclock.model.errors import Forbidden, NotAuthenticated, WaterclockError
from waterclock.runtime.clock import SystemClock
from waterclock.security.credential import Credential
from waterclock.security.folder import EXPIRES_MS, Grant, SecureFolder
from waterclock.security.principals import ANYONE
from waterclock.security.rights import RightKind, parse_rights
from waterclock.server.access import Access, Demand, permit_of

CLOCK = SystemClock()


@pytest.fixture
def folder(tmp_path: Path) -> SecureFolder:
    folder = SecureFolder(tmp_path / "secure")
    folder.make(grpc_port=1, http_port=2, now_ms=CLOCK.now_ms())
    return folder


def added(folder: SecureFolder, name: str, *, again: bool = False, **rights: str) -> Credential:
    """Let somebody in, and return the credential."""
    now_ms = CLOCK.now_ms()
    kinds: dict[RightKind, list[str]] = {kind: [glob] for kind, glob in rights.items()}  # type: ignore[misc]
    grant = Grant(rights=parse_rights(kinds), expires_ms=now_ms + EXPIRES_MS)
    credential = folder.add(name, grant, now_ms=now_ms, is_replacing=again)
    assert credential is not None
    return credential


def test_a_node_without_a_secure_folder_lets_anyone_in() -> None:
    access = Access(CLOCK)

    assert not access.is_secure
    assert access.principal_of(None) is ANYONE
    assert access.principal_of("Bearer whatever") is ANYONE


def test_a_bearer_is_known_by_a_whole_credential_or_by_its_token_alone(
    folder: SecureFolder,
) -> None:
    credential = added(folder, "billing", read="orders")
    access = Access(CLOCK, folder)

    whole = access.principal_of(f"Bearer {credential.encode()}")
    assert whole.name == "billing"
    assert access.principal_of(f"bearer {credential.token}") == whole
    assert access.principal_of(None, "billing").name == "billing"


@pytest.mark.parametrize("given", [None, "", "Basic YTpi", "Bearer ", "Bearer a.b.c", "Bearer"])
def test_who_shows_no_credential_that_is_good_is_not_let_in(
    folder: SecureFolder, given: str | None
) -> None:
    with pytest.raises(NotAuthenticated):
        Access(CLOCK, folder).principal_of(given)


def test_a_reload_ends_open_calls_of_who_lost_the_credential_or_the_right(
    folder: SecureFolder,
) -> None:
    async def main() -> None:
        names = ("revoked", "narrowed", "kept")
        bearers = {name: f"Bearer {added(folder, name, read='orders').token}" for name in names}
        access = Access(CLOCK, folder)
        ended: dict[str, WaterclockError] = {}
        with ExitStack() as held:
            for name in names:
                principal = access.principal_of(bearers[name])
                permit = permit_of(principal, [Demand("read", topic="orders")])
                held.enter_context(access.holding(permit, partial(ended.__setitem__, name)))
            folder.revoke("revoked")
            _take_rights(folder, "narrowed")

            assert await access.reload()

        assert type(ended.pop("revoked")) is NotAuthenticated
        assert type(ended.pop("narrowed")) is Forbidden
        assert not ended
        with pytest.raises(NotAuthenticated):
            access.principal_of(bearers["revoked"])

    asyncio.run(main())


def _take_rights(folder: SecureFolder, name: str) -> None:
    """Take the rights of a principal away, and leave it its token."""
    path = folder.path / "principals.json"
    before = path.read_text()
    start = before.index(f'"{name}"')
    path.write_text(before[:start] + before[start:].replace('"orders"', '"other"', 1))


def test_an_open_call_ends_when_its_credential_expires(folder: SecureFolder) -> None:
    bearer = f"Bearer {added(folder, 'billing', read='orders').token}"
    clock = ManualClock(now_ms=CLOCK.now_ms())
    access = Access(clock, folder)
    ended: list[WaterclockError] = []
    permit = permit_of(access.principal_of(bearer), [Demand("read", topic="orders")])
    with access.holding(permit, ended.append):
        access.recheck()
        assert not ended

        clock.advance(EXPIRES_MS)
        access.recheck()
        access.recheck()

    assert [type(error) for error in ended] == [NotAuthenticated], "it is ended once"


def test_a_folder_that_cannot_be_loaded_changes_nothing(
    folder: SecureFolder, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        bearer = f"Bearer {added(folder, 'billing', read='orders').token}"
        access = Access(CLOCK, folder)
        known = access.principal_of(bearer)
        (folder.path / "principals.json").write_text("{")

        assert not await access.reload()

        assert access.principal_of(bearer) is known
        assert "secure_folder_not_loaded" in caplog.text

    asyncio.run(main())


def test_a_running_node_notices_a_change_of_the_folder_by_itself(folder: SecureFolder) -> None:
    async def main() -> None:
        bearer = f"Bearer {added(folder, 'billing', read='orders').token}"
        access = Access(CLOCK, folder)
        ended: asyncio.Future[WaterclockError] = asyncio.get_running_loop().create_future()
        permit = permit_of(access.principal_of(bearer), [])
        watching = asyncio.ensure_future(access.run())
        with access.holding(permit, ended.set_result):
            folder.revoke("billing")
            error = await ended
        watching.cancel()
        assert isinstance(error, NotAuthenticated)

    asyncio.run(main())


def test_a_refusal_of_something_known_by_a_name_does_not_tell_its_topic(
    folder: SecureFolder,
) -> None:
    bearer = f"Bearer {added(folder, 'billing', read='orders').token}"
    principal = Access(CLOCK, folder).principal_of(bearer)

    with pytest.raises(Forbidden, match="recurrence 'nightly'") as refused:
        permit_of(principal, [Demand("schedule", topic="secret", shown="recurrence 'nightly'")])
    assert "secret" not in str(refused.value)
