"""SentencePiece vocabularies: text to ids and exactly back.

A workdir holds `tokenizer.model`, or `source_tokenizer.model` and `target_tokenizer.model`.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError
from jaxformer.files.user_paths import expand_user

JOINT_FILE = "tokenizer.model"
SOURCE_FILE = "source_tokenizer.model"
TARGET_FILE = "target_tokenizer.model"

SPACE_MARK = "\u2581"  # how SentencePiece writes a space inside pieces
_STAND_INS = range(0x10FFFD, 0x100000, -1)  # private use: very rare in text
NORMAL = 1  # kind of a piece that is neither special, nor a byte, nor user-defined
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}  # SentencePiece's numbers
# Vocabularies with the same pieces may still differ in normalisation, spaces and bytes.
_PROBE = " Ab\u00bd\uff21  e\u0301\t\u2581\U0001f600 b "


class Tokenizer:
    """A SentencePiece model with four distinct special ids: pad, eos, bos and unk.

    With a model trained here `decode(encode(lines)) == lines` for any Unicode text.

    Attributes:
      model: the bytes of the model file.
      vocab_size: number of ids, special ones included.
      pad_id, eos_id, bos_id, unk_id: 0, 1, 2, 3 in models trained here.

    Args:
      model: the bytes of a SentencePiece model file.
      where: named in error messages.

    Raises:
      InputError: not a SentencePiece model, or it lacks one of the four special ids.
    """

    def __init__(self, model: bytes, where: str = "tokenizer"):
        import sentencepiece

        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError) as error:
            raise InputError(f"{where}: not a SentencePiece model: {error}") from error
        self.model = model
        self.vocab_size: int = self._processor.vocab_size()
        self.pad_id: int = self._processor.pad_id()
        self.eos_id: int = self._processor.eos_id()
        self.bos_id: int = self._processor.bos_id()
        self.unk_id: int = self._processor.unk_id()
        self._check_special_ids(where)

    def _check_special_ids(self, where: str) -> None:
        ids = {name: getattr(self, f"{name}_id") for name in ("pad", "eos", "bos", "unk")}
        if min(ids.values()) < 0 or len(set(ids.values())) < 4:
            shown = ", ".join(f"{name}={value}" for name, value in ids.items())
            raise InputError(
                f"{where}: the special ids are {shown}; four different ones are needed (-1 is "
                "none). Train the model with spm_train --pad_id=0 --eos_id=1 --bos_id=2 "
                "--unk_id=3 --byte_fallback=true, or leave tokenizer.model_file empty"
            )

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a SentencePiece model file.

        Raises:
          InputError: the file is missing, is not a SentencePiece model or lacks a special id.
        """
        try:
            model = expand_user(path, "tokenizer.model_file").read_bytes()
        except OSError as error:
            raise InputError(f"{path}: cannot read a tokenizer: {error.strerror}") from error
        return cls(model, str(path))

    def save(self, path: str | Path) -> None:
        """Write the model file atomically; a reader sees the old file or the new one."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(self.model)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of pieces, scores and their use, independent of the file."""
        digest = hashlib.blake2b(digest_size=16)
        for index in range(self.vocab_size):
            piece = self._processor.id_to_piece(index).encode()
            score = self._processor.get_score(index)
            digest.update(struct.pack("<If", len(piece), score) + piece)
        digest.update(repr((self.pad_id, self.eos_id, self.bos_id, self.unk_id)).encode())
        digest.update(repr(self.encode([_PROBE])).encode())
        return digest.hexdigest()

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Ids of each line, without special ids.

        Raises:
          InputError: a line holds lone surrogates, which are not Unicode text.
        """
        try:
            ids = self._processor.encode(lines, num_threads=os.cpu_count() or 1)
        except (TypeError, UnicodeEncodeError) as error:
            raise InputError(_bad_line(lines)) from error
        if self._byte_ids:
            for index, line in enumerate(lines):
                if SPACE_MARK in line:
                    ids[index] = self._encode_space_mark(line)
        return ids

    @cached_property
    def model_type(self) -> str:
        """bpe, unigram, word or char: how the model splits text into pieces."""
        trainer = b"".join(value for field, value in _wire_fields(self.model) if field == 2)
        types = [value for field, value in _wire_fields(trainer) if field == 3]
        return _MODEL_TYPES[types[-1] if types else 1]

    @cached_property
    def vocabulary(self) -> list[tuple[str, float, int]]:
        """Piece, score and kind of each id; only pieces of kind NORMAL are split and joined."""
        entries = [dict(_wire_fields(value)) for at, value in _wire_fields(self.model) if at == 1]
        return [
            (
                entry[1].decode(),
                struct.unpack("<f", entry.get(2, bytes(4)))[0],
                entry.get(3, NORMAL),
            )
            for entry in entries
        ]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each row of ids; pad, eos and bos disappear, unk becomes U+2047.

        Raises:
          IndexError: an id is outside the vocabulary.
        """
        return self._processor.decode([[int(i) for i in row] for row in ids])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id, as SentencePiece spells it (a space is U+2581)."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    @cached_property
    def _byte_ids(self) -> list[int]:
        """Ids of the 256 byte pieces; empty without byte fallback."""
        ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        return ids if all(self._processor.is_byte(i) for i in ids) else []

    def _encode_space_mark(self, line: str) -> list[int]:
        """Encode a line that contains U+2581, which SentencePiece would turn into a space.

        A character without a piece replaces it, whose bytes in the result are then exchanged.
        """
        id_of = self._processor.piece_to_id
        stand_in = next(
            chr(c) for c in _STAND_INS if chr(c) not in line and id_of(chr(c)) == self.unk_id
        )
        wanted = [self._byte_ids[byte] for byte in SPACE_MARK.encode()]
        marked = [self._byte_ids[byte] for byte in stand_in.encode()]
        ids: list[int] = []
        for index in self._processor.encode(line.replace(SPACE_MARK, stand_in)):
            ids.append(index)
            if ids[-len(marked) :] == marked:
                ids[-len(marked) :] = wanted
        return ids


def _wire_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protocol buffer, such as a SentencePiece model."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        field, kind = divmod(varint(), 8)
        if kind == 0:
            yield field, varint()
            continue
        size = varint() if kind == 2 else {1: 8, 5: 4}[kind]
        yield field, message[at : at + size]
        at += size


def _bad_line(lines: Any) -> str:
    for index, line in enumerate(lines):
        try:
            line.encode("utf-8")
        except (AttributeError, UnicodeEncodeError) as error:
            return f"lines[{index}]={line!r:.80} is not Unicode text: {error}"
    return f"lines must be a list of str, not {type(lines).__name__}"


def read_pair(workdir: Path) -> tuple[Tokenizer, Tokenizer] | None:
    """The vocabularies of a workdir; None if it has none, or only one of two."""
    if (workdir / JOINT_FILE).is_file():
        joint = Tokenizer.load(workdir / JOINT_FILE)
        return joint, joint
    files = (workdir / SOURCE_FILE, workdir / TARGET_FILE)
    if not all(file.is_file() for file in files):
        return None
    return Tokenizer.load(files[0]), Tokenizer.load(files[1])


def load_tokenizers(workdir: str | Path) -> tuple[Tokenizer, Tokenizer]:
    """The source and target vocabularies of a workdir; the same object if joint.

    Raises:
      InputError: the workdir has no vocabulary, or a damaged one.
    """
    pair = read_pair(Path(workdir))
    if pair is None:
        raise InputError(
            f"{workdir} has no vocabulary ({JOINT_FILE}, or {SOURCE_FILE} and {TARGET_FILE}); name "
            "the workdir of a training run"
        )
    return pair


def vocabularies_of(tokenizers: tuple[Tokenizer, Tokenizer]) -> tuple[Vocabulary, Vocabulary]:
    """What checkpoints keep of the source's and the target's vocabulary."""
    joint = tokenizers[0] is tokenizers[1]
    files = (JOINT_FILE, JOINT_FILE) if joint else (SOURCE_FILE, TARGET_FILE)
    source, target = (
        Vocabulary(file, one.vocab_size, one.fingerprint)
        for file, one in zip(files, tokenizers, strict=True)
    )
    return source, target
