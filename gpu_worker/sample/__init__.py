"""Which token comes next, given the logits."""

from gpu_worker.sample.sampler import Sampler

__all__ = ["Sampler"]
