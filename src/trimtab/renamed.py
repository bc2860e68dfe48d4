"""Former names of arguments, classes and functions, which are accepted for some time with a DeprecationWarning."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from trimtab.notice import warn_user

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def renamed_arguments(**names: str) -> Callable[[F], F]:
    """Let a function accept former names of keyword arguments: `@renamed_arguments(former="name")`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def accepting(*args: Any, **kwargs: Any) -> Any:
            for former in names.keys() & kwargs.keys():
                if names[former] in kwargs:
                    raise TypeError(f"{former} is the former name of {names[former]}; give only {names[former]}.")
                _warn(former, names[former])
                kwargs[names[former]] = kwargs.pop(former)
            return function(*args, **kwargs)

        return accepting  # type: ignore[return-value]

    return decorate


def renamed_options(**names: str) -> Callable[[C], C]:
    """The same for the constructor and the attributes of a class."""

    def decorate(cls: C) -> C:
        cls.__init__ = renamed_arguments(**names)(cls.__init__)  # type: ignore[misc]
        for former, name in names.items():
            setattr(cls, former, property(functools.partial(_read, former=former, name=name)))
        return cls

    return decorate


def renamed_members(namespace: dict[str, Any], **names: str) -> Callable[[str], Any]:
    """The same for what a module defines.

    Used as a module's own function: `__getattr__ = renamed_members(globals(), former="name")`.
    """

    def read(former: str) -> Any:
        if former not in names:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {former!r}")
        _warn(former, names[former])
        return namespace[names[former]]

    return read


def _read(instance: object, *, former: str, name: str) -> Any:
    _warn(former, name)
    return getattr(instance, name)


def _warn(former: str, name: str) -> None:
    warn_user(f"{former} is now called {name}; the former name will go.", DeprecationWarning)
