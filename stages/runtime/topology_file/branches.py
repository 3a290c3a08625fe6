"""Entries that may be written in two ways: only the errors of the way that was taken are of interest."""

from collections.abc import Iterator
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

# pydantic puts the name of the alternative into the path; in a file there is no such key.
_SHORT: Final = "constrained-str"
_LONG: Final = "KeySection"


def details(error: ValidationError, data: Any) -> Iterator[ErrorDetails]:
    """The errors of `data`, with paths as in the file."""
    for detail in error.errors(include_url=False):
        path = detail["loc"]
        at = next((index for index, part in enumerate(path) if part in (_SHORT, _LONG)), None)
        if at is None or path[:1] != ("tenants",):
            yield detail
            continue
        is_long = isinstance(_value(data, path[:at]), dict)
        if is_long == (path[at] == _LONG):
            detail["loc"] = path[:at] + path[at + 1 :]
            yield detail


def _value(data: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        data = data[part]
    return data
