"""What control tells `headrace up`: one JSON object a line on stdout, for as long as anyone reads."""

import json
import os
import sys
from typing import Any


class Progress:
    """A writer that does not mind when the reader has left (`up --detach`)."""

    def __init__(self) -> None:
        self._open = True

    def tell(self, event: str, **fields: Any) -> None:
        """Write one event."""
        if not self._open:
            return
        try:
            sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
            sys.stdout.flush()
        except (OSError, ValueError):  # nobody reads any more, or it goes to a file on a full disk
            self._open = False
            # Later writes, also the one at interpreter exit, must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
