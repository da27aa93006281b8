"""The flags that `translate` and `evaluate` share: which checkpoint, and how to search."""

from __future__ import annotations

import argparse
import dataclasses

from jaxformer.config import DecodingConfig, MeshConfig
from jaxformer.config_sections import LENGTH_PENALTIES
from jaxformer.errors import InputError, check_range
from jaxformer.runtime.launch import add_process_arguments


def add_decoding_arguments(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the flags; what is not given comes from the run's own configuration.

    Returns:
      The group of flags of which one says how tokens are chosen.
    """
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
        "--fsdp",
        type=int,
        default=1,
        help="devices over which the parameters are sharded (default: 1)",
    )
    parser.add_argument(
        "--tensor",
        type=int,
        default=1,
        help="devices over which the heads are sharded (default: 1)",
    )
    add_process_arguments(parser)
    return search


def add_sampling_arguments(parser: argparse.ArgumentParser, search) -> None:
    """Add `--sample` to the group `search`, and the flags that shape its draws."""
    search.add_argument(
        "--sample", action="store_true", help="draw each token at random; --top_beams draws"
    )
    parser.add_argument(
        "--temperature", type=float, help="of --sample: below 1 sharper, above 1 flatter (default)"
    )
    parser.add_argument(
        "--top_k", type=int, help="of --sample: from the k most probable tokens (default: 0, all)"
    )
    parser.add_argument(
        "--top_p",
        type=float,
        help="of --sample: from the fewest tokens whose probabilities reach p (default: 1, all)",
    )
    parser.add_argument(
        "--seed", type=int, help="of --sample: the same seed draws the same again (default: 0)"
    )


def sampling_strategy(args: argparse.Namespace, samples: int):
    """`Sample` with the flags that were given; None without `--sample`.

    Args:
      args: from a parser with `add_sampling_arguments`.
      samples: draws for each sentence.

    Raises:
      InputError: a flag is out of range, or shapes draws that nobody asked for.
    """
    given = {
        name: getattr(args, name)
        for name in ("temperature", "top_k", "top_p", "seed")
        if getattr(args, name) is not None
    }
    if not args.sample:
        for name, value in given.items():
            raise InputError(
                f"--{name}={value} shapes the draws of --sample; add --sample or leave it out"
            )
        return None
    from jaxformer.decoding.strategies import Sample

    check_range("--seed", given.pop("seed", 0), 0, 2**31 - 1)
    try:
        return Sample(**given, num_samples=samples)
    except InputError as error:
        raise InputError(f"--{error}") from None


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
        if getattr(args, "sample", False) and name in changes:
            raise InputError(
                f"--{name}={changes[name]} ranks hypotheses, and --sample only draws them; leave "
                "out one of the two"
            )
        if decoding.beam_size == 1 and name in changes:
            raise InputError(
                f"--{name}={changes[name]} weighs hypotheses of different lengths, and greedy "
                "search has only one; leave it out, or give a --beam_size above 1"
            )
    return decoding
