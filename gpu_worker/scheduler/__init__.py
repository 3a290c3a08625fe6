"""Which tokens are computed in the next step."""

from gpu_worker.scheduler.scheduler import Scheduler

__all__ = ["Scheduler"]
