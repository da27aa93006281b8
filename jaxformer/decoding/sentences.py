"""Lines of text as a search takes them: ids, limits and numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from jaxformer.config import DecodingConfig
from jaxformer.decoding.prompts import check_prompts
from jaxformer.decoding.search_shape import length_limit
from jaxformer.errors import InputError
from jaxformer.runtime.distributed import is_first_process


class Sentence(NamedTuple):
    """A source sentence, and what is asked of its translation.

    Attributes:
      ids: of the source, with EOS; none for a blank line.
      prefix: target ids that the translation begins with, without EOS.
      limit: tokens of the translation, prefix and EOS included.
      number: of the line; it names the sentence for random draws.
    """

    ids: list[int]
    prefix: list[int]
    limit: int
    number: int


def make_sentences(
    lines: Sequence[str],
    prefixes: Sequence[str] | None,
    tokenizers: tuple,
    config: DecodingConfig,
    position_limit: int | None,
    first_line: int,
) -> list[Sentence]:
    """The sentences of some lines; a source over the limit is truncated with a warning.

    Args:
      lines: source text.
      prefixes: target text, one for each line, blank for none; None: none at all.
      tokenizers: of source and target.
      config: has the limits.
      position_limit: of the model; None: there is none.
      first_line: number of the first line.

    Raises:
      InputError: the prefixes are more or fewer than the lines, a prefix reaches the limit of its
        translation or holds a special piece, or there is one for a blank line.
    """
    source, target = tokenizers
    sources = _encode_sources(lines, source, config, position_limit, first_line)
    if prefixes is None:
        encoded = [[]] * len(lines)
    else:
        if len(prefixes) != len(lines):
            raise InputError(
                f"{len(prefixes)} prefixes for {len(lines)} lines; give one for each line, ''"
                " for none"
            )
        encoded = target.encode([prefix if prefix.strip() else "" for prefix in prefixes])
    sentences = []
    for number, (ids, prefix) in enumerate(zip(sources, encoded, strict=True), first_line):
        limit = length_limit(config, len(ids), position_limit) if ids else 0
        if prefix and not ids:
            raise InputError(
                f"line {number} is blank, but its prefix is {prefixes[number - first_line]!r}; "
                "give a source sentence, or no prefix"
            )
        if prefix:
            check_prompts(
                [prefix], [len(prefix)], [limit], eos_id=target.eos_id,
                vocab_size=target.vocab_size, row=f"prefix of line {number}",
                limit_name="the limit (--max_length, decoding.max_length_extra)",
            )  # fmt: skip
        sentences.append(Sentence(ids, prefix, limit, number))
    return sentences


def _encode_sources(
    lines: Sequence[str],
    tokenizer,
    config: DecodingConfig,
    position_limit: int | None,
    first_line: int,
) -> list[list[int]]:
    """Ids with EOS; nothing for a blank line."""
    limit, set_by = config.max_source_length, "decoding.max_source_length"
    if position_limit and position_limit < limit:
        limit, set_by = position_limit, "model.max_length, the rows of learned positions"
    encoded = []
    for number, (line, ids) in enumerate(
        zip(lines, tokenizer.encode(list(lines)), strict=True), first_line
    ):
        if len(ids) + 1 > limit:
            if is_first_process():
                print(
                    f"warning: line {number} has {len(ids) + 1} tokens; only the first {limit} "
                    f"are translated ({set_by})",
                    file=sys.stderr,
                )
            ids = ids[: limit - 1]
        encoded.append([*ids, tokenizer.eos_id] if line.strip() else [])
    return encoded
