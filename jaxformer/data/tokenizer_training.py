"""Vocabularies from text: trained on the first start, saved in the workdir, reused afterwards."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxformer.config import TokenizerConfig
from jaxformer.data.tokenizers import JOINT_FILE, SOURCE_FILE, TARGET_FILE, Tokenizer, read_pair
from jaxformer.errors import InputError
from jaxformer.files.user_paths import expand_user

if TYPE_CHECKING:
    from jaxformer.data.sources import Source


_UNKNOWN_MARK = "\u2585"  # SentencePiece skips training sentences that hold this character
_MAX_TRAINING_CHARACTERS = 1000  # at most 4000 bytes; SentencePiece skips lines beyond 4192


class _TrainingLines:
    """What SentencePiece trains on; counts the lines and keeps an error of their source.

    Nothing is skipped: long lines are split at spaces into parts that SentencePiece accepts.
    """

    def __init__(self, lines: Iterable[str], config: TokenizerConfig, progress: bool):
        self._lines = lines
        self._config = config
        self._progress = progress
        self.count = 0  # lines that are not blank
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self._lines:
                if line.strip():
                    self.count += 1
                    yield from self._parts(line.replace(_UNKNOWN_MARK, " "))
        except BaseException as error:  # SentencePiece would keep only its message
            self.error = error
            raise
        if self._progress and self.count:
            kind, size = self._config.model_type, self._config.vocab_size
            limit = self._config.max_sentences
            sampled = f"{limit:,} of " if 0 < limit < self.count else ""
            kind = "BPE" if kind == "bpe" else kind
            text = f"training a {kind} vocabulary of {size} on {sampled}{self.count:,} sentences"
            print(text, end=" ... ", file=sys.stderr, flush=True)

    @staticmethod
    def _parts(line: str) -> Iterator[str]:
        while len(line) > _MAX_TRAINING_CHARACTERS:
            cut = line.rfind(" ", 1, _MAX_TRAINING_CHARACTERS)
            cut = cut if cut > 0 else _MAX_TRAINING_CHARACTERS
            yield line[:cut]
            line = line[cut:]
        yield line


def train_tokenizer(lines: Iterable[str], config: TokenizerConfig, *, progress: bool) -> Tokenizer:
    """Train a vocabulary with byte fallback and no normalisation, so that any text round-trips.

    Args:
      lines: sentences, read once; more than `config.max_sentences` are sampled, the same each time.
      config: model_type, vocab_size, character_coverage, max_sentences.
      progress: print one line to stderr.

    Returns:
      The tokenizer.

    Raises:
      InputError: the text is empty, or too small or too varied for `config.vocab_size`.
    """
    import sentencepiece

    if 0 < config.max_sentences <= 100:
        raise InputError(
            f"tokenizer.max_sentences={config.max_sentences}: SentencePiece samples at least 101 "
            "sentences; use 101 or more, or 0 for all"
        )
    started = time.monotonic()
    training = _TrainingLines(lines, config, progress)
    model = io.BytesIO()
    outcome = "failed"
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(training), model_writer=model, **_trainer_options(config)
        )
        outcome = f"{time.monotonic() - started:.1f} s"
    except (RuntimeError, ValueError, TypeError) as error:
        if training.error is not None:
            raise training.error from None
        raise _training_error(str(error), training.count, config) from error
    finally:
        if progress and training.count and training.error is None:
            print(outcome, file=sys.stderr)
    return Tokenizer(model.getvalue())


def _trainer_options(config: TokenizerConfig) -> dict[str, Any]:
    return {
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "character_coverage": config.character_coverage,
        "input_sentence_size": config.max_sentences,
        "shuffle_input_sentence": bool(config.max_sentences),
        "train_extremely_large_corpus": not config.max_sentences,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": True,  # a word is spelled alike at the start of a line and inside it
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "num_threads": os.cpu_count() or 1,
        "minloglevel": 2,
    }


def _training_error(message: str, count: int, config: TokenizerConfig) -> InputError:
    field = f"tokenizer.vocab_size={config.vocab_size}"
    if not count:
        return InputError(
            "the training text is empty or has only blank lines; a vocabulary needs text"
        )
    if largest := re.search(r"too high .*<= (\d+)", message):
        return InputError(
            f"{field} is too large for {count:,} sentences of text; set it to at most {largest[1]}"
        )
    if needed := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return InputError(
            f"{field} is too small for the characters of the text; raise it to at least "
            f"{needed[1]}, or lower tokenizer.character_coverage={config.character_coverage} "
            "(e.g. 0.9995)"
        )
    return InputError(f"{field}: SentencePiece cannot train on this text: {message}")


def load_or_train(
    config: TokenizerConfig, source: Source, workdir: str | Path
) -> tuple[Tokenizer, Tokenizer]:
    """The source and target vocabularies of a run; the same object if joint.

    Vocabularies in the workdir are reused. Otherwise `config.model_file` is copied there, or
    vocabularies are trained on the training text and saved there.

    Args:
      config: of the vocabularies.
      source: gives the training text.
      workdir: of the run.

    Returns:
      The tokenizers of the source and the target.

    Raises:
      InputError: the workdir's vocabulary contradicts `config`, or see `train_tokenizer`.
    """
    workdir = Path(workdir)
    pair = read_pair(workdir)
    if pair is None:
        if config.joint:
            lines = (line for pair in _train_pairs(source) for line in pair)
            joint = _make(config, config.model_file, lines)
            joint.save(workdir / JOINT_FILE)
            return joint, joint
        pair = (
            _make(config, config.model_file, (one for one, _ in _train_pairs(source))),
            _make(config, config.target_model_file, (other for _, other in _train_pairs(source))),
        )
        pair[0].save(workdir / SOURCE_FILE)
        pair[1].save(workdir / TARGET_FILE)
        return pair
    _check_pair(config, pair, workdir)
    return pair


def _train_pairs(source: Source) -> Iterator[tuple[str, str]]:
    """The training text, opened when the first pair is requested."""
    yield from source.pairs("train")


def _make(config: TokenizerConfig, model_file: str, lines: Iterable[str]) -> Tokenizer:
    if model_file:
        return Tokenizer.load(model_file)
    return train_tokenizer(lines, config, progress=True)


def _check_pair(config: TokenizerConfig, pair: tuple[Tokenizer, Tokenizer], workdir: Path) -> None:
    repair = "use another workdir, or the value this one was created with"
    joint = pair[0] is pair[1]
    if joint != config.joint:
        kind = "one joint vocabulary" if joint else "two vocabularies"
        raise InputError(f"tokenizer.joint={config.joint}, but {workdir} has {kind}; {repair}")
    for field, tokenizer in (("model_file", pair[0]), ("target_model_file", pair[1])):
        model_file = config.model_file if joint else getattr(config, field)
        if not model_file and tokenizer.vocab_size != config.vocab_size:
            raise InputError(
                f"tokenizer.vocab_size={config.vocab_size}, but the vocabulary in {workdir} has "
                f"{tokenizer.vocab_size} pieces; {repair}"
            )
        exists = model_file and expand_user(model_file, f"tokenizer.{field}").is_file()
        if exists and Tokenizer.load(model_file).fingerprint != tokenizer.fingerprint:
            raise InputError(
                f"tokenizer.{field}={model_file!r} is not the vocabulary in {workdir}; {repair}"
            )
