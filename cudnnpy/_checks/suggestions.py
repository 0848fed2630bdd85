"""Suggestions at the ends of errors: what to type in place of a mistyped or another library's option, value or call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps
from types import FunctionType
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

from cudnnpy._checks.other_names import advice, advice_on_values

_ClassT = TypeVar("_ClassT", bound=type)
_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])
Suggest: TypeAlias = Callable[[Any, str, tuple[str, ...]], str]

_SHOWN = 60  # characters of a name that are compared
_CUTOFF = 0.75  # of difflib's ratio, for names that are meant
_VARIABLE_KEYWORDS = 8  # inspect.CO_VARKEYWORDS


def suggest_value(value: str, allowed: Iterable[str]) -> str:
    """Return the end of an error about a value: another library's value in our words, or the names that may be meant, or ""."""
    name = value[:_SHOWN].lower().replace("-", "_")
    names = list(allowed)
    for accepted, sentences in advice_on_values().items():
        if name in sentences and (not accepted or accepted in names):
            return f". {sentences[name]}"
    in_another_case = [known for known in names if known.lower() == name]
    return did_you_mean(
        in_another_case or [known for known in names if name and known.startswith(name)] or near(name, names)
    )


def near(name: str, known: Iterable[str]) -> list[str]:
    """Return the name that a misspelled name may mean, if there is one, in a list."""
    return get_close_matches(name[:_SHOWN], sorted(known), 1, _CUTOFF)


def did_you_mean(names: list[str]) -> str:
    """Return the end of an error that names one or two candidates for a misspelled name; "" for none."""
    return f". Did you mean {' or '.join(map(repr, names[:2]))}?" if names else ""


def suggest_option(
    _object: object, option: str, names: Collection[str], ours: Iterable[str] = (), section: str = "option sentences"
) -> str:
    """Return the end of the error for an unknown option, which may be another library's, or "".

    `ours` are our names of it besides those of all options, and `section` has the sentences.
    """
    known = [name for name in (*ours, our_option(option)) if name in names]
    if not known and option in (sentences := advice(section)):
        return f". {sentences[option]}"
    unit = ", in bytes" if "workspace_limit" in known else ""
    return "".join(f". Did you mean {name}={unit}?" for name in (known or near(option, names))[:1])


def with_suggestions(options_class: _ClassT) -> _ClassT:
    """Make the constructor of a dataclass explain unknown arguments: other libraries' names, and numbers of channels.

    `__init__` stays the constructor of the dataclass for help, signatures and type checkers.
    """
    options_class.__init__ = explained(options_class.__init__)  # type: ignore[misc]
    return options_class


def explain_keywords(kind: type, suggest: Suggest) -> None:
    """Make the public methods that a class defines explain calls that do not fit, except those that take any keyword.

    `suggest` returns the end of the error from the object, the unknown keyword and the names of the arguments.
    """
    for name, attribute in list(vars(kind).items()):
        wrap = type(attribute) if isinstance(attribute, classmethod | staticmethod) else lambda function: function
        method: Any = getattr(attribute, "__func__", attribute)
        is_public = name == "__init__" or not name.startswith("_")
        if is_public and isinstance(method, FunctionType) and not method.__code__.co_flags & _VARIABLE_KEYWORDS:
            setattr(kind, name, wrap(explained(method, suggest)))


def explained(function: _FunctionT, suggest: Suggest = suggest_option) -> _FunctionT:
    """Make a function or method explain unknown keywords, and arguments that are missing or too many."""

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except TypeError:
            _check_call(call, given, named, suggest)
            raise

    return cast(_FunctionT, call)


def _check_call(function: Any, given: tuple[Any, ...], named: dict[str, Any], suggest: Suggest) -> None:
    """Raise TypeError for arguments that the signature of a function does not take."""
    from inspect import Signature, signature  # importing cudnnpy.raw would take a tenth longer

    accepted, called = signature(function), function.__qualname__
    is_method = next(iter(accepted.parameters), "") in ("self", "cls") and bool(given)
    if called.endswith((".__init__", ".__new__")) and is_method:
        called = (given[0] if isinstance(given[0], type) else type(given[0])).__name__
    parameters = list(accepted.parameters.values())[is_method:]
    known = tuple(one.name for one in parameters)
    takes_any = any(one.kind == one.VAR_KEYWORD for one in parameters)
    if unknown := next((name for name in named if name not in known and not takes_any), ""):
        raise TypeError(
            f"an argument of {called} must be one of {', '.join(known)}; got {unknown!r:.80}"
            f"{suggest(given[0] if given else None, unknown, known)}"
        ) from None
    try:
        accepted.bind(*given, **named)
    except TypeError as error:
        bare = [one.replace(annotation=one.empty) for one in parameters]
        named_only = next((one.name for one in parameters if one.kind == one.KEYWORD_ONLY), "")
        of_filter = advice("option sentences")["in_channels"]
        then = f". {of_filter if 'dilation' in known else f'The arguments after * have names, as {named_only}='}"
        texts = ", ".join((*map(shown, given[is_method:]), *(f"{name}={shown(one)}" for name, one in named.items())))
        raise TypeError(
            f"the arguments of {called} must be {Signature(bare)}; got ({texts:.200}): {error}"
            f"{then if named_only and 'too many' in str(error) else ''}"
        ) from None


def shown(argument: object) -> str:
    """Return an argument as an error about a call shows it: a number or text by its value, any other by its type."""
    return repr(argument) if isinstance(argument, int | float | str | None) else type(argument).__name__


def suggest_argument(operation: object, unknown: str, known: tuple[str, ...]) -> str:
    """Return the end of the error for an unknown keyword of a layer's method, which may be an option of the layer."""
    from dataclasses import fields

    kind: Any = type(operation)
    options = [option.name for option in fields(kind) if option.init]
    ours = unknown if unknown in options else our_option(unknown)
    if ours in options:
        return f". It is an option of the operation: {kind.__name__}({ours}=...)"
    guess = did_you_mean(near(unknown, known))
    sentences = advice("option sentences")
    return guess or (f". {sentences[unknown]}" if unknown in sentences else "")


def our_option(option: str) -> str:
    """Return our name of another library's option, or ""."""
    return advice("options").get(option, "")


def refuse_call(operation: object, *arguments: object, **options: object) -> NoReturn:
    """Raise the TypeError of a call of an operation itself, which layers of frameworks permit: it names the methods."""
    kind = type(operation)
    methods = [name for name in dir(kind) if name.startswith(("forward", "backward"))]
    methods.sort(key=lambda name: not name.startswith("forward"))
    raise TypeError(
        f"a call of {kind.__name__} must name a method ({', '.join(methods)}); got a call of the object itself"
    )
