"""Attention over the paged cache: `plan(batch)` once a step, `run(layer, q, k, v)` once a layer."""
