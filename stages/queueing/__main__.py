"""`python -m stages.queueing --launch FILE`."""

from stages.queueing.service import QueueingService
from stages.runtime.stage import main

main("stages.queueing", QueueingService)
