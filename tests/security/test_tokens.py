"""Tokens: good ones are read, and every known forgery is refused for its own reason."""

import hmac
import json
from contextlib import suppress
from hashlib import sha256

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from tests.security.moments import NOW_MS
from waterclock.model.errors import BadInput, NotAuthenticated
from waterclock.security.credential import base64url, from_base64url
from waterclock.security.tokens import (
    CLOCKS_DIFFER_S,
    Claims,
    SigningKey,
    key_id_of,
    new_token_id,
    verify,
)

NOW_S = NOW_MS // 1_000
KEY = SigningKey.make(now_ms=NOW_MS)
KEYS = {KEY.kid: KEY.public}
CLAIMS = Claims("waterclock", "billing", "ab" * 16, iat=NOW_S, nbf=NOW_S, exp=NOW_S + 60)


def token_with(**changes: object) -> str:
    """Return a token that is signed well, and says this."""
    claims = msgspec.to_builtins(CLAIMS) | changes
    kept = {name: value for name, value in claims.items() if value is not None}
    head = {"alg": "EdDSA", "kid": KEY.kid, "typ": "JWT"}
    return signed(head, kept, KEY._key.sign)


def signed(head: object, claims: object, sign: object) -> str:
    body = ".".join(base64url(json.dumps(part).encode()) for part in (head, claims))
    return f"{body}.{base64url(sign(body.encode()))}"  # type: ignore[operator]


def refused(token: str, *, now_ms: int = NOW_MS) -> str:
    with pytest.raises(NotAuthenticated) as why:
        verify(token, KEYS, now_ms=now_ms)
    for part in token.split("."):
        assert len(part) < 8 or part not in str(why.value)
    return str(why.value)


@given(
    st.text(min_size=1, max_size=64).filter(lambda text: text.isprintable()),
    st.integers(0, 4_000_000_000_000),
    st.integers(1_000, 400_000_000_000),
)
def test_a_token_says_what_was_signed(principal, now_ms, lasts_ms):
    token_id = new_token_id()
    expires_ms = now_ms + lasts_ms
    token = KEY.sign(principal=principal, token_id=token_id, now_ms=now_ms, expires_ms=expires_ms)

    claims = verify(token, KEYS, now_ms=now_ms)

    assert (claims.iss, claims.sub, claims.jti) == ("waterclock", principal, token_id)
    assert (claims.iat, claims.exp) == (now_ms // 1_000, expires_ms // 1_000)
    assert key_id_of(token) == KEY.kid


def test_a_token_that_is_signed_well_is_good():
    assert verify(token_with(), KEYS, now_ms=NOW_MS) == CLAIMS


def test_a_token_without_a_signature_is_refused():
    head = {"alg": "none", "kid": KEY.kid, "typ": "JWT"}

    unsigned = signed(head, msgspec.to_builtins(CLAIMS), lambda _: b"")
    filled = signed(head, msgspec.to_builtins(CLAIMS), KEY._key.sign)

    assert "another algorithm" in refused(unsigned)
    assert "another algorithm" in refused(filled)


@pytest.mark.parametrize("encoding", ["raw", "pem", "der"])
def test_a_token_signed_by_hmac_with_the_public_key_is_refused(encoding):
    public = KEY.public
    secret = {
        "raw": public.public_bytes_raw(),
        "pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "der": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    }[encoding]
    head = {"alg": "HS256", "kid": KEY.kid, "typ": "JWT"}

    forged = signed(
        head,
        msgspec.to_builtins(CLAIMS),
        lambda data: hmac.new(secret, data, sha256).digest(),
    )

    assert "another algorithm" in refused(forged)


def test_a_token_signed_by_another_key_is_refused():
    other = Ed25519PrivateKey.generate()
    head = {"alg": "EdDSA", "kid": KEY.kid, "typ": "JWT"}

    assert "signature" in refused(signed(head, msgspec.to_builtins(CLAIMS), other.sign))


@pytest.mark.parametrize("kid", ["other", "", None, 7, "x" * 500, "../../etc/passwd"])
def test_a_token_of_a_key_that_is_not_known_is_refused(kid):
    head = {"alg": "EdDSA", "kid": kid, "typ": "JWT"}

    assert "key" in refused(signed(head, msgspec.to_builtins(CLAIMS), KEY._key.sign))


def test_a_token_that_has_expired_is_refused():
    assert verify(token_with(), KEYS, now_ms=CLAIMS.exp * 1_000 - 1) == CLAIMS
    assert refused(token_with(), now_ms=CLAIMS.exp * 1_000) == "the credential has expired"


def test_a_token_that_is_not_valid_yet_is_refused():
    ahead = token_with(nbf=NOW_S + CLOCKS_DIFFER_S + 1)

    assert refused(ahead) == "the credential is not valid yet"
    assert verify(ahead, KEYS, now_ms=NOW_MS + 1_000).sub == "billing"


def test_a_token_of_another_issuer_is_refused():
    assert refused(token_with(iss="keycloak")) == "the credential is of another issuer"


@pytest.mark.parametrize("claim", ["iss", "sub", "jti", "iat", "nbf", "exp"])
@pytest.mark.parametrize("value", [None, [], True])
def test_a_token_that_lacks_a_claim_is_refused(claim, value):
    assert "does not say who" in refused(token_with(**{claim: value}))


@pytest.mark.parametrize("extra", [{"crit": ["exp"]}, {"b64": False, "crit": ["b64"]}])
def test_a_token_with_conditions_we_do_not_know_is_refused(extra):
    head = {"alg": "EdDSA", "kid": KEY.kid} | extra

    refused(signed(head, msgspec.to_builtins(CLAIMS), KEY._key.sign))


@given(st.data())
def test_a_token_with_one_byte_changed_is_refused(data):
    token = token_with()
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("Aa0-_.~").filter(lambda char: char != token[at]))

    refused(token[:at] + other + token[at + 1 :])


@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda d: f"{base64url(d)}.e30.AA"))
def test_whatever_is_sent_nothing_else_is_raised(text):
    with suppress(NotAuthenticated):
        verify(text, KEYS, now_ms=NOW_MS)


def test_deep_json_is_refused_and_not_followed():
    deep = base64url(b'{"a":' * 5_000 + b"1" + b"}" * 5_000)

    refused(f"{deep}.{deep}.AA")


def test_a_signing_key_is_read_as_it_was_kept_and_hides_itself():
    again = SigningKey.load(KEY.kid, KEY.pem())

    assert again.public == KEY.public
    assert repr(again) == f"<SigningKey {KEY.kid}>"
    assert KEY.kid.startswith(f"{NOW_MS}-")
    raw = KEY._key.private_bytes_raw()
    assert raw.hex() not in repr(again)


@pytest.mark.parametrize(
    "pem", [b"", b"nonsense", KEY.pem()[:60]], ids=["empty", "nonsense", "cut"]
)
def test_what_is_no_signing_key_is_refused_without_repeating_it(pem):
    with pytest.raises(BadInput, match="signing key 7 is not a key of Ed25519") as why:
        SigningKey.load("7", pem)

    assert len(pem) < 20 or pem.decode()[30:50] not in str(why.value)


def test_ids_of_tokens_are_never_the_same():
    assert len({new_token_id() for _ in range(1_000)}) == 1_000
    assert len(new_token_id()) == 32


def test_the_token_has_the_documented_form():
    token = KEY.sign(principal="p", token_id="t", now_ms=NOW_MS, expires_ms=NOW_MS + 1_000)
    head, claims = (json.loads(from_base64url(part)) for part in token.split(".")[:2])

    assert head == {"alg": "EdDSA", "kid": KEY.kid, "typ": "JWT"}
    assert claims == {
        "iss": "waterclock", "sub": "p", "jti": "t", "iat": NOW_S, "nbf": NOW_S, "exp": NOW_S + 1,
    }  # fmt: skip
