"""The decoder: weights read from disk, packed for the matmul in use, and the forward pass."""
