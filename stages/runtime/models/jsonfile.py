"""Reading small JSON files that somebody else wrote."""

import json
from pathlib import Path
from typing import Any

from stages.runtime.models.errors import ModelError

MAX_JSON = 64 << 20  # bytes; the largest tokenizer.json files have about 35 MB


def read_text(path: Path, limit: int = MAX_JSON) -> str:
    """The UTF-8 text of `path`. Raises ModelError when missing, larger than `limit` bytes or not UTF-8."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelError(f"{path}: {size} bytes; at most {limit} are read")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ModelError(f"{path}: missing") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not UTF-8 text") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelError when it is missing, too large or something else."""
    return parse_object(read_text(path), str(path))


def parse_object(text: str | bytes, what: str) -> dict[str, Any]:
    """`text` as a JSON object. Raises ModelError naming `what`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what}: not valid JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{what}: a JSON object is expected, not {type(value).__name__}")
    return value
