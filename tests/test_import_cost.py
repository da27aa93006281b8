"""`import jaxformer` is cheap and brings the public names."""

import subprocess
import sys

import pytest

import jaxformer

HEAVY = (
    "orbax", "grain", "tensorflow_datasets", "tensorflow", "torch", "sentencepiece", "sacrebleu",
    "tensorboardX", "ml_collections", "tqdm",
)  # fmt: skip


def imported_by(code):
    """Top-level names of all modules that `code` loads in a fresh interpreter."""
    found = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    lines = [line for line in found.stderr.split("\n") if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.fixture(scope="module")
def used():
    """What is loaded when every public name has been used."""
    return imported_by("import jaxformer; [getattr(jaxformer, n) for n in jaxformer.__all__]")


def test_the_package_alone_does_not_even_load_jax():
    imported = imported_by("import jaxformer")
    assert "jaxformer" in imported
    assert not imported & {"jax", "jaxlib", "flax", "numpy", *HEAVY}


def test_the_measurement_sees_what_is_imported(used):
    assert {"jax", "flax", "jaxformer", "numpy"} <= used


@pytest.mark.parametrize("library", HEAVY)
def test_heavy_libraries_wait_until_they_are_needed(used, library):
    assert library not in used


def test_public_names_exist_and_are_sorted():
    assert jaxformer.__all__ == sorted(jaxformer.__all__)
    assert all(getattr(jaxformer, name).__doc__ for name in jaxformer.__all__)
    wanted = {
        "Transformer", "TransformerConfig", "TransformerLayer", "MultiHeadAttention", "FeedForward",
        "dot_product_attention", "causal_mask", "padding_mask", "combine_masks", "segment_mask",
        "sinusoidal_positions", "label_smoothed_cross_entropy", "shift_right", "KVCache", "Greedy",
        "Sample", "BeamSearch", "decode", "Translator", "make_mesh",
    }  # fmt: skip
    assert wanted <= set(jaxformer.__all__)
