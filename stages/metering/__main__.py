"""Entry point: `python -m stages.metering --launch FILE`."""

import sys

from stages.metering.schema import SchemaError
from stages.metering.service import MeteringService
from stages.runtime.stage import main

try:
    main("stages.metering", MeteringService)
except SchemaError as error:  # says what to do; a traceback would only hide it
    sys.exit(f"headrace: {error}")
