"""The executor: native torch engine with continuous batching over a paged KV cache.

Importing this package does not import torch (the simulated executor must start without it); use
`from gpu_worker.engine import Engine`.
"""

import os

# Before torch loads OpenMP: a thread that waits for its partner at the end of a parallel region
# spins for about 0.1 ms, then sleeps and leaves its core to the stages. OpenMP's own
# default spins for milliseconds: where cores are shared, that is what the partner waits for.
# Figures: docs/performance.md.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")
