"""`python -m stages.routing --launch FILE`."""

from stages.routing.service import RoutingService
from stages.runtime.stage import main

main("stages.routing", RoutingService)
