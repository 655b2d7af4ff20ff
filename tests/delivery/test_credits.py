from waterclock.delivery.credits import Credit


def test_credit_is_set_and_not_added():
    credit = Credit(messages=5, bytes=1_000)
    assert credit.take(10, bytes_each=10) == 5

    credit.set(messages=7, bytes=1_000)
    credit.set(messages=7, bytes=1_000)

    assert credit.take(10, bytes_each=10) == 2


def test_bytes_bound_messages():
    credit = Credit(messages=100, bytes=95)

    assert credit.take(100, bytes_each=10) == 9
    assert credit.take(1, bytes_each=10) == 0


def test_one_message_larger_than_all_credit_is_let_through_when_nothing_is_held():
    credit = Credit(messages=100, bytes=95)

    assert credit.take(2, bytes_each=1_000) == 1
    assert credit.take(2, bytes_each=1_000) == 0
    credit.give(1, bytes=1_000)
    assert credit.take(2, bytes_each=1_000) == 1


def test_no_credit_is_no_message():
    assert Credit(messages=0, bytes=95).take(1, bytes_each=1) == 0
    assert Credit(messages=1, bytes=0).take(1, bytes_each=1_000) == 0


def test_lowered_credit_holds_back_until_enough_came_back():
    credit = Credit(messages=10, bytes=1_000)
    credit.take(10, bytes_each=1)
    credit.set(messages=3, bytes=1_000)
    credit.give(7, bytes=7)

    assert credit.take(1, bytes_each=1) == 0
    credit.give(1, bytes=1)
    assert credit.take(5, bytes_each=1) == 1


def test_credit_is_free_as_long_as_there_is_some_of_both_kinds():
    credit = Credit(messages=3, bytes=20)
    assert credit.free == 3

    credit.take(2, bytes_each=10)
    assert credit.free == 0, "no bytes"
    credit.give(1, bytes=10)
    assert credit.free == 2
    credit.set(messages=0, bytes=20)
    assert credit.free == 0
    credit.set(messages=5, bytes=0)
    assert credit.free == 0


def test_who_holds_nothing_has_credit_for_one_message_of_any_size():
    credit = Credit(messages=3, bytes=1)

    assert credit.free == 3
    credit.take(1, bytes_each=100)
    assert credit.free == 0
