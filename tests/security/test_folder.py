"""The secure folder: modes, whole writes, whole loads, and who is let in."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.security.moments import DAY_MS, NOW_MS
from waterclock.model.config import load_config
from waterclock.model.errors import (
    AlreadyExists,
    BadConfig,
    BadInput,
    CapacityReached,
    NotAuthenticated,
    NotFound,
    StorageFailed,
)
from waterclock.security.authenticator import Authenticator
from waterclock.security.certificates import KeyPair, check_pair, hosts_of
from waterclock.security.credential import Credential
from waterclock.security.folder import Grant, SecureFolder, folder_in_use, folder_of
from waterclock.security.private_files import read_secret
from waterclock.security.quotas import Quotas
from waterclock.security.rights import parse_rights
from waterclock.security.tls import server_context
from waterclock.security.tokens import key_id_of

YEAR_MS = 365 * DAY_MS
GRANT = Grant(
    rights=parse_rights({"publish": ["orders.*"]}),
    quotas=Quotas(topics=3),
    expires_ms=NOW_MS + YEAR_MS,
)


def modes(path: Path) -> dict[str, int]:
    """Return the mode of a folder and of everything in it."""
    every = [path, *path.rglob("*")]
    return {_name(each, path): stat.S_IMODE(each.stat().st_mode) for each in every}


def _name(file: Path, path: Path) -> str:
    if file.parent.name == "signing":
        return "<kid>"
    return re.sub(r"^pair\.[0-9a-f]{16}", "pair.<n>", str(file.relative_to(path)))


def contents(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def given(folder: SecureFolder, name: str, grant: Grant = GRANT) -> str:
    """Let somebody in; return their token."""
    credential = folder.add(name, grant, now_ms=NOW_MS)
    assert credential is not None
    return credential.token


def who(folder: SecureFolder, token: str) -> str:
    """Return who a node takes the sender of a token for."""
    return Authenticator(folder.load()).principal_of(token, NOW_MS).name


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_hold_whatever_the_umask(tmp_path, umask):
    path = tmp_path / "data" / "secure"
    before = os.umask(umask)
    try:
        folder = SecureFolder(path)
        folder.make(grpc_port=9000, http_port=8080, now_ms=NOW_MS)
        given(folder, "billing")
        folder.rotate(now_ms=NOW_MS)
    finally:
        os.umask(before)

    assert modes(path) == {
        ".": 0o750,
        "ca.pem": 0o640,
        "ca.key": 0o600,
        "node.pem": 0o640,
        "node.key": 0o600,
        "pair": 0o750,
        "pair.<n>": 0o750,
        "pair.<n>/node.pem": 0o640,
        "pair.<n>/node.key": 0o600,
        "signing": 0o750,
        "<kid>": 0o600,
        "principals.json": 0o640,
        "admin.credential": 0o600,
        "cluster.json": 0o600,
    }
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert os.listdir(path.parent) == ["secure"]


def test_a_new_folder_has_an_admin_who_may_do_everything(folder):
    text = folder.admin_credential.read_text()
    credential = Credential.parse(text)

    admin = Authenticator(folder.load()).principal_of(credential.token, NOW_MS)

    assert admin.name == "admin"
    assert admin.rights.is_admin
    assert text.endswith("\n")
    assert credential.grpc_address == "node-1.example:9000"
    assert credential.http_address == "https://node-1.example:8080"
    assert credential.ca_pem == folder.ca.read_bytes()


def test_a_credential_leads_to_this_machine_unless_a_host_is_named(tmp_path):
    for hosts, place in (([], "localhost"), (["::1"], "[::1]"), (["10.0.0.7"], "10.0.0.7")):
        folder = SecureFolder(tmp_path / place)
        folder.make(hosts=hosts, grpc_port=1, http_port=2, now_ms=NOW_MS)

        credential = Credential.read(f"@{folder.admin_credential}")

        assert credential.grpc_address == f"{place}:1"
        assert credential.http_address == f"https://{place}:2"
        names = hosts_of(folder.node_certificate.read_bytes())
        assert {*hosts, "localhost", "127.0.0.1", "::1"} <= set(names)


def test_a_folder_that_is_there_is_not_made_again(folder):
    before = contents(folder.path)

    with pytest.raises(AlreadyExists):
        folder.make(grpc_port=1, http_port=2, now_ms=NOW_MS)

    assert contents(folder.path) == before


def test_a_folder_that_cannot_be_made_leaves_nothing(tmp_path):
    folder = SecureFolder(tmp_path / "secure")

    with pytest.raises(BadInput, match="neither a host name"):
        folder.make(hosts=["a b"], grpc_port=1, http_port=2, now_ms=NOW_MS)

    assert os.listdir(tmp_path) == []


def test_somebody_who_is_added_is_known_with_rights_and_quotas(folder):
    token = given(folder, "billing")

    billing = Authenticator(folder.load()).principal_of(token, NOW_MS)

    assert billing.name == "billing"
    assert billing.rights == GRANT.rights
    assert billing.quotas == GRANT.quotas
    assert billing.expires_ms == GRANT.expires_ms


def test_a_name_that_is_taken_is_replaced_only_if_that_is_said(folder):
    old = given(folder, "billing")
    with pytest.raises(AlreadyExists):
        given(folder, "billing")

    new = folder.add("billing", GRANT, now_ms=NOW_MS, is_replacing=True)

    assert new is not None
    assert who(folder, new.token) == "billing"
    with pytest.raises(NotAuthenticated, match="revoked, or replaced"):
        who(folder, old)


def test_a_renewed_credential_leaves_the_older_ones_good_until_they_end(folder):
    old = given(folder, "billing")

    new = folder.renew("billing", expires_ms=NOW_MS + 2 * YEAR_MS, now_ms=NOW_MS).token
    assert (who(folder, old), who(folder, new)) == ("billing", "billing")

    folder.renew("billing", expires_ms=NOW_MS + 3 * YEAR_MS, now_ms=NOW_MS + YEAR_MS)
    assert len(folder.principals().known["billing"].tokens) == 2, "the ended one is forgotten"
    assert folder.principals().known["billing"].rights == GRANT.rights


def test_the_admins_file_has_the_credential_that_is_good(folder):
    folder.add("admin", GRANT, now_ms=NOW_MS, is_replacing=True)

    assert who(folder, Credential.read(f"@{folder.admin_credential}").token) == "admin"
    folder.revoke("admin")
    assert not folder.admin_credential.exists()


def test_who_is_revoked_is_let_in_no_more_and_comes_back_with_a_new_credential_only(folder):
    old = given(folder, "billing")
    folder.revoke("billing")

    with pytest.raises(NotAuthenticated, match="revoked"):
        who(folder, old)
    assert who(folder, given(folder, "billing")) == "billing"
    with pytest.raises(NotAuthenticated, match="revoked"):
        who(folder, old)


def test_who_is_known_by_another_issuer_gets_no_credential(folder):
    grant = Grant(rights=GRANT.rights, expires_ms=NOW_MS + 1, is_outside=True)

    assert folder.add("ada", grant, now_ms=NOW_MS) is None
    with pytest.raises(BadInput, match="another issuer"):
        folder.renew("ada", expires_ms=NOW_MS + 1, now_ms=NOW_MS)


def test_a_rotation_leaves_every_credential_good(folder):
    before = contents(folder.path)
    token = given(folder, "billing")

    folder.rotate(hosts=["node-2.example"], now_ms=NOW_MS)
    new = given(folder, "other")

    assert (who(folder, token), who(folder, new)) == ("billing", "other")
    assert key_id_of(token) != key_id_of(new)
    after = contents(folder.path)
    changed = {Path(name).name for name in before if before[name] != after.get(name)}
    assert changed == {"node.pem", "node.key", "principals.json", "cluster.json"}
    names = hosts_of(folder.node_certificate.read_bytes())
    assert names[0] == "node-1.example"
    assert "node-2.example" in names


def test_the_newest_key_signs_also_after_the_clock_went_back(folder):
    folder.rotate(now_ms=NOW_MS - YEAR_MS)

    kids = sorted(path.stem for path in (folder.path / "signing").iterdir())
    assert key_id_of(given(folder, "billing")) == kids[-1]


def test_signing_keys_that_no_good_credential_needs_go(folder):
    for _ in range(5):
        folder.rotate(now_ms=NOW_MS)

    kids = {path.stem for path in (folder.path / "signing").iterdir()}
    admin = Credential.read(f"@{folder.admin_credential}")
    assert len(kids) == 2
    assert key_id_of(admin.token) in kids


def test_a_change_is_seen_once_it_is_there_and_until_it_is_loaded(folder):
    assert folder.changed()
    folder.load()
    assert not folder.changed()

    SecureFolder(folder.path).revoke("admin")
    assert folder.changed()
    folder.load()
    assert not folder.changed()

    SecureFolder(folder.path).rotate(now_ms=NOW_MS)
    assert folder.changed()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("principals.json", b"{"),
        ("node.pem", b"none"),
        ("node.key", b"none"),
        ("ca.pem", b"none"),
        ("principals.json", None),
        ("node.key", None),
        ("signing", None),
    ],
)
def test_a_folder_that_is_wrong_anywhere_is_not_loaded_and_not_tried_again(folder, name, data):
    file = folder.path / name
    if name == "signing":
        for key in file.iterdir():
            key.unlink()
    elif data is None:
        file.unlink()
    else:
        file.write_bytes(data)

    with pytest.raises((BadInput, StorageFailed)):
        folder.load()
    assert not folder.changed(), "the same mistake is told once"


def test_a_half_rotated_certificate_is_refused_and_says_what_helps(folder, tmp_path):
    other = SecureFolder(tmp_path / "other")
    other.make(grpc_port=1, http_port=2, now_ms=NOW_MS)
    folder.node_key.write_bytes(other.node_key.read_bytes())

    with pytest.raises(BadInput, match="secure rotate"):
        folder.load()
    folder.rotate(now_ms=NOW_MS)
    folder.load()


def test_at_every_step_of_a_rotation_certificate_and_key_fit(folder, monkeypatch):
    seen: list[bytes] = []

    def looked_after(step: Callable[..., None]) -> Callable[..., None]:
        def take(*arguments: Any, **named: Any) -> None:
            step(*arguments, **named)
            seen.append(SecureFolder(folder.path).load().node.certificate_pem)
            server_context(folder.node_certificate, folder.node_key, folder.ca)

        return take

    for name in ("replace", "unlink", "mkdir", "symlink", "rmdir"):
        monkeypatch.setattr(os, name, looked_after(getattr(os, name)))
    before = folder.load().node.certificate_pem

    folder.rotate(now_ms=NOW_MS)

    after = folder.load().node.certificate_pem
    at = seen.index(after)
    assert (set(seen[:at]), set(seen[at:])) == ({before}, {after})


def test_a_rotation_between_the_reads_of_certificate_and_key_is_no_fault(folder, monkeypatch):
    def read_late(path: Path) -> bytes:
        monkeypatch.undo()
        SecureFolder(folder.path).rotate(now_ms=NOW_MS)
        return read_secret(path)

    monkeypatch.setattr("waterclock.security.folder.read_secret", read_late)
    loaded = folder.load()

    assert loaded.node == SecureFolder(folder.path).load().node
    assert not folder.changed()


def test_a_copy_with_files_where_links_were_is_read_and_rotated(folder, tmp_path):
    shutil.copytree(folder.path, tmp_path / "copy", symlinks=False)
    copy = SecureFolder(tmp_path / "copy")
    before = copy.load().node
    assert before == folder.load().node

    copy.rotate(now_ms=NOW_MS)

    assert copy.load().node != before
    assert len(list(copy.path.glob("pair*"))) == 2


@pytest.mark.parametrize("name", ["node.key", "signing"])
def test_a_key_that_everyone_can_read_is_refused(folder, name):
    file = folder.path / name
    key = next(file.iterdir()) if file.is_dir() else file
    key.chmod(0o644)

    with pytest.raises(BadInput, match="chmod 600"):
        folder.load()


def test_a_principal_gets_a_certificate_of_its_name(folder, tmp_path):
    given(folder, "billing")

    folder.certify("billing", tmp_path / "new" / "place", now_ms=NOW_MS)

    place = tmp_path / "new" / "place"
    pair = KeyPair((place / "billing.pem").read_bytes(), (place / "billing.key").read_bytes())
    check_pair(pair, folder.ca.read_bytes())
    assert modes(place) == {".": 0o750, "billing.pem": 0o640, "billing.key": 0o600}
    with pytest.raises(NotFound, match="nobody"):
        folder.certify("nobody", place, now_ms=NOW_MS)


def test_the_key_of_the_ca_may_be_kept_elsewhere(folder):
    (folder.path / "ca.key").rename(folder.path.parent / "ca.key")

    assert who(folder, given(folder, "billing")) == "billing"
    with pytest.raises(NotFound, match=r"ca\.key"):
        folder.rotate(now_ms=NOW_MS)


def test_what_cannot_be_is_refused(folder):
    with pytest.raises(BadInput, match="principal name"):
        given(folder, "a b")
    with pytest.raises(BadInput, match="later than now"):
        given(folder, "billing", Grant(rights=GRANT.rights, expires_ms=NOW_MS))
    with pytest.raises(NotFound, match="principal 'nobody'"):
        folder.revoke("nobody")
    with pytest.raises(NotFound, match="principal 'nobody'"):
        folder.renew("nobody", expires_ms=NOW_MS + 1, now_ms=NOW_MS)


def test_so_many_credentials_of_one_are_refused(folder, monkeypatch):
    monkeypatch.setattr("waterclock.security.folder.TOKENS_MAX", 2)
    given(folder, "billing")
    folder.renew("billing", expires_ms=NOW_MS + 1, now_ms=NOW_MS)

    with pytest.raises(CapacityReached, match="tokens of billing"):
        folder.renew("billing", expires_ms=NOW_MS + 1, now_ms=NOW_MS)


def test_nothing_is_there_before_it_is_made(tmp_path):
    folder = SecureFolder(tmp_path / "secure")

    assert not folder.exists()
    for call in (folder.principals, lambda: folder.revoke("x"), lambda: given(folder, "x")):
        with pytest.raises(NotFound, match="secure folder"):
            call()


def test_writers_take_turns(folder):
    program = (
        "import sys; from pathlib import Path\n"
        "from waterclock.security.folder import Grant, Rights, SecureFolder\n"
        "folder, grant = SecureFolder(Path(sys.argv[1])), Grant(rights=Rights(), expires_ms=9)\n"
        "for n in range(10): folder.add(f'{sys.argv[2]}-{n}', grant, now_ms=1)"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(folder.path), name])
        for name in ("a", "b")
    ]

    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(folder.principals().known) == 21


def test_nothing_shows_a_secret(folder):
    token = given(folder, "billing")
    state = folder.load()
    secrets = [token.rpartition(".")[2], folder.node_key.read_text().splitlines()[1]]

    shown = repr([folder, state, state.node, state.principals, Authenticator(state)])

    assert not [secret for secret in secrets if secret in shown]


def test_a_node_whose_folder_is_named_and_missing_does_not_start_without_it(tmp_path):
    flags = {"node.data_folder": str(tmp_path / "data")}
    assert folder_in_use(load_config(yaml_text=None, environ={}, flags=flags)) is None

    flags["security.folder"] = str(tmp_path / "secure")
    config = load_config(yaml_text=None, environ={}, flags=flags)
    with pytest.raises(BadConfig, match="secure init"):
        folder_in_use(config)
    (tmp_path / "secure").mkdir()
    found = folder_in_use(config)

    assert found is not None
    with pytest.raises(StorageFailed):
        found.load()


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ({}, "waterclock-data/secure"),
        ({"node.data_folder": "/d"}, "/d/secure"),
        ({"node.data_folder": "/d", "security.folder": "/etc/wc"}, "/etc/wc"),
    ],
)
def test_the_folder_is_in_the_data_unless_it_is_named(flags, path):
    config = load_config(yaml_text=None, environ={}, flags=flags)

    assert folder_of(config).path == Path(path)


def test_rotating_leaves_keys_of_the_cluster_that_others_still_believe(folder):
    before = folder.load().cluster_keys
    folder.rotate(now_ms=NOW_MS)
    after = folder.load().cluster_keys

    assert after.keys[:1] == before.keys[1:]
    assert before.keys[0] in after.keys


def test_a_folder_from_before_there_were_keys_of_a_cluster_gets_them(folder):
    file = folder.path / "cluster.json"
    file.unlink()
    assert folder.load().cluster_keys is None

    assert folder.complete()
    keys = folder.load().cluster_keys
    assert not folder.complete()
    assert folder.load().cluster_keys == keys


def test_other_keys_of_the_cluster_are_a_change_of_the_folder(folder):
    folder.load()
    assert not folder.changed()

    (folder.path / "cluster.json").unlink()
    assert folder.changed()


def test_keys_of_the_cluster_that_everyone_can_read_are_refused(folder):
    (folder.path / "cluster.json").chmod(0o644)

    with pytest.raises(BadInput, match="chmod 600"):
        folder.load()
