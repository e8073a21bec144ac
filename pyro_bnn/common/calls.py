"""Whether numbers that somebody gave fit what they are given to, said in words before it is called."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["misfit"]


def misfit(make: Callable[..., Any], numbers: Mapping[str, Any], args: Sequence[Any] = ()) -> str | None:
    """
    Return what is wrong with `make(*args, **numbers)`, as far as names tell; None if nothing is.

    >>> def tempered(eta): ...
    >>> misfit(tempered, {"etta": 0.5})
    "there is no 'etta' (did you mean 'eta'?); it takes eta"
    >>> misfit(tempered, {})
    'eta is missing'
    >>> misfit(lambda: None, {"eta": 0.5})
    "there is no 'eta'; it takes nothing"
    """
    try:
        parameters = list(inspect.signature(make).parameters.values())
    except (ValueError, TypeError):  # some classes of C have no signature
        return None
    kinds = inspect.Parameter
    named = [p for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)][len(args) :]
    takes = [p.name for p in named]
    unknown = [name for name in numbers if name not in takes]
    if unknown and not any(p.kind is kinds.VAR_KEYWORD for p in parameters):
        near = difflib.get_close_matches(unknown[0], takes, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        return f"there is no {unknown[0]!r}{meant}; it takes {', '.join(takes) or 'nothing'}"
    missing = [p.name for p in named if p.default is kinds.empty and p.name not in numbers]
    return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing" if missing else None
