"""What makes two executors produce the same bits for the same request."""

from dataclasses import dataclass

from gpu_worker.model.linear import Scheme


@dataclass(frozen=True)
class Fingerprint:
    """Equal fingerprints: a request may move between the executors and go on exactly."""

    weights: str  # sha256 of the weight files, hex
    scheme: Scheme
    backend: str  # attention backend and the CPU's instruction set
    dtype: str  # of activations and KV
    parallel: str

    def __str__(self) -> str:
        """One token fit for a message field or a log line."""
        return f"{self.weights[:16]}:{self.scheme}:{self.backend}:{self.dtype}:{self.parallel}"
