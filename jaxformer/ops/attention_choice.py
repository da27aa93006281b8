"""Which implementation computes an attention, by device, dtype and mask."""

from __future__ import annotations

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError, check_choice
from jaxformer.model_config import ATTENTION_IMPLEMENTATIONS
from jaxformer.ops.attention_mask import AttentionMask

# By `device_kind`, to compile for GPUs that are not present: developer.nvidia.com/cuda-gpus.
CAPABILITIES = (
    (r"NVIDIA A100.*", (8, 0)),
    (r"NVIDIA (L4|L40S?|GeForce RTX 40\d\d.*)", (8, 9)),
    (r"NVIDIA (H100|H200|GH200).*", (9, 0)),
    (r"NVIDIA G?B200.*", (10, 0)),
)
SPLASH_BLOCK = 128  # tokens; splash works on blocks of this length and its multiples


class Backend(NamedTuple):
    """The properties of the devices that the choice depends on.

    Attributes:
      platform: `cpu`, `gpu` (NVIDIA), `tpu`, or another name.
      capability: compute capability of a GPU.
      unplaced: there are several devices and no `jax.set_mesh`.
    """

    platform: str
    capability: tuple[int, int] = (0, 0)
    unplaced: bool = False


def published_capability(device_kind: str) -> tuple[int, int]:
    """Published compute capability of a GPU that is not present; (0, 0) if unknown."""
    found = (pair for pattern, pair in CAPABILITIES if re.fullmatch(pattern, device_kind))
    return next(found, (0, 0))


def current_backend() -> Backend:
    """The devices that JAX runs on, or those it compiles for.

    The latter come from the mesh in context, for a pod that is not present.
    """
    device, mesh = jax.local_devices()[0], jax.sharding.get_abstract_mesh()
    if mesh.abstract_device is not None and mesh.abstract_device.platform != device.platform:
        absent = mesh.abstract_device
        return Backend(absent.platform, published_capability(absent.device_kind))
    unplaced = jax.device_count() > 1 and mesh.empty
    if device.platform not in ("gpu", "cuda"):
        return Backend(device.platform, unplaced=unplaced)
    if "rocm" in device.client.platform_version.lower():
        return Backend("rocm", unplaced=unplaced)
    major, minor = re.findall(r"\d+", device.compute_capability)[:2]
    return Backend("gpu", (int(major), int(minor)), unplaced)


def _refuse_cudnn(backend: Backend, query, key, attention_mask: AttentionMask) -> str:
    major, minor = backend.capability
    head_dim, widest = query.shape[-1], 256 if backend.capability >= (9, 0) else 128
    lengths = query.shape[1], key.shape[1]
    if backend.platform != "gpu":
        return f"cuDNN needs an NVIDIA GPU, and this is a {backend.platform}"
    if backend.capability < (8, 0):
        return f"cuDNN needs compute capability 8.0, this GPU has {major}.{minor}"
    if query.dtype not in (jnp.bfloat16, jnp.float16):
        return f"cuDNN takes bfloat16 or float16, not {query.dtype}"
    if head_dim % 8 or head_dim > widest:
        return f"cuDNN takes a head_dim of 8, 16, ... {widest}, not {head_dim}"
    if attention_mask.query_segments is not None:
        return "packed rows need segments, which JAX does not offer with cuDNN"
    # https://github.com/NVIDIA/cudnn-frontend/issues/160: gradients were NaN.
    if any(length % 2 for length in lengths):
        return f"cuDNN takes even lengths, not {lengths[0]} queries and {lengths[1]} keys"
    return ""


def _refuse_splash(backend: Backend, query, key, attention_mask: AttentionMask) -> str:
    if backend.platform != "tpu":
        return f"splash needs a TPU, and this is a {backend.platform}"
    if query.dtype not in (jnp.bfloat16, jnp.float32):
        return f"splash takes bfloat16 or float32, not {query.dtype}"
    if backend.unplaced:
        return "splash over several devices needs jax.set_mesh"
    return ""


def refusal(
    implementation: str,
    backend: Backend,
    query,
    key,
    attention_mask: AttentionMask,
    *,
    dropout: bool = False,
    return_weights: bool = False,
) -> str:
    """Why an implementation does not support a call; empty if it does.

    Args:
      implementation: `reference`, `xla`, `cudnn` or `splash`.
      backend: from `current_backend`.
      query: `[B, T, N, H]`; only shape and dtype are read, so a `ShapeDtypeStruct` will do.
      key: `[B, S, N, H]`, the same.
      attention_mask: only which of its fields are None is read.
      dropout: on the weights.
      return_weights: the weights are returned too.

    Returns:
      The reason, for the log.
    """
    if implementation == "reference":
        return ""
    if dropout:
        return f"{implementation} has no attention dropout"
    if return_weights:
        return f"{implementation} returns no weights"
    if implementation == "xla":
        low = query.dtype == jnp.float16 and backend.platform in ("cpu", "tpu")
        return f"xla takes no float16 on a {backend.platform}" if low else ""
    if attention_mask.mask is not None:
        return f"{implementation} takes no bool mask"
    refuse = {"cudnn": _refuse_cudnn, "splash": _refuse_splash}[implementation]
    return refuse(backend, query, key, attention_mask)


class Choice(NamedTuple):
    """An implementation, and why it is this one."""

    implementation: str
    reason: str


def choose(
    implementation: str,
    backend: Backend,
    query,
    key,
    attention_mask: AttentionMask,
    *,
    strict: bool = False,
    **call: bool,
) -> Choice:
    """Choose the implementation of a call; `auto`: cuDNN on a GPU, splash on a TPU.

    Args:
      implementation: `model.attention_implementation`.
      backend, query, key, attention_mask, call: as for `refusal`.
      strict: raise instead of falling back from an implementation requested by name.

    Returns:
      The implementation and the reason.

    Raises:
      InputError: the name is unknown; or `strict`, and it does not support the call.
    """
    check_choice("implementation", implementation, ATTENTION_IMPLEMENTATIONS)
    if implementation != "auto":
        reason = refusal(implementation, backend, query, key, attention_mask, **call)
        if reason and strict:
            raise InputError(
                f"model.attention_implementation={implementation!r} cannot be used: {reason}; "
                "change that, or set --config.model.attention_implementation=auto"
            )
        return Choice("reference", reason) if reason else Choice(implementation, "as configured")
    fused = {"gpu": "cudnn", "tpu": "splash"}.get(backend.platform)
    if fused is None:
        return Choice("reference", f"no fused kernel for {backend.platform}")
    reason = refusal(fused, backend, query, key, attention_mask, **call)
    if not reason and fused == "splash" and min(query.shape[1], key.shape[1]) < SPLASH_BLOCK:
        reason = f"splash would pad rows to {SPLASH_BLOCK} tokens"
    return (
        Choice("reference", reason) if reason else Choice(fused, f"fused, for {backend.platform}")
    )
