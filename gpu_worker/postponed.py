"""Importing this postpones garbage collection, which finds nothing while torch and a model load.

`gpu_worker.__main__` imports it first: an executor that is replaced is back 0.4 s sooner. Whoever has
loaded calls `gc.enable()`.
"""

import gc

gc.disable()
