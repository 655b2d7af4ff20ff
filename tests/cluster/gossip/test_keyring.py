"""Keys: what is sealed by one is opened by the others while keys are rotated."""

import base64

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.gossip.errors import BadKey, BadPacket
from waterclock.cluster.gossip.keyring import OVERHEAD_BYTES, Keyring

OLD, NEW = b"o" * 32, b"n" * 32
NONCE = bytes(range(12))


@given(st.binary(max_size=200), st.sampled_from([16, 24, 32]), st.binary(max_size=9))
def test_what_is_sealed_is_opened(plain, size, extra):
    keyring = Keyring([b"k" * size])
    sealed = keyring.seal(plain, nonce=NONCE, extra=extra)

    assert len(sealed) == len(plain) + OVERHEAD_BYTES
    assert keyring.open(sealed, extra=extra) == plain
    with pytest.raises(BadPacket):
        keyring.open(sealed, extra=extra + b"!")


def test_a_key_is_rotated_without_a_moment_in_which_nodes_cannot_read_each_other():
    first, second = Keyring([OLD]), Keyring([OLD])

    def read_each_other():
        for writer, reader in ((first, second), (second, first)):
            assert reader.open(writer.seal(b"plain", nonce=NONCE)) == b"plain"

    for step in (
        lambda ring: ring.add(NEW), lambda ring: ring.use(NEW), lambda ring: ring.remove(OLD),
    ):  # fmt: skip
        for keyring in (first, second):
            step(keyring)
            read_each_other()

    assert first.keys == second.keys == (NEW,)
    with pytest.raises(BadPacket, match="a key that we do not have"):
        first.open(Keyring([OLD]).seal(b"plain", nonce=NONCE))


def test_the_first_key_seals_and_cannot_be_removed():
    keyring = Keyring([OLD, NEW])

    assert Keyring([OLD]).open(keyring.seal(b"", nonce=NONCE)) == b""
    with pytest.raises(BadKey, match="use another"):
        keyring.remove(OLD)
    with pytest.raises(BadKey, match="before it is used"):
        keyring.use(b"x" * 16)
    with pytest.raises(BadKey, match="not in the keyring"):
        keyring.remove(b"x" * 16)


def test_keys_are_of_three_lengths_and_a_keyring_has_one():
    with pytest.raises(BadKey, match="not 5"):
        Keyring([b"short"])
    with pytest.raises(BadKey, match="needs a key"):
        Keyring([])
    with pytest.raises(BadKey, match="base64"):
        Keyring.of_texts(["not base64!"])
    assert Keyring.of_texts([base64.b64encode(OLD).decode()]).keys == (OLD,)


def test_the_older_version_is_read_without_its_padding():
    sealed = b"\x00" + NONCE + AESGCM(OLD).encrypt(NONCE, b"plain" + b"\x0b" * 11, None)
    wrong = b"\x00" + NONCE + AESGCM(OLD).encrypt(NONCE, b"plain" + b"\x20" * 11, None)

    assert Keyring([OLD]).open(sealed) == b"plain"
    with pytest.raises(BadPacket, match="padded wrongly"):
        Keyring([OLD]).open(wrong)


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(data):
    with pytest.raises(BadPacket):
        Keyring([OLD]).open(data)


def test_a_keyring_does_not_show_its_keys():
    assert repr(Keyring([OLD, NEW])) == "<Keyring of 2>"
