"""Arrays inside JSON: deflated bytes as base64 text.

    {"shape": [...], "dtype": "f32" | "u32", "scale": float, "data": text}

`data` is base64 of zlib-deflated bytes, and these are little-endian values stored plane by plane:
the lowest byte of all values, then the next byte of all, up to the fourth. That deflates to half of
what whole values do. An entry of the array is its raw value times `scale`.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

WEIGHT_STEPS = 2**21  # half a millionth


def pack_floats(array: np.ndarray) -> dict[str, Any]:
    """A float32 array, exact."""
    return _pack(np.asarray(array, "<f4"), "f32", 1.0)


def pack_weights(weights: np.ndarray) -> dict[str, Any]:
    """Attention `[..., S]` in steps of 2^-21, so rounded that each row sums to 1 exactly.

    The running sum along a row is rounded and then cut up again: an entry is off by less than one
    step, and so is the sum of any entries that stand together. Before that a row that misses 1 by
    the rounding of float32 is divided by its sum; one that sees no key stays zero.
    """
    sums = np.cumsum(np.asarray(weights, np.float64), axis=-1)
    total = sums[..., -1:]
    edges = np.rint(sums / np.where(np.abs(total - 1.0) < 1e-5, total, 1.0) * WEIGHT_STEPS)
    return _pack(np.diff(edges, axis=-1, prepend=0.0).astype("<u4"), "u32", 1.0 / WEIGHT_STEPS)


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The array of a packed one: float64 of its shape."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    dtype = {"f32": "<f4", "u32": "<u4"}[packed["dtype"]]
    values = np.ascontiguousarray(planes.reshape(4, -1).T).view(dtype)
    return values.reshape(packed["shape"]) * np.float64(packed["scale"])


def _pack(values: np.ndarray, dtype: str, scale: float) -> dict[str, Any]:
    planes = np.ascontiguousarray(values).reshape(-1, 1).view(np.uint8).T
    data = base64.b64encode(zlib.compress(planes.tobytes())).decode()
    return {"shape": list(values.shape), "dtype": dtype, "scale": scale, "data": data}
