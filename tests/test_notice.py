"""Warnings show the user's own line."""

import _thread
import importlib.machinery
import linecache
import warnings

import pytest
import torch
from torch import nn

import trimtab
from trimtab.notice import warn_user


def the_line_of(warning: warnings.WarningMessage) -> str:
    assert warning.filename == __file__
    return linecache.getline(warning.filename, warning.lineno).strip()


def test_when_bnp_is_made() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with pytest.warns(trimtab.TrimtabWarning, match="leaves these layers alone") as said:
        trimtab.BNP(model)
    assert the_line_of(said[0]) == "trimtab.BNP(model)"


def test_when_the_optimizer_steps() -> None:
    """Through torch's own wrappers of step and hooks."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trimtab.BNP(model).attach(optimizer)
    nn.functional.linear(torch.randn(2, 3), model.weight).sum().backward()
    with pytest.warns(trimtab.TrimtabWarning, match="No input was seen") as said:
        optimizer.step()
    assert the_line_of(said[0]) == "optimizer.step()"


def test_from_a_thread_of_torchs_the_line_is_where_the_main_thread_waits() -> None:
    """As from a hook of a backward on a GPU: no line of that thread is the user's."""
    code = compile("warn_user('from afar'); done.release()", "<frozen engine>", "exec")
    done = _thread.allocate_lock()
    done.acquire()

    def wait_for_it() -> None:
        _thread.start_new_thread(exec, (code, {"warn_user": warn_user, "done": done}))
        done.acquire()

    with pytest.warns(trimtab.TrimtabWarning, match="from afar") as said:
        wait_for_it()
    assert said[0].filename == __file__


def test_the_same_line_says_the_same_once() -> None:
    """Under Python's default filter, as for any other warning."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(3):
            warn_user("the same")
    assert len(said) == 1


def test_code_that_is_in_no_file() -> None:
    globals_ = {
        "__name__": "__main__",
        "__loader__": importlib.machinery.BuiltinImporter,
        "warn_user": warn_user,
    }  # python -c
    with pytest.warns(trimtab.TrimtabWarning, match="hello"):
        exec("warn_user('hello')", globals_)
