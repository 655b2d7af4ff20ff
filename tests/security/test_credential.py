"""Credentials: one line that is read as it was written, and shows itself without its secret."""

import json
from base64 import b64encode
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waterclock.model.errors import BadInput, NotAuthenticated
from waterclock.security.credential import (
    CHARS_MAX,
    Credential,
    base64url,
    der_of,
    from_base64url,
    pem_of,
    token_of,
)

TOKEN = "aGVhZGVy.cGF5bG9hZA.UExBTlRFRC1TRUNSRVQ"
SECRET = "UExBTlRFRC1TRUNSRVQ"

hosts = st.from_regex(r"[a-z0-9-]{1,20}(\.[a-z0-9-]{1,20}){0,2}", fullmatch=True) | st.sampled_from(
    ["127.0.0.1", "[::1]", "[2001:db8::7]"]
)
ports = st.integers(1, 65_535)
parts = st.from_regex(r"[A-Za-z0-9_-]{1,40}", fullmatch=True)
ders = st.binary(max_size=300).map(lambda rest: b"\x30" + rest)


@st.composite
def credentials(draw: st.DrawFn) -> Credential:
    return Credential(
        f"{draw(hosts)}:{draw(ports)}",
        f"https://{draw(hosts)}:{draw(ports)}",
        pem_of(draw(ders)),
        ".".join(draw(parts) for _ in range(3)),
    )


KEPT = (
    "wc1.eyJncnBjIjoibG9jYWxob3N0OjkwMDAiLCJodHRwIjoiaHR0cHM6Ly9sb2NhbGhvc3Q6ODA4MCIsImNhIjoiTUFBPSJ9"
    ".aGVhZGVy.cGF5bG9hZA.c2lnbmF0dXJl"
)
"""Version 1, as it was first written: it must be read for ever."""


def made(**fields: object) -> str:
    """Return a credential whose second part says this."""
    ca = b64encode(b"\x30\x00").decode()
    place = {"grpc": "localhost:9000", "http": "https://localhost:8080", "ca": ca} | fields
    return f"wc1.{base64url(json.dumps(place).encode())}.{TOKEN}"


@given(credentials())
def test_parsing_undoes_writing(credential):
    text = credential.encode()

    assert Credential.parse(text) == credential
    assert Credential.parse(f" {text}\n") == credential
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")


def test_a_credential_of_the_first_version_is_still_read():
    credential = Credential.parse(KEPT)

    assert credential == Credential(
        "localhost:9000",
        "https://localhost:8080",
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        "aGVhZGVy.cGF5bG9hZA.c2lnbmF0dXJl",
    )
    assert credential.encode() == KEPT


@given(credentials())
def test_a_node_takes_a_credential_or_its_token_alone(credential):
    assert token_of(credential.encode()) == credential.token
    assert token_of(credential.token) == credential.token


nearly = st.binary(max_size=60).map(lambda data: f"wc1.{base64url(data)}.a.b.c")


@given(st.text(max_size=60) | nearly)
@example("wc1." + "A" * 61 + ".a.b.c")
@example("wc1.é.a.b.c")
def test_the_parsers_raise_nothing_else(text):
    with suppress(BadInput):
        assert Credential.parse(Credential.parse(text).encode()).token
    with suppress(NotAuthenticated):
        assert token_of(text).count(".") == 2


@given(credentials(), st.data())
def test_a_damaged_credential_is_refused_or_says_something_else(credential, data):
    text = credential.encode()
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.characters()) + text[at + 1 :]
    try:
        other = Credential.parse(damaged)
    except BadInput:
        return
    assert (other == credential) == (damaged.strip() == text)


def test_no_way_of_showing_it_has_the_token():
    credential = Credential.parse(made())

    for shown in (repr(credential), str(credential), f"{credential}"):
        assert "hidden" in shown
        assert SECRET not in shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not begin with wc1."),
        ("wc2.e30.a.b.c", "does not begin with wc1."),
        (TOKEN, "does not begin with wc1."),
        (f"wc1.{TOKEN}", "copy all of it"),
        (f"wc1.e30.{TOKEN}", "copy all of it"),
        (f"wc1.!.{TOKEN}", "copy all of it"),
        (made()[:-20], "copy all of it"),
        (made() + ".more", "copy all of it"),
        (made(grpc="localhost"), "not host:port"),
        (made(grpc="a b:1"), "not host:port"),
        (made(grpc="a:1\n"), "not host:port"),
        (made(http="http://localhost:8080"), "not https://host:port"),
        (made(http="https://localhost:8080/x"), "not https://host:port"),
        (made(ca=""), "not a certificate"),
        (made(ca="MA"), "not a certificate"),
        (made(ca="xx=="), "not a certificate"),
        (made(ca=7), "copy all of it"),
        ("wc1." + "A" * CHARS_MAX, "at most 16384"),
    ],
)
def test_what_is_no_credential_is_refused_in_one_sentence_without_its_secret(text, why):
    with pytest.raises(BadInput, match=why) as refused:
        Credential.parse(text)

    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.__context__ is None or refused.value.__suppress_context__


def test_a_field_that_is_not_known_is_left_out():
    assert Credential.parse(made(zone="eu")).grpc_address == "localhost:9000"


@pytest.mark.parametrize(
    "text", ["", "a.b", "a.b.c.d", "wc1.a.b.c", "wc2.a.b.c.d", "a.b.!", "a..c", "a" * 20_000]
)
def test_what_is_no_token_is_refused(text):
    with pytest.raises(NotAuthenticated):
        token_of(text)


def test_a_credential_is_read_from_a_file(tmp_path):
    file = tmp_path / "billing.credential"
    file.write_text(made() + "\n")

    assert Credential.read(f"@{file}") == Credential.read(made())


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    for path in (tmp_path / "absent", tmp_path, binary):
        with pytest.raises(BadInput, match=f"credential file '{path}': "):
            Credential.read(f"@{path}")


@given(ders)
def test_a_certificate_is_the_same_as_text_and_as_bytes(der):
    assert der_of(pem_of(der)) == der


@pytest.mark.parametrize("pem", [b"", b"x", pem_of(b"0") * 2])
def test_what_is_not_one_certificate_is_refused(pem):
    with pytest.raises(BadInput):
        der_of(pem)


@given(st.binary(max_size=50))
def test_base64url_is_read_only_as_it_is_written(data):
    text = base64url(data)

    assert from_base64url(text) == data
    if len(text) % 4:
        with pytest.raises(ValueError):  # noqa: PT011
            from_base64url(text + "=")


@pytest.mark.parametrize("text", ["A", "AB", "A=", "A A", "é"])
def test_what_is_no_base64url_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011
        from_base64url(text)
