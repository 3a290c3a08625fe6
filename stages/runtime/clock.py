"""Wall clock for the wire, and request ids."""

import os
import time
import uuid


def now_ms() -> float:
    """Unix time in milliseconds."""
    return time.time() * 1000


def new_request_id() -> str:
    """A UUID version 7 (RFC 9562): 48 bits of unix ms, then random bits, so ids sort by time."""
    value = int.from_bytes(os.urandom(16), "big")
    value = (value & ((1 << 80) - 1)) | (int(now_ms()) << 80)
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(uuid.UUID(int=value))
