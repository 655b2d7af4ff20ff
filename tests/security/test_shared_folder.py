"""A folder whose principals are shared: what is written to it, and what it has to tell."""

import os
import stat
from pathlib import Path

from tests.security.moments import DAY_MS, NOW_MS
from waterclock.security.folder import Grant, SecureFolder
from waterclock.security.principals import PrincipalRecord, record_of
from waterclock.security.rights import parse_rights
from waterclock.security.shared_folder import ASIDE_FILE, COMMON_FILE, SharedFolder, read_common
from waterclock.security.shared_rights import Change, Common, Records, Standing

GRANT = Grant(rights=parse_rights({"read": ["a"]}), expires_ms=NOW_MS + DAY_MS)
LATER_MS = NOW_MS + DAY_MS


def found(folder: SecureFolder) -> dict[str, PrincipalRecord]:
    return {name: record_of(known) for name, known in folder.principals().known.items()}


def standings(folder: SecureFolder) -> dict[str, Standing]:
    return {name: Standing(record) for name, record in found(folder).items()}


def touch(folder: SecureFolder, at_ms: int) -> None:
    """Have the file of principals be changed at some time."""
    os.utime(folder.path / "principals.json", ns=(at_ms * 1_000_000,) * 2)


def test_what_people_do_is_told_and_what_the_records_have_is_written(folder):
    shared = SharedFolder(folder.path)
    common = {name: Standing(each) for name, each in shared.begin("r").items()}
    folder.add("ada", GRANT, now_ms=NOW_MS)
    folder.revoke("admin")
    touch(folder, NOW_MS + 7)

    settled = shared.exchange(Records("r", 1, common), now_ms=LATER_MS)

    admin, ada = common["admin"], standings(folder)["ada"]
    removed = Standing(ended_ms=NOW_MS + 7)
    assert settled.changes == (
        Change("ada", Standing(), ada),
        Change("admin", admin, removed),
    )
    assert (settled.keeps_admin, settled.has_changed) == (False, False)
    records = Records("r", 2, {"ada": ada, "admin": removed, "bob": admin})
    settled = shared.exchange(records, now_ms=LATER_MS)
    assert (settled.changes, settled.keeps_admin, settled.has_changed) == ((), True, True)
    assert standings(folder) == {"ada": ada, "bob": admin}
    assert stat.S_IMODE((folder.path / COMMON_FILE).stat().st_mode) == 0o640
    before = folder.path.stat().st_mtime_ns
    assert shared.exchange(records, now_ms=LATER_MS).has_changed is False
    assert folder.path.stat().st_mtime_ns == before  # nothing was written


def test_who_is_added_is_later_than_all_that_is_known_whatever_the_clock_says(folder):
    shared = SharedFolder(folder.path)
    shared.begin("r")
    ended = {**standings(folder), "ada": Standing(ended_ms=LATER_MS)}
    shared.exchange(Records("r", 2, ended), now_ms=NOW_MS)

    folder.add("ada", GRANT, now_ms=NOW_MS)
    assert found(folder)["ada"].made_ms == LATER_MS + 1
    folder.add("ada", GRANT, now_ms=NOW_MS, is_replacing=True)
    assert found(folder)["ada"].made_ms == LATER_MS + 2


def test_a_folder_that_has_lost_what_it_had_in_common_takes_the_records(folder):
    shared = SharedFolder(folder.path)
    before = standings(folder)
    folder.add("ada", GRANT, now_ms=NOW_MS)
    for data in (b"{", b'{"version":2,"common":{"identity":"r","revision":1,"principals":{}}}'):
        (folder.path / COMMON_FILE).write_bytes(data)
        settled = shared.exchange(Records("r", 1, before), now_ms=LATER_MS)
        assert settled.changes == ()

    assert standings(folder) == before
    assert b'"ada"' in (folder.path / ASIDE_FILE).read_bytes()


def test_the_file_has_the_form_that_its_page_draws(folder):
    page = Path(__file__).parents[2] / "docs" / "formats" / "shared_rights.md"
    drawn = page.read_text().partition("```json\n")[2].partition("```")[0]
    (folder.path / COMMON_FILE).write_text(drawn)

    assert read_common(folder.path) == Common(
        "00112233445566778899aabbccddeeff",
        7,
        {
            "billing": Standing(PrincipalRecord(1_790_000_000_000, {"publish": ["orders.*"]})),
            "guest": Standing(ended_ms=1_790_000_500_000),
        },
        {"ada": 1_790_000_600_000},
    )
