"""Tokens come back as they were, sort as their positions do, and cannot be made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import BadInput, ForgedToken
from waterclock.streams.tokens import LIVE, STORED, Token, Tokens

numbers = st.integers(0, 2**64 - 1)
tokens = st.builds(Token, st.sampled_from([LIVE, STORED]), numbers, numbers)
TOKENS = Tokens(bytes(range(32)))
SAMPLE = TOKENS.encode("s", Token(LIVE, 7, 9))


@given(st.text(max_size=20), tokens)
def test_a_token_comes_back(stream, token):
    text = TOKENS.encode(stream, token)

    assert TOKENS.decode(stream, text) == token
    assert text.isalnum()


@given(numbers, numbers)
def test_tokens_of_a_stream_sort_as_their_positions(one, other):
    texts = [TOKENS.encode("s", Token(STORED, 0, position)) for position in (one, other)]

    assert (texts[0] < texts[1]) == (one < other)


def test_the_letters_are_those_of_version_1():
    assert SAMPLE == "0100000000000000070000000000000009adec7a2474eb7b742a548a7aa7"


@given(st.integers(0, len(SAMPLE) - 1), st.sampled_from("0123456789abcdefABCDEF"))
def test_a_changed_letter_is_seen(at, letter):
    changed = SAMPLE[:at] + letter + SAMPLE[at + 1 :]

    if changed != SAMPLE:
        with pytest.raises(BadInput, match="resumeToken"):
            TOKENS.decode("s", changed)


@given(st.text())
def test_whatever_else_is_no_token(text):
    with pytest.raises(BadInput, match="resumeToken"):
        TOKENS.decode("s", text)


def test_a_token_of_another_stream_or_key_is_forged():
    other = Tokens(bytes(32))

    for tokens, stream in ((TOKENS, "t"), (other, "s")):
        with pytest.raises(ForgedToken, match="resumeToken"):
            tokens.decode(stream, SAMPLE)
