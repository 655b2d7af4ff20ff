"""Tests of the kernel's fsyncs run beside the checkout, if where tests write has none."""

import pytest

from tests.kit import aio


class Somewhere:
    """Fsyncs, wherever they are asked for."""

    def close(self) -> None:
        pass


def test_where_tests_write_is_taken_first_and_then_the_checkout(tmp_path, monkeypatch):
    memory, checkout = tmp_path / "memory", tmp_path / "checkout"
    monkeypatch.setattr(aio, "CHECKOUT", checkout)
    without = set()
    monkeypatch.setattr(aio, "aio_at", lambda path: None if path in without else Somewhere())

    with aio.folder_with_aio(memory) as folder:
        assert folder.parent == memory
    without.add(memory)
    with aio.folder_with_aio(memory) as folder:
        assert folder.parent == checkout
    assert not folder.exists()


def test_without_any_it_is_skipped_for_a_reason_that_ci_knows(tmp_path, monkeypatch):
    monkeypatch.setattr(aio, "aio_at", lambda path: None)

    with pytest.raises(pytest.skip.Exception, match=r"^no AIO: "), aio.folder_with_aio(tmp_path):
        pass
