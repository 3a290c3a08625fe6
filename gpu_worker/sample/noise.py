"""Counter-based randomness: a pure function of (seed, position), never a generator with state.

So a draw does not depend on batch mates, on earlier draws, or on which executor makes it (Salmon
et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The mixer is splitmix64 (Steele,
Lea and Flood, OOPSLA 2014).
"""

import hashlib

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """splitmix64's output function: a bijection of 64-bit integers that scatters every bit."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits for the token at `position` (0 = first of prompt)."""
    key = mix(seed + _GOLDEN)
    return (mix(key + (position + 1) * _GOLDEN) >> 11) * 2.0**-53


def seed_of(request_id: str) -> int:
    """A 64-bit seed for a request that names none; the same in every attempt and process."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest())
