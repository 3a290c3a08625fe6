"""`python -m stages.egress --launch FILE`."""

from stages.egress.service import EgressService
from stages.runtime.stage import main

if __name__ == "__main__":
    main("stages.egress", EgressService)
