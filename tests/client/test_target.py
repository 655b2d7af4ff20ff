"""Where a client connects and as whom: what is nearer to the call wins, and no secret is shown."""

import pytest

from tests.client.secured import credential_of
from waterclock.client.target import Target, target_of
from waterclock.model.errors import BadInput
from waterclock.security.credential import Credential


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    monkeypatch.delenv("WATERCLOCK_ADDRESS", raising=False)
    monkeypatch.delenv("WATERCLOCK_CREDENTIAL", raising=False)


@pytest.fixture
def credential(secure_folder) -> Credential:
    return credential_of(secure_folder, "node-1:9000", "https://node-1:8080")


def test_without_anything_it_is_this_computer_in_the_open():
    assert target_of() == Target("localhost:9000", None)


def test_a_credential_says_where_the_node_is(credential):
    text = credential.encode()
    target = Target("node-1:9000", credential)

    assert target_of(None, credential) == target
    assert target_of(None, text) == target
    assert target_of(text) == target
    assert target.http_address == "https://node-1:8080"


def test_a_credential_is_read_from_a_file(credential, tmp_path):
    (tmp_path / "billing.credential").write_text(f"{credential.encode()}\n")

    assert target_of(credential=f"@{tmp_path}/billing.credential").credential == credential


def test_an_address_that_is_given_wins_over_the_credentials(credential):
    target = target_of("node-2:9001", credential)

    assert target == Target("node-2:9001", credential)
    assert target.http_address is None, "the credential does not say where that node has HTTP"


def test_the_environment_is_asked_for_what_is_not_given(credential, monkeypatch):
    monkeypatch.setenv("WATERCLOCK_CREDENTIAL", credential.encode())
    assert target_of() == Target("node-1:9000", credential)
    assert target_of("node-2:9001") == Target("node-2:9001", credential)

    monkeypatch.setenv("WATERCLOCK_ADDRESS", "node-3:9000")
    assert target_of() == Target("node-3:9000", credential)


def test_a_credential_that_is_given_wins_over_an_address_in_the_environment(
    credential, monkeypatch
):
    monkeypatch.setenv("WATERCLOCK_ADDRESS", "node-3:9000")

    assert target_of(None, credential).address == "node-1:9000"


@pytest.mark.parametrize(
    "given", ["node-1:7000,node-2", " node-1:7000 , node-2:9000", ["node-1:7000", "node-2"]]
)
def test_several_addresses_are_given_with_commas_or_as_a_list(given):
    assert target_of(given).addresses == ("node-1:7000", "node-2:9000")


def test_the_environment_may_name_several(credential, monkeypatch):
    monkeypatch.setenv("WATERCLOCK_ADDRESS", "node-1,node-2,node-1:9000")
    assert target_of() == Target("node-1:9000", None, ("node-2:9000",))

    monkeypatch.setenv("WATERCLOCK_CREDENTIAL", credential.encode())
    assert target_of().credential == credential
    assert target_of().http_address == "https://node-1:8080", "one of them is the credential's"


@pytest.mark.parametrize("wrong", ["node-1,,node-2", ",", "node-1:7000,", ["node-1", ""], [1]])
def test_each_of_several_addresses_is_one(wrong):
    with pytest.raises(BadInput, match="address"):
        target_of(wrong)


def test_a_credential_among_addresses_is_refused_and_not_shown(credential):
    with pytest.raises(BadInput, match="credential") as refused:
        target_of(["node-1", credential.encode()])
    assert credential.token not in str(refused.value)


def test_a_damaged_credential_in_the_environment_says_where_it_is(credential, monkeypatch):
    monkeypatch.setenv("WATERCLOCK_CREDENTIAL", credential.encode()[:-300])

    with pytest.raises(BadInput, match=r"^WATERCLOCK_CREDENTIAL: credential is") as refused:
        target_of()
    assert credential.token[:20] not in str(refused.value)


def test_one_credential_is_enough(credential):
    with pytest.raises(BadInput, match="twice") as refused:
        target_of(credential.encode(), credential)
    assert credential.token not in str(refused.value)


def test_no_form_of_a_target_shows_the_token(credential):
    target = target_of(credential.encode())

    assert credential.token not in f"{target} {target!r} {target.credential}"
