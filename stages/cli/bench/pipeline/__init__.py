"""`headrace bench pipeline`: what the chain of processes adds to the engine, and whether it counts right."""
