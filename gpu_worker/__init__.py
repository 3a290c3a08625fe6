"""The executor: native torch engine with continuous batching over a paged KV cache.

Importing this package does not import torch (the simulated executor must start without it); use
`from gpu_worker.engine import Engine`.
"""
