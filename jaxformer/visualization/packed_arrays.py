"""Arrays in JSON: deflated bytes as base64 text.

    {"shape": [...], "dtype": "f32" | "u32", "scale": float, "data": text}

`data` is base64 of zlib-deflated little-endian values, stored plane by plane: the lowest byte of
all values, then the next byte, up to the fourth. That deflates to half the size of whole values. An
entry of the array is its raw value times `scale`.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

WEIGHT_STEPS = 2**21  # half a millionth


def pack_floats(array: np.ndarray) -> dict[str, Any]:
    """Pack a float32 array exactly."""
    return _pack(np.asarray(array, "<f4"), "f32", 1.0)


def pack_weights(weights: np.ndarray) -> dict[str, Any]:
    """Pack attention `[..., S]` in steps of 2^-21, rounded so that each row sums to exactly 1.

    The running sum along a row is rounded and then differenced, so an entry is off by less than one
    step, and so is the sum of any adjacent entries. Before that, a row that misses 1 by float32
    rounding is divided by its sum; one that sees no key stays zero.
    """
    sums = np.cumsum(np.asarray(weights, np.float64), axis=-1)
    total = sums[..., -1:]
    edges = np.rint(sums / np.where(np.abs(total - 1.0) < 1e-5, total, 1.0) * WEIGHT_STEPS)
    return _pack(np.diff(edges, axis=-1, prepend=0.0).astype("<u4"), "u32", 1.0 / WEIGHT_STEPS)


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """Unpack an array: float64, of its original shape."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    dtype = {"f32": "<f4", "u32": "<u4"}[packed["dtype"]]
    values = np.ascontiguousarray(planes.reshape(4, -1).T).view(dtype)
    return values.reshape(packed["shape"]) * np.float64(packed["scale"])


def _pack(values: np.ndarray, dtype: str, scale: float) -> dict[str, Any]:
    planes = np.ascontiguousarray(values).reshape(-1, 1).view(np.uint8).T
    data = base64.b64encode(zlib.compress(planes.tobytes())).decode()
    return {"shape": list(values.shape), "dtype": dtype, "scale": scale, "data": data}
