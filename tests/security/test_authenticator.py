"""The authenticator: who sends a token, now; and what is remembered of it."""

from dataclasses import replace

import pytest

from tests.security.moments import DAY_MS, NOW_MS
from waterclock.model.errors import NotAuthenticated
from waterclock.security import authenticator as module
from waterclock.security.authenticator import Authenticator
from waterclock.security.folder import Grant, SecureFolder
from waterclock.security.principals import Principal
from waterclock.security.quotas import Quotas
from waterclock.security.rights import parse_rights
from waterclock.security.tokens import verify

ENDS_MS = NOW_MS + DAY_MS
GRANT = Grant(rights=parse_rights({"publish": ["orders"]}), expires_ms=ENDS_MS)


def given(folder: SecureFolder, name: str = "billing", **changes: object) -> str:
    grant = replace(GRANT, **changes)  # type: ignore[arg-type]
    credential = folder.add(name, grant, now_ms=NOW_MS, is_replacing=True)
    assert credential is not None
    return credential.token


def count_verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each token that is verified."""
    seen: list[str] = []

    def counted(token, keys, *, now_ms):
        seen.append(token)
        return verify(token, keys, now_ms=now_ms)

    monkeypatch.setattr(module, "verify", counted)
    return seen


def test_a_token_is_verified_once(folder, monkeypatch):
    token = given(folder)
    known = Authenticator(folder.load())
    verified = count_verified(monkeypatch)

    first = known.principal_of(token, NOW_MS)

    assert known.principal_of(token, NOW_MS + 1) is first
    assert len(verified) == 1
    assert token not in repr(vars(known)), "only its hash is kept"


def test_a_whole_credential_is_as_good_as_its_token(folder):
    credential = folder.add("billing", GRANT, now_ms=NOW_MS)
    known = Authenticator(folder.load())

    assert known.principal_of(credential.encode(), NOW_MS) == known.principal_of(
        credential.token, NOW_MS
    )


def test_a_token_that_is_remembered_ends_when_it_ends(folder):
    token = given(folder)
    known = Authenticator(folder.load())
    known.principal_of(token, ENDS_MS - 1)

    with pytest.raises(NotAuthenticated, match="expired"):
        known.principal_of(token, ENDS_MS)


def test_a_refusal_is_not_remembered_and_takes_no_room(folder):
    known = Authenticator(folder.load())
    for number in range(10):
        with pytest.raises(NotAuthenticated):
            known.principal_of(f"a.b.{number}", NOW_MS)

    assert known._cache == {}


def test_so_many_tokens_are_remembered_and_no_more(folder, monkeypatch):
    monkeypatch.setattr(module, "CACHE_MAX", 2)
    tokens = [given(folder, f"p{number}") for number in range(5)]
    known = Authenticator(folder.load())

    assert [known.principal_of(token, NOW_MS).name for token in tokens] == [
        f"p{number}" for number in range(5)
    ]
    assert len(known._cache) <= 2


def test_a_change_of_rights_holds_with_the_next_call(folder):
    token = given(folder)
    known = Authenticator(folder.load())
    before = known.principal_of(token, NOW_MS)

    token = given(folder, rights=parse_rights({"read": ["*"]}), quotas=Quotas(topics=1))
    known.reload(folder.load())

    after = known.principal_of(token, NOW_MS)
    assert not before.rights.allows("read")
    assert after.rights.allows("read")
    assert after.quotas == Quotas(topics=1)


def test_who_is_revoked_is_refused_after_the_reload_also_if_remembered(folder):
    token = given(folder)
    known = Authenticator(folder.load())
    principal = known.principal_of(token, NOW_MS)
    folder.revoke("billing")
    known.reload(folder.load())

    with pytest.raises(NotAuthenticated, match="revoked"):
        known.principal_of(token, NOW_MS)
    with pytest.raises(NotAuthenticated, match="revoked"):
        known.current(principal, NOW_MS)


def test_a_call_that_goes_on_asks_for_its_rights_of_today(folder):
    known = Authenticator(folder.load())
    token = given(folder)
    known.reload(folder.load())
    principal = known.principal_of(token, NOW_MS)
    assert known.current(principal, NOW_MS) is principal

    folder.renew("billing", expires_ms=ENDS_MS, now_ms=NOW_MS)
    known.reload(folder.load())
    assert known.current(principal, NOW_MS) == principal

    given(folder, rights=parse_rights({"read": ["*"]}))
    known.reload(folder.load())
    with pytest.raises(NotAuthenticated, match="replaced"):
        known.current(principal, NOW_MS)
    with pytest.raises(NotAuthenticated, match="expired"):
        known.current(principal, ENDS_MS)


def test_a_certificate_is_its_principal(folder):
    given(folder)
    known = Authenticator(folder.load())

    billing = known.principal_of_certificate("billing")

    assert billing == Principal("billing", GRANT.rights)
    assert known.current(billing, ENDS_MS * 2) == billing
    for name in ("node:localhost", "", "nobody"):
        with pytest.raises(NotAuthenticated):
            known.principal_of_certificate(name)


def test_a_token_of_another_node_is_refused(folder, tmp_path):
    other = SecureFolder(tmp_path / "other")
    other.make(grpc_port=1, http_port=2, now_ms=NOW_MS)

    with pytest.raises(NotAuthenticated, match="does not know"):
        Authenticator(folder.load()).principal_of(given(other), NOW_MS)


@pytest.mark.parametrize("token", ["", "a.b.c", "\udc80", "é.é.é", "." * 5_000])
def test_whatever_is_sent_is_refused(folder, token):
    with pytest.raises(NotAuthenticated):
        Authenticator(folder.load()).principal_of(token, NOW_MS)
