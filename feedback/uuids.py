"""UUIDs as text, in their one spelling here: lower case, with dashes (RFC 9562). Half of what `str(uuid4())` takes."""

import os
import time


def random_uuid() -> str:
    """122 random bits (version 4)."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_variant(digits[16])}{digits[17:20]}-{digits[20:]}"


def ordered_uuid() -> str:
    """The time in milliseconds, then 74 random bits (version 7).

    Such ids lie close together in an index, in the order in which they were made: a batch of them shares a few of
    its pages, where random ones have a page each.
    """
    digits = f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
    return f"{digits[:8]}-{digits[8:12]}-7{digits[13:16]}-{_variant(digits[16])}{digits[17:20]}-{digits[20:32]}"


def _variant(digit: str) -> str:
    """The same digit with its upper two bits set to 10."""
    return "89ab"[int(digit, 16) & 3]
