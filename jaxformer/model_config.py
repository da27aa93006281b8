"""The shape and variants of the model: all the configuration that a research script needs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from jaxformer.errors import InputError, check_choice, check_range

REMAT_POLICIES = ("projections", "nothing")
NORMS = ("post", "pre")
GATED_ACTIVATIONS = ("reglu", "geglu", "swiglu")  # two inner matrices: act(x W_g) * (x W_1)
ACTIVATIONS = ("relu", "gelu", "swish", *GATED_ACTIVATIONS)
POSITIONS = ("sinusoidal", "learned", "rotary")
DTYPES = ("float32", "bfloat16", "float16")
ATTENTION_IMPLEMENTATIONS = ("auto", "reference", "xla", "cudnn", "splash")


def is_gated(activation: str) -> bool:
    """Whether a feed-forward of this activation has a gate, and so three matrices, not two."""
    return activation in GATED_ACTIVATIONS


class ModelSection:
    """The base of the section `model` of every task, which is a frozen dataclass."""

    dtype: str = "float32"  # of the computation
    param_dtype: str = "float32"  # of the parameters

    @property
    def sharded_sizes(self) -> dict[str, dict[str, int]]:
        """The fields that a mesh axis, `fsdp` or `tensor`, must divide, with their values."""
        return {}

    def check_run(self, config: Any) -> None:
        """Raise `InputError` where the model contradicts other sections of a `Config`."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelSection):
    """Shape and variants of the encoder-decoder Transformer; the defaults are the paper's base.

    Raises:
      InputError: a value is out of range or two values contradict each other.
    """

    vocab_size: int = 32_000  # pieces of the shared vocabulary, or of the source's
    target_vocab_size: int = 0  # pieces of a separate target vocabulary; 0: shared with the source
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_model: int = 512  # width of the residual stream
    d_ff: int = 2048  # inner width of the feed-forward
    num_heads: int = 8  # must divide d_model
    norm: str = "post"  # post: LayerNorm(x + f(x)), the paper; pre: x + f(LayerNorm(x))
    activation: str = "relu"  # relu, gelu, swish, or gated: reglu, geglu, swiglu
    positions: str = "sinusoidal"  # sinusoidal (paper), learned, rotary (in self-attention)
    max_length: int = 1024  # rows of the learned position table, in tokens
    attention_bias: bool = False  # biases on the query, key, value and output projections
    tie_embeddings: bool = True  # one matrix for each vocabulary, the output projection's too
    dropout_rate: float = 0.1  # on embeddings and on the output of each sub-layer (paper 5.4)
    attention_dropout_rate: float = 0.0  # on attention weights
    activation_dropout_rate: float = 0.0  # inside the feed-forward
    dtype: str = "float32"  # of the computation; softmax, norms and loss stay float32
    param_dtype: str = "float32"  # of the parameters
    attention_implementation: str = "auto"  # auto, reference, xla, cudnn (GPU) or splash (TPU)
    remat: bool = False  # recompute each layer in the backward pass, to save memory
    remat_policy: str = "projections"  # of remat: keeps products as wide as the model, or nothing
    scan_layers: bool = False  # one compiled layer looped over stacked parameters: compiles faster

    def __post_init__(self):
        for name in (
            "vocab_size",
            "num_encoder_layers",
            "num_decoder_layers",
            "d_model",
            "d_ff",
            "num_heads",
            "max_length",
        ):
            check_range(f"model.{name}", getattr(self, name), 1)
        check_range("model.target_vocab_size", self.target_vocab_size, 0)
        if self.d_model % self.num_heads:
            divisors = [n for n in range(1, self.d_model + 1) if self.d_model % n == 0]
            nearest = min(divisors, key=lambda n: (abs(n - self.num_heads), -n))
            raise InputError(
                f"model.d_model={self.d_model} is not divisible by model.num_heads="
                f"{self.num_heads}; nearest: {nearest}"
            )
        check_choice("model.norm", self.norm, NORMS)
        check_choice("model.activation", self.activation, ACTIVATIONS)
        check_choice("model.positions", self.positions, POSITIONS)
        check_choice("model.dtype", self.dtype, DTYPES)
        check_choice("model.param_dtype", self.param_dtype, DTYPES)
        check_choice(
            "model.attention_implementation",
            self.attention_implementation,
            ATTENTION_IMPLEMENTATIONS,
        )
        check_choice("model.remat_policy", self.remat_policy, REMAT_POLICIES)
        for name in ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate"):
            check_range(f"model.{name}", getattr(self, name), 0.0, 0.99)
        if self.positions == "rotary" and self.head_dim % 2:
            raise InputError(
                f"model.positions='rotary' rotates pairs of channels, but d_model / num_heads = "
                f"{self.head_dim} is odd; use another model.d_model or model.num_heads"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise InputError(
                f"model.positions='sinusoidal' needs an even d_model, not {self.d_model}; "
                f"nearest: {self.d_model + 1}"
            )

    @property
    def sharded_sizes(self) -> dict[str, dict[str, int]]:
        heads = {"num_heads": self.num_heads, "d_ff": self.d_ff}
        return {"fsdp": {"d_model": self.d_model}, "tensor": heads}

    def check_run(self, config: Any) -> None:
        if self.positions == "learned":
            longest = max(config.data.max_length, config.decoding.max_source_length)
            if self.max_length < longest:
                raise InputError(
                    f"model.max_length={self.max_length} rows of learned positions are fewer "
                    f"than the longest sentence, {longest} tokens (data.max_length, "
                    "decoding.max_source_length); raise the first or lower the others"
                )
        if config.training.r_drop_alpha and not self.has_dropout:
            raise InputError(
                f"training.r_drop_alpha={config.training.r_drop_alpha} compares two passes that "
                "differ by dropout, and all rates are 0; set model.dropout_rate, or "
                "training.r_drop_alpha=0"
            )

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def has_dropout(self) -> bool:
        rates = self.dropout_rate, self.attention_dropout_rate, self.activation_dropout_rate
        return any(rate > 0.0 for rate in rates)

    @property
    def shares_vocabulary(self) -> bool:
        return self.target_vocab_size == 0

    @property
    def output_vocab_size(self) -> int:
        return self.target_vocab_size or self.vocab_size

    @property
    def position_limit(self) -> int | None:
        """Tokens of the longest sequence with positions; None: no limit."""
        return self.max_length if self.positions == "learned" else None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> TransformerConfig:
        """The named shape `tiny`, `small`, `base` or `big`, with fields replaced by `changes`."""
        if name not in PRESETS:
            check_choice("preset", name, tuple(PRESETS))
        return dataclasses.replace(PRESETS[name], **changes)


_BASE = TransformerConfig()
PRESETS = {
    "tiny": dataclasses.replace(
        _BASE, num_encoder_layers=4, num_decoder_layers=4, d_model=128, d_ff=256, num_heads=4
    ),
    "small": dataclasses.replace(
        _BASE, num_encoder_layers=3, num_decoder_layers=3, d_model=256, d_ff=1024
    ),
    "base": _BASE,
    "big": dataclasses.replace(_BASE, d_model=1024, d_ff=4096, num_heads=16, dropout_rate=0.3),
}
