"""What control tells `headrace up`: one JSON object a line, in a file, so that readers may come and go."""

import json
import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger("headrace.control")


class Progress:
    """Appends events; without a file nobody is told."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file

    def tell(self, event: str, **fields: Any) -> None:
        """Write one event, as one write: the watchdog appends to the same file."""
        if self._file is None:
            return
        line = json.dumps({"event": event, **fields}) + "\n"
        try:
            handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        except OSError as error:  # a full disk must not end the pipeline
            log.warning("progress %r could not be written: %s", event, error)
