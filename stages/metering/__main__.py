"""Entry point: `python -m stages.metering --launch FILE`."""

from stages.metering.service import MeteringService
from stages.runtime.stage import main

main("stages.metering", MeteringService)
