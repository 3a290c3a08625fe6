"""Whether the file still says what serves."""

from pathlib import Path

from contracts.lifecycle import Generation
from stages.runtime.topology_file import load_topology


class Drift:
    """Compares topology.yaml with a generation; a change of layout or comments is none."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._seen: tuple[str | None, int] | None = None
        self._said: str | None = None

    def of(self, current: Generation) -> str | None:
        """One line when it differs."""
        try:
            text = self.file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            return f"{self.file} cannot be read: {error}"
        if text == current.text:
            return None
        if self._seen != (text, current.generation):
            self._said = self._compare(current)
            self._seen = (text, current.generation)
        return self._said

    def _compare(self, current: Generation) -> str | None:
        report = load_topology(self.file)
        since = f"{self.file.name} has changed since generation {current.generation} was applied"
        if report.topology is None:
            return f"{since}, and has mistakes: `headrace check`"
        return None if report.topology == current.topology else f"{since}: `headrace plan`"
