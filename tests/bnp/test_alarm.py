"""When a flag that was raised is told of."""

import torch

from trimtab.bnp.alarm import EVERY, DeferredAlarm


def alarm() -> tuple[DeferredAlarm, list[int]]:
    rung: list[int] = []
    return DeferredAlarm(lambda: rung.append(1)), rung


def test_a_boolean_on_the_cpu_rings_at_once_and_once() -> None:
    one, rung = alarm()
    one.watch(torch.tensor(False))
    one.check()
    assert rung == []
    for _ in range(2):
        one.watch(torch.tensor(True))
        one.check()
    assert rung == [1]


def test_what_lasts_is_looked_at_now_and_then() -> None:
    one, rung = alarm()
    flag = torch.zeros((), dtype=torch.int32)
    for step in range(3 * EVERY):
        one.watch(flag)
        one.check()
        if step == EVERY:
            flag.fill_(1)  # as a GPU does, at any time
        assert rung == ([1] if step >= 2 * EVERY - 1 else [])


def test_what_lasts_is_looked_at_when_asked() -> None:
    one, rung = alarm()
    one.watch(torch.ones((), dtype=torch.int32))
    one.check()
    assert rung == []
    one.check(now=True)
    assert rung == [1]


def test_both_kinds() -> None:
    one, rung = alarm()
    one.watch(torch.zeros((), dtype=torch.int32))
    one.watch(torch.tensor(True))
    one.check()
    assert rung == [1]
    one.watch(torch.ones((), dtype=torch.int32))
    one.check(now=True)
    assert rung == [1]
