"""Finding the user's function, and what it may look like."""

import functools

import pytest

from waterclock.dispatch.worker.handlers import (
    Delivery,
    PermanentError,
    handler_of,
    load,
    parse_json,
)
from waterclock.model.errors import BadInput


def one(message):
    return message


def two(message, delivery):
    return delivery


def optional(message, verbose=False):
    return message


async def later(message):
    return message


class Callable:
    async def __call__(self, message):
        return message

    def method(self, message):
        return message


@pytest.mark.parametrize(
    ("function", "is_async", "wants_delivery"),
    [
        (one, False, False),
        (two, False, True),
        (optional, False, False),
        (later, True, False),
        (Callable(), True, False),
        (Callable().method, False, False),
        (functools.partial(two, delivery=None), False, False),
        (functools.partial(later), True, False),
        (lambda *everything: everything, False, False),
        (dict, False, False),
    ],
)
def test_a_function_is_called_as_it_can_be(function, is_async, wants_delivery):
    handler = handler_of(function)

    assert (handler.is_async, handler.wants_delivery) == (is_async, wants_delivery)


@pytest.mark.parametrize("function", [lambda: None, lambda a, b, c: None, 7, lambda *, key: key])
def test_what_cannot_be_called_with_a_message_is_refused(function):
    with pytest.raises(BadInput):
        handler_of(function)


def test_a_handler_is_found_by_its_name_also_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", ["/nowhere"])
    (tmp_path / "my_handlers_of_the_test.py").write_text(
        "class A:\n    def f(self, m): return m\na = A()\n"
    )

    assert load("my_handlers_of_the_test:a.f", folder=tmp_path).call(7) == 7


@pytest.mark.parametrize(
    "name", ["", "json", "json:", ":loads", "no_such_module:f", "json:nothing"]
)
def test_a_name_that_leads_nowhere_is_one_clear_error(name):
    with pytest.raises(BadInput, match="handler"):
        load(name)


def test_json_is_parsed_and_anything_else_is_refused_for_good():
    assert parse_json(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    for body in (b"", b"{", b"\xff\xfe", b"nan", b'{"a": 1} x'):
        with pytest.raises(PermanentError):
            parse_json(body)


def test_a_delivery_tells_its_uuid_as_text():
    raw = bytes.fromhex("0123456789ab4def8123456789abcdef")

    assert Delivery(raw, 0, 1).uuid == "01234567-89ab-4def-8123-456789abcdef"
