"""`python -m stages.ingress --launch FILE`."""

from stages.ingress.service import IngressService
from stages.runtime.stage import main

main("stages.ingress", IngressService)
