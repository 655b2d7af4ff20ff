"""Encrypted values: what comes back, what does not, and the bytes in between."""

import os
import pickle
from base64 import b64encode

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import example, given
from hypothesis import strategies as st

from waterclock.client import encryption
from waterclock.client.encryption import OVERHEAD_BYTES, Keys
from waterclock.model.errors import BadInput, CannotDecrypt

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
KEYS = Keys([OLD])
TOPICS = st.sampled_from(["orders", "orders.eu", "a"])
MAYBE = st.none() | st.binary(max_size=40)

# Written by the first version: values of that time must still be read.
GOLDEN = bytes.fromhex(
    "f5574501736d53417772697465722d68616c6621000000000000000000000007"
    "5153af5166fcf04a10a0c72f60d7f6d1f743403fc2daf0c9ab"
)


@given(TOPICS, MAYBE, MAYBE)
def test_what_was_encrypted_comes_back(topic, key, value):
    sealed = KEYS.encrypt(topic, key, value)

    assert KEYS.decrypt(topic, key, sealed) == value
    if value is not None:
        assert sealed is not None
        assert len(sealed) == len(value) + OVERHEAD_BYTES


@given(st.binary(min_size=8, max_size=40))
def test_no_value_shows_and_none_looks_like_another(value):
    one, two = KEYS.encrypt("orders", None, value), KEYS.encrypt("orders", None, value)

    assert one is not None
    assert value not in one
    assert one[8:] != two[8:]  # type: ignore[index]


@given(st.binary(max_size=40), st.data())
def test_a_changed_bit_is_found_wherever_it_is(value, data):
    sealed = bytearray(KEYS.encrypt("orders", b"k", value) or b"")
    at = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[at // 8] ^= 1 << at % 8

    with pytest.raises(CannotDecrypt):
        KEYS.decrypt("orders", b"k", bytes(sealed))


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda b: b"\xf5WE\x01" + b))
@example(b"\xf5WE")
@example(b"\xf5WE\x01" + bytes(60))
def test_whatever_bytes_come_are_refused_by_name(junk):
    with pytest.raises(CannotDecrypt, match="'orders'"):
        KEYS.decrypt("orders", None, junk)


@pytest.mark.parametrize(
    ("topic", "key"), [("bills", b"k"), ("orders", b"j"), ("orders", None), ("order", b"sk")]
)
def test_a_value_cannot_be_passed_off_as_that_of_another_topic_or_key(topic, key):
    sealed = KEYS.encrypt("orders", b"k", b"100 coins")

    with pytest.raises(CannotDecrypt, match="of another topic or key"):
        KEYS.decrypt(topic, key, sealed)


def test_a_dead_letter_is_read_and_goes_back():
    sealed = KEYS.encrypt("orders", b"k", b"100 coins")

    assert KEYS.decrypt("orders.dlq", b"k", sealed) == b"100 coins"
    assert KEYS.decrypt("orders", b"k", KEYS.encrypt("orders.dlq", b"k", b"1")) == b"1"


def test_a_tombstone_stays_one():
    assert KEYS.encrypt("orders", b"k", None) is None
    assert KEYS.decrypt("orders", b"k", None) is None


def test_the_newest_key_encrypts_and_all_decrypt():
    rotated = Keys([OLD, NEW])
    older, newer = KEYS.encrypt("t", None, b"then"), rotated.encrypt("t", None, b"now")

    assert rotated.decrypt("t", None, older) == b"then"
    assert Keys([NEW]).decrypt("t", None, newer) == b"now"
    with pytest.raises(CannotDecrypt, match=r"with key .* not among the keys"):
        KEYS.decrypt("t", None, newer)


def test_plaintext_is_refused_unless_it_is_allowed():
    with pytest.raises(CannotDecrypt, match="is not encrypted: allow_plaintext"):
        KEYS.decrypt("t", None, b"hello")

    assert Keys([OLD], allow_plaintext=True).decrypt("t", None, b"hello") == b"hello"


def test_values_that_were_written_once_are_read_for_ever():
    assert KEYS.decrypt("orders", b"order-1", GOLDEN) == b"100 coins"


@pytest.mark.parametrize(
    ("key", "context", "sealed"),
    [
        (1, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (3, b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
    ],
)
def test_the_cipher_is_the_one_of_c2sp(key, context, sealed):
    """The vectors of c2sp.org/XAES-256-GCM."""
    nonce = b"ABCDEFGHIJKLMNOPQRSTUVWX"
    cipher: AESGCM = encryption._derived(bytes([key]) * 32, nonce[:12])

    assert cipher.encrypt(nonce[12:], b"XAES-256-GCM", context).hex() == sealed


def test_no_nonce_comes_twice_nor_in_a_copy():
    copies = [KEYS, pickle.loads(pickle.dumps(KEYS)), Keys([OLD])]
    nonces = [(each.encrypt("t", None, b"") or b"")[8:32] for each in copies for _ in range(100)]

    assert len(set(nonces)) == 300


def test_a_forked_process_draws_anew(monkeypatch):
    keys = Keys([OLD])
    before = keys._half
    monkeypatch.setattr(os, "getpid", lambda: -1)
    sealed = keys.encrypt("t", None, b"")

    assert sealed is not None
    assert sealed[8:20] != before
    assert keys.decrypt("t", None, sealed) == b""


def test_keys_are_read_from_a_file_the_newest_last(tmp_path):
    lines = ["# of 2026", b64encode(OLD).decode(), "", b64encode(NEW).decode()]
    (tmp_path / "keys").write_text("\n".join(lines))
    found = Keys.from_file(tmp_path / "keys")

    assert repr(found) == repr(Keys([OLD, NEW]))
    assert Keys([NEW]).decrypt("t", None, found.encrypt("t", None, b"x")) == b"x"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "from 1 to 1000, not 0"),
        ("c2hvcnQ=", "line 1: not 32 bytes in base64, as `openssl rand"),
        (b64encode(OLD).decode()[:-4], "line 1: not 32 bytes"),
        (f"#\n{b64encode(OLD).decode()}\n{b64encode(OLD).decode()}", "two are the same"),
        ("über", "it is no text"),
    ],
)
def test_a_file_that_has_no_good_keys_is_refused_and_not_shown(tmp_path, text, problem):
    (tmp_path / "keys").write_text(text)

    with pytest.raises(BadInput, match=problem) as refused:
        Keys.from_file(tmp_path / "keys")
    assert not [line for line in text.split() if len(line) > 3 and line in str(refused.value)]


def test_keys_do_not_show_themselves():
    shown = f"{KEYS} {KEYS!r}"

    assert b64encode(OLD).decode() not in shown
    assert OLD.hex() not in shown
    assert KEYS.blinded(b"a") == pickle.loads(pickle.dumps(KEYS)).blinded(b"a") != b"a"
