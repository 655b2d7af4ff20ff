"""Keys that nodes share: believed one rotation ahead and behind, and nothing else is a file."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import BadInput
from waterclock.security.cluster_keys import (
    GOSSIP,
    PEER_LINK,
    STREAM_TOKENS,
    ClusterKeys,
    decode_cluster_keys,
)

KEY = base64.b64encode(bytes(32)).decode()


def test_the_file_is_read_as_it_was_written():
    keys = ClusterKeys.make().rotated()

    assert len(keys.keys) == 3
    assert decode_cluster_keys(keys.encode()) == keys


def test_nodes_that_are_one_rotation_apart_believe_each_other():
    keys = ClusterKeys.make()
    for _ in range(4):
        ahead = keys.rotated()
        assert ahead.keys[0] != keys.keys[0]
        assert ahead.keys[0] in keys.keys
        assert keys.keys[0] in ahead.keys
        keys = ahead


def test_two_rotations_end_a_key():
    first = ClusterKeys.make()

    assert first.keys[0] not in first.rotated().rotated().keys


def test_a_file_with_one_key_gets_another_before_it_is_used():
    one = ClusterKeys((bytes(32),))

    assert one.rotated().keys[0] == one.keys[0]
    assert one.rotated().rotated().keys[2] == one.keys[0]


def test_each_purpose_has_keys_of_its_own():
    keys = ClusterKeys((bytes(32),))

    # Made with Python's hmac, as RFC 5869 says.
    expected = "eb503ca2c0373403f1b0d95b52784763bbfacc05915f1c064ec595441d9ba83d"
    assert keys.derived(GOSSIP)[0].hex() == expected
    assert len({keys.derived(each)[0] for each in (GOSSIP, PEER_LINK, STREAM_TOKENS)}) == 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"[" * 100_000,
        b"\xff",
        json.dumps({"version": 2, "keys": [KEY]}).encode(),
        json.dumps({"version": 1, "keys": []}).encode(),
        json.dumps({"version": 1, "keys": [KEY] * 9}).encode(),
        json.dumps({"version": 1, "keys": [KEY[:-4]]}).encode(),
        json.dumps({"version": 1, "keys": ["!"]}).encode(),
        json.dumps({"version": 1, "keys": [1]}).encode(),
        json.dumps({"version": 1, "keys": 1}).encode(),
        json.dumps({"version": 1}).encode(),
    ],
)
def test_what_is_no_file_of_keys_is_refused(data):
    with pytest.raises(BadInput, match=r"cluster\.json"):
        decode_cluster_keys(data)


@given(st.binary())
def test_any_bytes_are_keys_or_refused(data):
    with pytest.raises(BadInput):
        decode_cluster_keys(data)


def test_no_key_is_shown():
    assert repr(ClusterKeys.make()) == "<ClusterKeys of 2>"
