"""Principals: the file is read as it was written, and as a whole or not at all."""

import json
from contextlib import suppress
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import BadInput, Forbidden
from waterclock.security.principals import (
    ANYONE,
    KnownPrincipal,
    Principal,
    Principals,
    TokenRecord,
    decode_principals,
    encode_principals,
)
from waterclock.security.quotas import Quotas
from waterclock.security.rights import KINDS, Right, Rights, parse_rights

globs = st.text("ab._*", min_size=1, max_size=8)
resources = st.sampled_from(["topic", "stream", "any"])
rights = st.sets(
    st.builds(Right, st.sampled_from(KINDS[:4]), resources, globs, st.just("*"))
    | st.builds(Right, st.just("consume"), st.just("any"), globs, globs)
    | st.just(Right("admin", "any", "*")),
    max_size=5,
).map(Rights)
amounts = st.none() | st.integers(1, 1 << 50)
quotas = st.builds(Quotas, bytes_per_s=amounts, requests_per_s=amounts, topics=amounts)
tokens = st.dictionaries(
    st.text("0123456789abcdef", min_size=32, max_size=32),
    st.builds(TokenRecord, st.text(max_size=20), st.integers(0, 1 << 50)),
    max_size=3,
)
names = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)

FILE = {
    "version": 1,
    "grpc": "localhost:9000",
    "http": "https://localhost:8080",
    "principals": {
        "billing": {
            "made_ms": 1_790_000_000_000,
            "rights": {"publish": ["orders.*"], "consume": ["orders.*:billing"]},
            "quotas": {"bytes_per_s": 10_485_760},
            "tokens": {"0123456789abcdef0123456789abcdef": {"kid": "1-a", "expires_ms": 1}},
        }
    },
}


def file_with(**changes: object) -> bytes:
    billing = FILE["principals"]["billing"] | changes  # type: ignore[index]
    return json.dumps(FILE | {"principals": {"billing": billing}}).encode()


@st.composite
def everyone(draw: st.DrawFn) -> Principals:
    known = {
        name: KnownPrincipal(
            name,
            draw(rights),
            draw(quotas),
            draw(tokens),
            draw(st.booleans()),
            draw(st.integers(0)),
        )
        for name in draw(st.sets(names, max_size=4))
    }
    return Principals("localhost:9000", "https://localhost:8080", known)


@given(everyone())
def test_decoding_undoes_encoding(principals):
    again = decode_principals(encode_principals(principals))

    assert again == principals
    assert encode_principals(again) == encode_principals(principals)


def test_the_documented_file_is_read():
    principals = decode_principals(json.dumps(FILE).encode())

    billing = principals.known["billing"]
    assert billing.rights == parse_rights(
        {"publish": ["orders.*"], "consume": ["orders.*:billing"]}
    )
    assert billing.quotas == Quotas(bytes_per_s=10 << 20)
    assert not billing.is_outside
    assert isinstance(principals.known, MappingProxyType)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "principals.json: "),
        (b"[]", "principals.json: "),
        (b"\xff", "principals.json: "),
        (json.dumps(FILE | {"version": 2}).encode(), "version 2 is not 1"),
        (json.dumps(FILE | {"more": 1}).encode(), "unknown field"),
        (file_with(more=1), "unknown field"),
        (file_with(rights={"delete": ["*"]}), "delete"),
        (file_with(rights={"publish": ["a b"]}), "'billing': --publish"),
        (file_with(rights={"publish": "*"}), "array"),
        (file_with(quotas={"seconds": 1}), "a quota that is none"),
        (file_with(quotas={"topics": 0}), "quota topics must be"),
        (file_with(tokens={"x": {}}), "kid"),
        (file_with(tokens={f"{n}": {"kid": "", "expires_ms": 0} for n in range(1_001)}), "tokens"),
        (json.dumps(FILE | {"principals": {"a b": {"made_ms": 1}}}).encode(), "principal name"),
        (json.dumps(FILE | {"principals": {"x" * 65: {"made_ms": 1}}}).encode(), "at most 64"),
        (json.dumps(FILE | {"principals": {"node:x": {"made_ms": 1}}}).encode(), "principal name"),
    ],
)
def test_a_file_that_is_wrong_anywhere_is_refused_as_a_whole(data, why):
    with pytest.raises(BadInput, match=why):
        decode_principals(data)


@given(st.binary(max_size=100))
def test_the_decoder_raises_nothing_else(data):
    with suppress(BadInput):
        decode_principals(data)


def test_deep_json_is_refused():
    with pytest.raises(BadInput):
        decode_principals(b'{"version":' + b"[" * 100_000)


def test_a_demand_says_what_is_missing_on_what():
    billing = Principal("billing", parse_rights({"publish": ["orders"]}))

    billing.demand("publish", topic="orders")
    with pytest.raises(Forbidden) as why:
        billing.demand("consume", topic="orders", group="g")

    assert str(why.value) == "billing has no right to consume topic 'orders' as group 'g'"
    assert (why.value.right, why.value.resource) == ("consume", "topic 'orders' as group 'g'")


def test_a_node_that_is_not_secured_lets_anyone_do_everything():
    for kind in KINDS:
        ANYONE.demand(kind)
        ANYONE.demand(kind, topic="__audit")
