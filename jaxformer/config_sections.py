"""The sections of a configuration that every task has: frozen dataclasses, validated on creation.

`config.py` puts them together; the section `model` is in `model_config.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from jaxformer.errors import InputError, check_choice, check_range

# Their classes, under the same names: `SOURCES` of data/sources.py.
SOURCE_NAMES = ("builtin", "text", "tfds")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where sentence pairs come from and how they become batches."""

    source: str = "builtin"  # builtin (the generated corpus), text (parallel files or TSV), tfds
    root: str = ""  # folder of the text files; for tfds the data_dir ("": the library's own)
    name: str = ""  # tfds only: dataset and config, e.g. wmt14_translate/de-en
    source_language: str = "en"
    target_language: str = "fr"
    train: str = "train"  # text: file stem (train -> train.en, train.fr) or a .tsv; tfds: split
    validation: str = ""  # the same; "": the first of validation, valid, val, dev that exists
    test: str = ""  # the same; "": test if it exists
    num_pairs: int = 60_000  # builtin only: training pairs to generate
    max_length: int = 256  # tokens a side with EOS; longer training pairs are dropped and counted
    max_length_ratio: float = 0.0  # drop pairs with one side longer by this factor; 0: keep all
    batching: str = "auto"  # buckets (one pair a row, few lengths), packed (many a row), or auto
    tokens_per_batch: int = 4096  # rows x length, a side, padding included, over all devices
    num_buckets: int = 6  # compiled shapes at most, for batching=buckets
    window_pairs: int = 8_000_000  # pairs planned and shuffled at a time; bounds the memory
    workers: int = 0  # processes that sample segmentations (tokenizer.sampling_rate); 0: a thread
    cache_dir: str = ""  # of tokenised corpora; "": JAXFORMER_CACHE or ~/.cache/jaxformer

    def __post_init__(self):
        check_choice("data.source", self.source, SOURCE_NAMES)
        check_choice("data.batching", self.batching, ("auto", "buckets", "packed"))
        if self.source == "text" and not self.root:
            raise InputError("data.root is empty; data.source='text' needs the folder of the files")
        if self.source == "tfds" and not self.name:
            raise InputError(
                "data.name is empty; data.source='tfds' needs a dataset, e.g. wmt14_translate/de-en"
            )
        check_range("data.num_pairs", self.num_pairs, 100)
        check_range("data.max_length", self.max_length, 2)
        if self.max_length_ratio:
            check_range("data.max_length_ratio", self.max_length_ratio, 1.0)
        check_range("data.num_buckets", self.num_buckets, 1, 64)
        check_range("data.window_pairs", self.window_pairs, 1000)
        check_range("data.workers", self.workers, 0)
        if self.tokens_per_batch < self.max_length:
            raise InputError(
                f"data.tokens_per_batch={self.tokens_per_batch} cannot hold one sentence of "
                f"data.max_length={self.max_length}; raise the first or lower the second"
            )

    def for_platform(self, platform: str) -> DataConfig:
        """With `batching=auto` decided: packed on a TPU, whose attention kernel needs long rows."""
        if self.batching != "auto":
            return self
        return dataclasses.replace(self, batching="packed" if platform == "tpu" else "buckets")


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """SentencePiece: trained from the training split on the first run, or a ready model file."""

    model_type: str = "bpe"  # bpe or unigram
    vocab_size: int = 8000  # pieces, special ids and the 256 bytes included; a side if not joint
    joint: bool = True  # one vocabulary for both languages
    model_file: str = ""  # a ready SentencePiece model; the source's, if not joint
    target_model_file: str = ""  # the target's ready model, if not joint
    character_coverage: float = 1.0  # share of characters with pieces; bytes spell the rest
    max_sentences: int = 2_000_000  # sentences to train on, sampled from more; 0: all
    # A new segmentation at each reading, in training only. For bpe the share of dropped merges; for
    # unigram the exponent of the probabilities: about 0.2, larger is milder.
    sampling_rate: float = 0.0  # 0: off; 0.1 is usual for bpe

    def __post_init__(self):
        check_choice("tokenizer.model_type", self.model_type, ("bpe", "unigram"))
        check_range("tokenizer.vocab_size", self.vocab_size, 261)
        check_range("tokenizer.character_coverage", self.character_coverage, 0.9, 1.0)
        check_range("tokenizer.max_sentences", self.max_sentences, 0)
        check_range("tokenizer.sampling_rate", self.sampling_rate, 0.0, 0.99)
        if self.target_model_file and (self.joint or not self.model_file):
            raise InputError(
                "tokenizer.target_model_file needs tokenizer.joint=False and tokenizer.model_file"
            )


# Their functions, under the same names: `OPTIMIZERS` of training/optimizer.py.
OPTIMIZER_NAMES = ("adam", "adamw", "adafactor", "lion", "muon")
# Their functions, under the same names: `SCHEDULES` of training/optimizer.py.
SCHEDULE_NAMES = ("paper", "inverse_sqrt", "cosine", "constant")
SCHEDULE_ALIASES = {"noam": "paper"}  # other spellings; a configuration holds the name


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and the learning rate schedule."""

    name: str = "adam"  # adam; adamw (needs weight_decay); adafactor; lion; muon (layers' matrices)
    schedule: str = "paper"  # paper (= noam), inverse_sqrt, cosine, constant; linear warm-up
    learning_rate: float = 1.0  # peak; for schedule=paper the factor before d_model^-0.5
    warmup_steps: int = 4000
    b1: float = 0.9  # of Adam and Lion
    b2: float = 0.98  # of Adam and Lion
    epsilon: float = 1e-9  # of Adam
    momentum: float = 0.95  # of Muon
    weight_decay: float = 0.0  # decoupled (AdamW's), on matrices only; 0: off
    clip_norm: float = 0.0  # of the global gradient; 0: off
    accumulation_steps: int = 1  # micro-batches per update, computed one after another
    ema_decay: float = 0.0  # moving average of the parameters, used to evaluate; 0: off

    def __post_init__(self):
        check_choice("optimizer.name", self.name, OPTIMIZER_NAMES)
        check_choice("optimizer.schedule", self.schedule, (*SCHEDULE_NAMES, *SCHEDULE_ALIASES))
        object.__setattr__(self, "schedule", SCHEDULE_ALIASES.get(self.schedule, self.schedule))
        check_range("optimizer.learning_rate", self.learning_rate, 0.0)
        check_range("optimizer.warmup_steps", self.warmup_steps, 0)
        check_range("optimizer.b1", self.b1, 0.0, 0.9999)
        check_range("optimizer.b2", self.b2, 0.0, 0.99999)
        check_range("optimizer.epsilon", self.epsilon, 1e-30, 1.0)
        check_range("optimizer.momentum", self.momentum, 0.0, 0.9999)
        check_range("optimizer.weight_decay", self.weight_decay, 0.0)
        check_range("optimizer.clip_norm", self.clip_norm, 0.0)
        check_range("optimizer.accumulation_steps", self.accumulation_steps, 1)
        check_range("optimizer.ema_decay", self.ema_decay, 0.0, 0.99999)
        if self.name == "adamw" and not self.weight_decay:
            raise InputError(
                f"optimizer.weight_decay={self.weight_decay}: name='adamw' is Adam with decoupled "
                "weight decay; set optimizer.weight_decay=0.01, or take name='adam'"
            )
        if self.schedule in ("paper", "inverse_sqrt") and self.warmup_steps < 1:
            raise InputError(
                f"optimizer.warmup_steps={self.warmup_steps}: schedule={self.schedule!r} falls as "
                "1/sqrt(step) from the end of its warm-up and needs at least 1"
            )


# sacreBLEU's other tokenizers download their model when first used.
BLEU_TOKENIZERS = ("13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The loop: how long, how often, what is kept."""

    num_steps: int = 100_000  # optimizer updates in all
    max_seconds: float = 0.0  # wall clock of this start; then it saves and stops; 0: no limit
    # If no step ends in this time and in ten median steps: stacks to stderr and exit status 70.
    watchdog_seconds: float = 300.0  # compiling, evaluating and saving get 12 times that; 0: off
    label_smoothing: float = 0.1  # epsilon / V on every piece (paper 5.4)
    r_drop_alpha: float = 0.0  # R-Drop: two passes a sentence, their divergence weighted; 0: off
    max_skipped_steps: int = 10  # updates in a row without a finite gradient, which end training
    # If the loss of a log_every interval exceeds this many times the median of those before it:
    # return to the checkpoint before it, and skip the batches since then.
    spike_factor: float = 0.0  # 0: off; for example 1.5
    loss_chunk_tokens: int = 0  # tokens whose logits are held at a time; 0: depends on the device
    log_every: int = 100  # steps
    eval_every: int = 1000  # steps
    save_every: int = 1000  # steps
    keep_checkpoints: int = 5  # newest ones kept, never fewer than two; the best one as well
    best_metric: str = "bleu"  # chooses the best: bleu, chrf, accuracy or loss (the lowest)
    patience: int = 0  # evaluations without a better best_metric before the end; 0: never
    eval_sentences: int = 500  # validation sentences translated for BLEU; 0: all
    eval_beam_size: int = 1  # 1: greedy
    num_samples: int = 3  # translations shown at each evaluation
    profile_steps: int = 0  # steps traced into WORKDIR/profile, after 10 of a start; 0: none
    bleu_tokenize: str = "13a"  # of sacreBLEU: 13a, zh, ja-mecab, ...; none: text is tokenised
    bleu_lowercase: bool = False  # score without regard to case

    def __post_init__(self):
        for name in (
            "num_steps",
            "log_every",
            "eval_every",
            "save_every",
            "keep_checkpoints",
            "eval_beam_size",
            "max_skipped_steps",
        ):
            check_range(f"training.{name}", getattr(self, name), 1)
        for name in (
            "max_seconds",
            "watchdog_seconds",
            "patience",
            "eval_sentences",
            "num_samples",
            "profile_steps",
        ):
            check_range(f"training.{name}", getattr(self, name), 0)
        check_range("training.label_smoothing", self.label_smoothing, 0.0, 0.9)
        check_range("training.r_drop_alpha", self.r_drop_alpha, 0.0)
        if self.spike_factor:
            check_range("training.spike_factor", self.spike_factor, 1.01)
        check_range("training.loss_chunk_tokens", self.loss_chunk_tokens, 0)
        check_choice("training.bleu_tokenize", self.bleu_tokenize, BLEU_TOKENIZERS)


LENGTH_PENALTIES = ("gnmt", "power")


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """How `translate` and `evaluate` search, unless their flags say otherwise."""

    beam_size: int = 4  # 1: greedy
    length_penalty: str = "gnmt"  # gnmt: ((5 + L) / 6)^alpha (paper); power: L^alpha (fairseq)
    alpha: float = 0.6  # exponent of the length penalty; 0: plain log-probability
    max_length_factor: float = 1.0  # longest output: factor x source tokens + extra
    max_length_extra: int = 50  # tokens
    max_source_length: int = 1024  # tokens; longer lines are truncated, with a warning
    tokens_per_batch: int = 4096  # source tokens with padding in one decoding batch

    def __post_init__(self):
        check_range("decoding.beam_size", self.beam_size, 1)
        check_choice("decoding.length_penalty", self.length_penalty, LENGTH_PENALTIES)
        check_range("decoding.alpha", self.alpha, 0.0)
        check_range("decoding.max_length_factor", self.max_length_factor, 0.0)
        check_range("decoding.max_length_extra", self.max_length_extra, 1)
        check_range("decoding.max_source_length", self.max_source_length, 2)
        check_range("decoding.tokens_per_batch", self.tokens_per_batch, 1)


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each axis of the mesh; one axis may be -1: all remaining devices."""

    data: int = -1  # copies of the model, each with its rows of the batch
    fsdp: int = 1  # devices over which parameters, optimizer state and rows are sharded
    tensor: int = 1  # devices over which heads, feed-forward and vocabulary are sharded

    def __post_init__(self):
        sizes = self.sizes
        if any(size == 0 or size < -1 for size in sizes) or sizes.count(-1) > 1:
            raise InputError(
                f"{self}: each axis must be at least 1, and at most one of them -1 (all remaining "
                "devices)"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """In the order of `MESH_AXES`."""
        return tuple(getattr(self, axis) for axis in MESH_AXES)

    def __str__(self) -> str:
        return " x ".join(f"mesh.{axis}={getattr(self, axis)}" for axis in MESH_AXES)


MESH_AXES = tuple(axis.name for axis in dataclasses.fields(MeshConfig))
