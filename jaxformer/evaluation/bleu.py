"""Corpus BLEU and chrF by sacreBLEU, with the signatures that make the figures comparable."""

from __future__ import annotations

from dataclasses import dataclass

from jaxformer.config_sections import BLEU_TOKENIZERS
from jaxformer.errors import InputError, check_choice


@dataclass(frozen=True, kw_only=True)
class CorpusScores:
    """Figures of one corpus against one reference a sentence; print them with their signature."""

    bleu: float  # 0 to 100
    bleu_signature: str
    chrf: float  # chrF2, 0 to 100
    chrf_signature: str
    precisions: tuple[float, ...]  # of 1- to 4-grams, percent
    brevity_penalty: float  # 1: not shorter than the references
    hypothesis_length: int  # tokens of BLEU's tokenizer
    reference_length: int  # tokens of BLEU's tokenizer


def make_bleu(tokenize: str, *, lowercase: bool = False, name: str = "tokenize"):
    """sacreBLEU's BLEU with a tokenizer.

    Args:
      tokenize: one of `BLEU_TOKENIZERS`.
      lowercase: ignore case.
      name: name of the option, for the error message.

    Raises:
      InputError: the tokenizer is unknown, or it needs a package that is not installed.
    """
    check_choice(name, tokenize, BLEU_TOKENIZERS)
    from sacrebleu.metrics import BLEU

    try:
        # force: no warning about tokenised text; the caller decides by `tokenize`.
        return BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    except (RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name}={tokenize!r} cannot be used: {reason}") from error


def corpus_scores(
    hypotheses: list[str],
    references: list[str],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> CorpusScores:
    """Corpus BLEU (Papineni et al. 2002, Post 2018) and chrF2 (Popovic 2015).

    Args:
      hypotheses: detokenised translations, one a sentence.
      references: detokenised references, one a sentence.
      tokenize: how BLEU splits words: 13a (most languages), zh, ja-mecab, ko-mecab, intl, char, or
        none for tokenised text. chrF works on characters.
      lowercase: ignore case in both figures.

    Raises:
      InputError: the counts differ or are 0, the tokenizer is unknown, or it needs a package that
        is not installed.
    """
    if len(hypotheses) != len(references) or not hypotheses:
        raise InputError(
            f"{len(hypotheses)} hypotheses for {len(references)} references; give one of each "
            "for every sentence, and at least one sentence"
        )
    from sacrebleu.metrics import CHRF

    bleu = make_bleu(tokenize, lowercase=lowercase)
    chrf = CHRF(lowercase=lowercase)
    score = bleu.corpus_score(hypotheses, [references])
    return CorpusScores(
        bleu=score.score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        chrf_signature=str(chrf.get_signature()),
        precisions=tuple(score.precisions),
        brevity_penalty=score.bp,
        hypothesis_length=score.sys_len,
        reference_length=score.ref_len,
    )
