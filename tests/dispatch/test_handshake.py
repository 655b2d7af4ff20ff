"""Leader and worker know each other by their secret, and nobody else gets past the handshake."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.dispatch.decoder import Decoder
from waterclock.dispatch.frames import AUTH, AUTH_BYTES, Auth, BadFrame, encode_auth
from waterclock.dispatch.handshake import Handshake, Role
from waterclock.model.errors import NotAuthenticated

SECRET = b"a secret of some length"
# HMAC-SHA256 of "waterclock dispatch 1 worker " (or leader), 32 times "L" and 32 times "W".
# Made with `openssl dgst -sha256 -hmac`.
PROOF_OF_WORKER = "55eb94f2f39bbc6c95f4245368bc9725aea16f9fa67391c033388347cb0b90b4"
PROOF_OF_LEADER = "30521bdcc1ff194eb75d00a59b1593425bdb323fd359941fd46f5e6fb67de3d2"
secrets = st.binary(min_size=16, max_size=64)
nonces = st.binary(min_size=AUTH_BYTES, max_size=AUTH_BYTES)


def auths(raw: bytes) -> list[Auth]:
    return [frame for frame in Decoder([AUTH]).feed(raw) if isinstance(frame, Auth)]


def talk(leader: Handshake, worker: Handshake) -> list[Auth]:
    """Let both say all they have; return it."""
    said: list[Auth] = []
    ends = [(worker, leader.begin()), (leader, worker.begin())]
    while ends:
        hears, raw = ends.pop(0)
        for auth in auths(raw):
            said.append(auth)
            other = leader if hears is worker else worker
            ends.append((other, hears.heard(auth)))
    return said


def ends(secret: bytes, other: bytes, *nonces: bytes) -> tuple[Handshake, Handshake]:
    return (
        Handshake(secret, Role.LEADER, nonce=nonces[0]),
        Handshake(other, Role.WORKER, nonce=nonces[1]),
    )


@given(secrets, nonces, nonces)
def test_who_knows_the_secret_is_known_at_both_ends(secret, one, two):
    leader, worker = ends(secret, secret, one, two)

    said = talk(leader, worker)

    assert leader.is_done
    assert worker.is_done
    assert [auth.is_proof for auth in said].count(True) == 2
    assert not any(secret in auth.data for auth in said if auth.is_proof)


@given(secrets, secrets, nonces, nonces)
def test_another_secret_proves_nothing_at_either_end(secret, other, one, two):
    if secret == other or secret.rstrip(b"\0") == other.rstrip(b"\0"):
        return  # HMAC pads keys with zeros
    leader, worker = ends(secret, other, one, two)

    with pytest.raises(NotAuthenticated, match="does not know the secret"):
        talk(leader, worker)

    assert not leader.is_done
    assert not worker.is_done


def test_a_proof_that_comes_back_to_its_sender_proves_nothing():
    leader, worker = ends(SECRET, SECRET, b"1" * AUTH_BYTES, b"2" * AUTH_BYTES)
    (challenge,) = auths(leader.begin())
    (proof,) = auths(worker.heard(challenge))

    with pytest.raises(NotAuthenticated):
        worker.heard(proof)
    # Two leaders that are led to believe each other to be workers.
    mirror = Handshake(SECRET, Role.LEADER, nonce=b"3" * AUTH_BYTES)
    mirror.heard(challenge)
    with pytest.raises(NotAuthenticated):
        mirror.heard(proof)


@given(nonces, nonces, nonces)
def test_a_proof_of_another_connection_proves_nothing(one, two, other):
    if one == other:
        return
    old = talk(*ends(SECRET, SECRET, one, two))
    leader, _ = ends(SECRET, SECRET, other, two)

    leader.heard(Auth(False, two))
    for auth in old:
        if auth.is_proof:
            with pytest.raises(NotAuthenticated):
                leader.heard(auth)

    assert not leader.is_done


def test_a_leader_proves_nothing_to_a_stranger():
    leader, _ = ends(SECRET, SECRET, b"1" * AUTH_BYTES, b"2" * AUTH_BYTES)

    assert leader.heard(Auth(False, b"x" * AUTH_BYTES)) == b""
    with pytest.raises(NotAuthenticated, match="does not know the secret"):
        leader.heard(Auth(True, b"x" * AUTH_BYTES))


def test_the_steps_have_one_order():
    leader, worker = ends(SECRET, SECRET, b"1" * AUTH_BYTES, b"2" * AUTH_BYTES)

    with pytest.raises(NotAuthenticated, match="before the challenge"):
        leader.heard(Auth(True, b"x" * AUTH_BYTES))
    worker.heard(Auth(False, b"x" * AUTH_BYTES))
    with pytest.raises(NotAuthenticated, match="second challenge"):
        worker.heard(Auth(False, b"y" * AUTH_BYTES))


def test_a_secret_is_in_no_repr():
    leader, _ = ends(SECRET, SECRET, b"1" * AUTH_BYTES, b"2" * AUTH_BYTES)

    assert repr(leader) == "<Handshake of a leader>"


def test_changed_bytes_of_a_handshake_never_get_past_it():
    rng = Random(17)
    for _ in range(2_000):
        leader, worker = ends(SECRET, SECRET, rng.randbytes(AUTH_BYTES), rng.randbytes(AUTH_BYTES))
        (challenge,) = auths(leader.begin())
        raw = bytearray(worker.begin() + worker.heard(challenge))
        good = bytes(raw)
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        assert bytes(raw) != good
        try:
            for auth in auths(bytes(raw)):
                leader.heard(auth)
        except (BadFrame, NotAuthenticated):
            pass
        assert not leader.is_done


def test_a_challenge_and_a_proof_have_their_bytes():
    data = bytes(range(AUTH_BYTES))

    assert encode_auth(data, is_proof=False).hex() == "010b0000002100" + data.hex()
    assert encode_auth(data, is_proof=True).hex() == "010b0000002101" + data.hex()
    leader, worker = ends(SECRET, SECRET, b"L" * AUTH_BYTES, b"W" * AUTH_BYTES)
    proofs = [auth.data.hex() for auth in talk(leader, worker) if auth.is_proof]
    assert proofs == [PROOF_OF_WORKER, PROOF_OF_LEADER]
