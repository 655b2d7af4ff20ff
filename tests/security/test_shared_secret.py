"""Two sides that know the same secret find that out, and nobody else is believed."""

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import NotAuthenticated
from waterclock.security.shared_secret import NONCE_BYTES, SharedSecret

nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)


def side(secret: bytes, nonce: bytes, *, is_first: bool) -> SharedSecret:
    return SharedSecret(secret, b"test 1", (b"first", b"last"), is_first=is_first, nonce=nonce)


@given(st.binary(min_size=1), nonces, nonces)
def test_who_knows_the_secret_is_believed_by_either_side(secret, one, two):
    first, last = side(secret, one, is_first=True), side(secret, two, is_first=False)
    assert last.challenged(first.nonce) is None
    proof = first.challenged(last.nonce)
    assert proof == hmac.digest(secret, b"test 1 first " + two + one, "sha256")
    answer = last.proved(proof)
    assert last.is_done
    assert answer is not None
    assert first.proved(answer) is None
    assert first.is_done


@given(st.binary(min_size=1), st.binary(min_size=1), nonces, nonces)
def test_who_does_not_know_it_learns_nothing_and_is_not_believed(secret, other, one, two):
    if secret.rstrip(b"\0") == other.rstrip(b"\0"):  # a key is padded with zeros
        return
    first, last = side(other, one, is_first=True), side(secret, two, is_first=False)
    last.challenged(first.nonce)
    proof = first.challenged(last.nonce)
    assert proof is not None
    with pytest.raises(NotAuthenticated, match="does not know the secret"):
        last.proved(proof)
    assert not last.is_done


def test_while_secrets_are_rotated_either_one_is_answered_with_the_same():
    new, old = b"new", b"old"
    for secret in (new, old):
        first = side(secret, bytes(32), is_first=True)
        last = SharedSecret(
            new, b"test 1", (b"first", b"last"), is_first=False, nonce=b"n" * 32, others=(old,)
        )
        last.challenged(first.nonce)
        proof = first.challenged(last.nonce)
        assert proof is not None
        answer = last.proved(proof)
        assert answer is not None
        assert first.proved(answer) is None


def test_a_proof_that_comes_back_to_its_sender_proves_nothing():
    first = side(b"secret", bytes(32), is_first=True)
    proof = first.challenged(bytes(32))
    assert proof is not None
    with pytest.raises(NotAuthenticated):
        first.proved(proof)


def test_steps_in_another_order_are_refused():
    last = side(b"secret", bytes(32), is_first=False)
    with pytest.raises(NotAuthenticated, match="a proof before the challenge"):
        last.proved(bytes(32))
    last.challenged(bytes(32))
    with pytest.raises(NotAuthenticated, match="a second challenge"):
        last.challenged(bytes(32))


def test_it_shows_no_secret():
    assert repr(side(b"hidden", bytes(32), is_first=True)) == "<SharedSecret of the first>"
