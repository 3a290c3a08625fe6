"""The paged KV cache: which blocks a request owns (allocator) and where their bytes lie (storage)."""
