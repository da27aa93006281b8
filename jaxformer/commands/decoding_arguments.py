"""The flags that `translate` and `evaluate` share: which checkpoint, and how to search."""

from __future__ import annotations

import argparse
import dataclasses

from jaxformer.config import LENGTH_PENALTIES, DecodingConfig, MeshConfig
from jaxformer.errors import InputError, check_range
from jaxformer.runtime.launch import add_process_arguments


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; what is not given comes from the run's own configuration."""
    parser.add_argument("--workdir", required=True, help="folder of the run")
    parser.add_argument(
        "--checkpoint",
        default="best",
        help="best (default), latest, a step, or an average's name such as average_last_5",
    )
    search = parser.add_mutually_exclusive_group()
    search.add_argument("--greedy", action="store_true", help="one hypothesis, no search")
    search.add_argument("--beam_size", type=int, help="hypotheses kept at each step")
    parser.add_argument(
        "--length_penalty",
        choices=LENGTH_PENALTIES,
        help="gnmt: ((5 + L) / 6)^alpha; power: L^alpha",
    )
    parser.add_argument("--alpha", type=float, help="exponent of the length penalty")
    parser.add_argument(
        "--max_length",
        type=int,
        help="longest translation in tokens (default: source length + 50, or as configured)",
    )
    parser.add_argument(
        "--fsdp", type=int, default=1, help="devices over which the parameters are cut (default: 1)"
    )
    parser.add_argument(
        "--tensor", type=int, default=1, help="devices over which the heads are cut (default: 1)"
    )
    add_process_arguments(parser)


def mesh_config(args: argparse.Namespace) -> MeshConfig:
    """The mesh of all devices that the flags ask for."""
    return MeshConfig(data=-1, fsdp=args.fsdp, tensor=args.tensor)


def decoding_config(args: argparse.Namespace, configured: DecodingConfig) -> DecodingConfig:
    """The run's decoding configuration with the flags that were given."""
    changes: dict[str, object] = {}
    if args.greedy:
        changes["beam_size"] = 1
    for name in ("beam_size", "length_penalty", "alpha"):
        if getattr(args, name) is not None:
            changes[name] = getattr(args, name)
    if args.max_length is not None:
        check_range("--max_length", args.max_length, 1)
        changes |= {"max_length_factor": 0.0, "max_length_extra": args.max_length}
    decoding = dataclasses.replace(configured, **changes)
    for name in ("length_penalty", "alpha"):
        if decoding.beam_size == 1 and name in changes:
            raise InputError(
                f"--{name}={changes[name]} weighs hypotheses of different lengths, and greedy "
                "search has only one; leave it out, or give a --beam_size above 1"
            )
    return decoding
