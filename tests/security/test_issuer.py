"""Another issuer: its keys from a file or a URL, its audience, and whom it may name."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.security.moments import NOW_MS
from waterclock.model.errors import BadConfig, NotAuthenticated, Unavailable
from waterclock.security.authenticator import Authenticator
from waterclock.security.folder import Grant
from waterclock.security.issuer import REFRESH_AGAIN_MS, REFRESH_EVERY_MS, OutsideIssuer
from waterclock.security.rights import parse_rights

NOW_S = NOW_MS // 1_000
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(public_exponent=65_537, key_size=2_048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
SECRET = b"s" * 32
CLAIMS = {"iss": "https://id.example", "aud": "waterclock", "sub": "ada", "exp": NOW_S + 60}


def jwk(algorithm: str, kid: str, **more: str) -> dict[str, Any]:
    kind = jwt.get_algorithm_by_name(algorithm)
    if algorithm == "HS256":
        return json.loads(kind.to_jwk(SECRET)) | {"kid": kid, "alg": algorithm}  # type: ignore[no-any-return]
    public = KEYS[algorithm].public_key()
    return json.loads(kind.to_jwk(public)) | {"kid": kid, "alg": algorithm} | more  # type: ignore[no-any-return]


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


ALL = jwks(*(jwk(algorithm, algorithm) for algorithm in KEYS), jwk("HS256", "HS256"))


def token(algorithm: str = "ES256", *, kid: str | None = None, **changes: object) -> str:
    claims = {k: v for k, v in (CLAIMS | changes).items() if v is not None}
    key = SECRET if algorithm == "HS256" else KEYS[algorithm]
    return jwt.encode(claims, key, algorithm, headers={"kid": kid or algorithm})


def issuer_of(source: object) -> OutsideIssuer:
    return OutsideIssuer(
        issuer="https://id.example", jwks=str(source), audience="waterclock", claim="sub"
    )


@pytest.fixture
def issuer(tmp_path: Path) -> OutsideIssuer:
    file = tmp_path / "jwks.json"
    file.write_bytes(ALL)
    made = issuer_of(file)
    made.refresh(NOW_MS)
    return made


@pytest.fixture
def served() -> Iterator[Callable[[int, bytes], str]]:
    """Return a function that has a server answer with this, and returns its URL."""
    answers: list[tuple[int, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers[-1]
            self.send_response(status)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def answer(status: int, body: bytes) -> str:
        answers.append((status, body))
        return f"http://127.0.0.1:{server.server_port}/jwks"

    yield answer
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_with_a_public_key_of_the_set_is_good(issuer, algorithm):
    found = issuer.verify(token(algorithm), NOW_MS)

    assert found == ("ada", (NOW_S + 60) * 1_000)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "shop"}, "another audience"),
        ({"aud": ["shop"]}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"exp": NOW_S}, "expired"),
        ({"exp": None}, "when it ends"),
        ({"nbf": NOW_S + 3_600}, "not valid yet"),
        ({"sub": None}, "no claim sub"),
        ({"sub": ""}, "no claim sub"),
    ],
)
def test_a_token_that_says_something_else_is_refused(issuer, changes, why):
    # PyJWT refuses to write some of these.
    claims = {k: v for k, v in (CLAIMS | changes).items() if v is not None}
    jws = jwt.PyJWS()
    forged = jws.encode(json.dumps(claims).encode(), KEYS["ES256"], "ES256", {"kid": "ES256"})

    with pytest.raises(NotAuthenticated, match=why):
        issuer.verify(forged, NOW_MS)


@pytest.mark.parametrize("exp", [True, "1", -1, 1e300, [1]])
def test_a_time_that_is_none_is_refused(issuer, exp):
    body = json.dumps(CLAIMS | {"exp": exp}).encode()
    forged = jwt.PyJWS().encode(body, KEYS["ES256"], "ES256", {"kid": "ES256"})

    with pytest.raises(NotAuthenticated, match="when it ends"):
        issuer.verify(forged, NOW_MS)


def test_our_audience_may_be_one_of_several(issuer):
    assert issuer.verify(token(aud=["shop", "waterclock"]), NOW_MS).principal == "ada"


def test_a_token_of_hmac_is_refused_though_the_set_has_its_key(issuer):
    with pytest.raises(NotAuthenticated, match="does not have"):
        issuer.verify(token("HS256"), NOW_MS)


def test_a_token_chooses_no_other_algorithm_than_its_keys(issuer):
    with pytest.raises(NotAuthenticated, match="another algorithm"):
        issuer.verify(token("ES256", kid="RS256"), NOW_MS)
    with pytest.raises(NotAuthenticated, match="another algorithm"):
        issuer.verify(token("HS256", kid="ES256"), NOW_MS)


def test_keys_come_from_a_url(served):
    issuer = issuer_of(served(200, ALL))
    assert issuer.wants_refresh(NOW_MS)

    issuer.refresh(NOW_MS)

    assert issuer.verify(token(), NOW_MS).principal == "ada"
    assert not issuer.wants_refresh(NOW_MS + REFRESH_EVERY_MS - 1)
    assert issuer.wants_refresh(NOW_MS + REFRESH_EVERY_MS)


def test_a_key_that_is_not_known_is_asked_for_but_not_too_often(served):
    issuer = issuer_of(served(200, jwks(jwk("RS256", "RS256"))))
    issuer.refresh(NOW_MS)
    with pytest.raises(NotAuthenticated):
        issuer.verify(token(), NOW_MS)
    assert not issuer.wants_refresh(NOW_MS + REFRESH_AGAIN_MS - 1)
    assert issuer.wants_refresh(NOW_MS + REFRESH_AGAIN_MS)

    served(200, ALL)
    issuer.refresh(NOW_MS + REFRESH_AGAIN_MS)

    assert issuer.verify(token(), NOW_MS).principal == "ada"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b""),
        (404, b""),
        (302, b""),
        (200, b""),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"keys": 7}'),
        (200, b'{"keys": [7, {"kty": "RSA"}]}'),
        (200, b"\xff"),
        (200, b" " * ((1 << 20) + 1)),
        (200, jwks(jwk("HS256", "a"))),
        (200, jwks(jwk("ES256", ""))),
        (200, jwks(jwk("ES256", "a", use="enc"))),
    ],
)
def test_what_is_no_set_of_keys_is_refused_and_the_old_one_kept(served, status, body):
    issuer = issuer_of(served(200, ALL))
    issuer.refresh(NOW_MS)
    served(status, body)

    with pytest.raises(Unavailable):
        issuer.refresh(NOW_MS)

    assert issuer.verify(token(), NOW_MS).principal == "ada"
    assert not issuer.wants_refresh(NOW_MS), "it is asked again later, not at once"


def test_an_issuer_that_is_away_is_told(tmp_path):
    for source in (tmp_path / "absent", "http://127.0.0.1:1/jwks"):
        with pytest.raises(Unavailable, match=r"keys of https://id\.example"):
            issuer_of(source).refresh(NOW_MS)


def test_keys_over_a_plain_connection_from_elsewhere_are_refused():
    with pytest.raises(BadConfig, match="https://"):
        issuer_of("http://id.example/jwks")


def test_an_issuer_names_only_those_who_were_added_for_it(folder, issuer):
    rights = parse_rights({"publish": ["orders"]})
    grant = Grant(rights=rights, expires_ms=NOW_MS + 1, is_outside=True)
    folder.add("ada", grant, now_ms=NOW_MS)
    known = Authenticator(folder.load(), issuer)

    ada = known.principal_of(token(), NOW_MS)

    assert (ada.name, ada.rights, ada.expires_ms) == ("ada", rights, (NOW_S + 60) * 1_000)
    assert known.current(ada, NOW_MS) is ada
    with pytest.raises(NotAuthenticated, match="may name"):
        known.principal_of(token(sub="admin"), NOW_MS)
    with pytest.raises(NotAuthenticated, match="revoked"):
        known.principal_of(token(sub="nobody"), NOW_MS)


def test_our_own_tokens_are_taken_beside_those_of_another_issuer(folder, issuer):
    grant = Grant(rights=parse_rights({"read": ["*"]}), expires_ms=NOW_MS + 1_000)
    credential = folder.add("billing", grant, now_ms=NOW_MS)
    assert credential is not None

    found = Authenticator(folder.load(), issuer).principal_of(credential.token, NOW_MS)

    assert found.name == "billing"
