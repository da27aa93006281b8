import os
import re

import pytest

from jaxformer.config import TokenizerConfig
from jaxformer.data.tokenizer_training import load_or_train, train_tokenizer
from jaxformer.data.tokenizers import Tokenizer, load_tokenizers
from jaxformer.errors import InputError
from jaxformer.files.inputs import read_lines

WORDS = ["the house is small", "a small dog runs", "the dog sees a house", "we run home now"]
LINES = [f"{a} and {b}" for a in WORDS for b in WORDS]
HARD = [
    "",
    " ",
    "   lead",
    "trail   ",
    "dou  ble",
    "tab\tand\ttab\t",
    "nul\x00in\x00",
    "\u2028line\u2028 \u2029 \u0085",
    "cr\rin",
    "½ ﬁ Ａｂｃ \u3000 ℡",
    "مرحبا بالعالم",
    "你好,世界",
    "e\u0301 é \u0301",
    "😀 👨\u200d👩\u200d👧 🇫🇷",
    "\ufeffbom \u00a0 nbsp",
    "\u2581 under \u2581\u2581mark\u2581",
    "\u2581\ufdd0",
    "\u2585 block",
    "<pad></s><s><unk> <0x41>",
    "\ufffd \U0010ffff \ufffe",
]


class Pairs:
    """The part of a Source that vocabularies are trained on; counts how often it is read."""

    def __init__(self, pairs=None):
        self.reads = 0
        self._pairs = pairs or [(line, line.upper()) for line in LINES]

    def pairs(self, split):
        assert split == "train"
        self.reads += 1
        return iter(self._pairs)


def config(**fields):
    return TokenizerConfig(**{"vocab_size": 300, **fields})


@pytest.fixture(scope="module")
def small():
    return train_tokenizer(LINES, config(), progress=False)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_any_text_round_trips(model_type):
    tokenizer = train_tokenizer(
        LINES, config(vocab_size=284, model_type=model_type), progress=False
    )
    assert tokenizer.decode(tokenizer.encode(HARD)) == HARD
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000), *range(0x1F300, 0x1F700)]))
    assert tokenizer.decode(tokenizer.encode([every])) == [every]


def test_ten_scripts_round_trip(real_data):
    folder = real_data / "tatoeba_laser22"
    files = sorted(path for path in folder.iterdir() if path.name.startswith("tatoeba."))
    lines = [line for path in files for line in read_lines(path)]
    assert len(files) == 20 and len(lines) == 19_096
    tokenizer = train_tokenizer(lines, TokenizerConfig(vocab_size=6000), progress=False)
    ids = tokenizer.encode(lines)
    assert tokenizer.decode(ids) == lines
    assert not any(tokenizer.unk_id in row for row in ids)


def test_ids(small):
    assert small.vocab_size == 300
    assert (small.pad_id, small.eos_id, small.bos_id, small.unk_id) == (0, 1, 2, 3)
    assert small.pieces([0, 1, 2, 3, 4, 259]) == [
        "<pad>",
        "</s>",
        "<s>",
        "<unk>",
        "<0x00>",
        "<0xFF>",
    ]
    ids = small.encode(["the dog", "the", ""])
    assert small.pieces(ids[1]) == ["\u2581the"]
    assert ids[0][0] == ids[1][0] and ids[2] == []
    assert min(id for row in ids for id in row) > 3
    assert small.decode([[0, 2, *ids[0], 1, 0, 0], []]) == ["the dog", ""]


def test_special_pieces_in_text_are_text(small):
    (ids,) = small.encode(["</s><pad>"])
    assert min(ids) > 3


def test_decode_refuses_ids_outside_the_vocabulary(small):
    with pytest.raises(IndexError):
        small.decode([[300]])


def test_encode_names_the_line_that_is_no_text(small):
    with pytest.raises(InputError, match=r"lines\[1\]=.*is not Unicode text.*surrogates"):
        small.encode(["fine", "\ud800"])


def test_fingerprint_is_of_the_vocabulary(small):
    again = train_tokenizer(iter(LINES), config(max_sentences=0), progress=False)
    assert again.fingerprint == small.fingerprint and re.fullmatch(
        "[0-9a-f]{32}", again.fingerprint
    )
    other = train_tokenizer(LINES, config(vocab_size=299), progress=False)
    assert other.fingerprint != small.fingerprint


def test_fingerprint_follows_normalisation(small, tmp_path):
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    plain, normalised = (
        ready_model(tmp_path / name, normalization_rule_name=name, byte_fallback=True, **ids)
        for name in ("identity", "nmt_nfkc")
    )
    first, second = Tokenizer.load(plain), Tokenizer.load(normalised)
    every = range(first.vocab_size)
    assert first.pieces(every) == second.pieces(every)
    assert first.fingerprint != second.fingerprint


def test_save_and_load(small, tmp_path):
    path = tmp_path / "new" / "x.model"
    small.save(path)
    assert os.listdir(tmp_path / "new") == ["x.model"]
    loaded = Tokenizer.load(path)
    assert loaded.fingerprint == small.fingerprint
    assert loaded.encode(LINES) == small.encode(LINES)


def test_load_refuses_missing_and_damaged_files(tmp_path):
    with pytest.raises(InputError, match="no.model: .*tokenizer.*: No such file"):
        Tokenizer.load(tmp_path / "no.model")
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with pytest.raises(InputError, match="bad.model: not a SentencePiece model"):
        Tokenizer.load(tmp_path / "bad.model")


def ready_model(path, **options):
    import sentencepiece

    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES),
            model_writer=file,
            vocab_size=300 if options.get("byte_fallback") else 40,
            model_type="bpe",
            minloglevel=2,
            **options,
        )
    return path


def test_ready_model_needs_four_special_ids(tmp_path):
    path = ready_model(tmp_path / "default.model")
    with pytest.raises(InputError, match="pad=-1, eos=2, bos=1, unk=0; .*--pad_id=0 --eos_id=1"):
        Tokenizer.load(path)


def test_ready_model_keeps_its_own_ids(tmp_path):
    path = ready_model(tmp_path / "own.model", pad_id=3)
    tokenizer = Tokenizer.load(path)
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id, tokenizer.unk_id) == (3, 2, 1, 0)
    assert tokenizer.decode(tokenizer.encode(["the dog", "Zone"])) == ["the dog", " \u2047 one"]


def test_progress_line(capsys):
    train_tokenizer(LINES, config(), progress=True)
    line = r"training a BPE vocabulary of 300 on 16 sentences \.\.\. \d+\.\d s\n"
    assert re.fullmatch(line, capsys.readouterr().err)
    train_tokenizer(LINES * 10, config(max_sentences=101), progress=True)
    assert "on 101 of 160 sentences" in capsys.readouterr().err


def test_sample_too_small_for_sentencepiece():
    with pytest.raises(InputError, match="max_sentences=100: .*use 101 or more, or 0"):
        train_tokenizer(LINES, config(max_sentences=100), progress=False)


def test_sampling_is_the_same_each_time():
    lines = [f"{a} {b} {i % 89} {i}" for i in range(2000) for a in "abc" for b in "xyz"]
    made = [
        train_tokenizer(lines, config(max_sentences=n), progress=False).fingerprint
        for n in (300, 300, 0)
    ]
    assert made[0] == made[1] != made[2]


def test_vocabulary_too_large_names_the_largest(capsys):
    with pytest.raises(InputError) as error:
        train_tokenizer(LINES, config(vocab_size=5000), progress=True)
    message = str(error.value)
    assert message.startswith("tokenizer.vocab_size=5000 ") and " 16 sentences" in message
    largest = int(re.search(r"at most (\d+)", message)[1])
    assert capsys.readouterr().err.endswith("failed\n")
    assert train_tokenizer(LINES, config(vocab_size=largest), progress=False).vocab_size == largest


def test_vocabulary_too_small_names_the_smallest():
    lines = ["".join(map(chr, range(0x4E00 + i, 0x4E20 + i))) for i in range(0, 320, 32)]
    with pytest.raises(InputError, match="vocab_size=300 .*at least 581.*character_cover"):
        train_tokenizer(lines, config(), progress=False)


@pytest.mark.parametrize("lines", [[], ["", "  ", "\t"]])
def test_empty_text(lines):
    with pytest.raises(InputError, match="training text .*blank lines"):
        train_tokenizer(lines, config(), progress=False)


def test_error_of_the_lines_comes_through():
    def broken():
        yield from LINES
        raise InputError("train.fr, line 17: not UTF-8")

    with pytest.raises(InputError, match="^train.fr, line 17: not UTF-8$"):
        train_tokenizer(broken(), config(), progress=False)


def test_long_lines_and_marks_are_trained_on():
    long = "zebra " * 5000 + "x" * 70_000
    tokenizer = train_tokenizer([*LINES, long, "\u2585 yak" * 50], config(), progress=False)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    assert "\u2581zebra" in pieces and "\u2581yak" in pieces
    assert tokenizer.decode(tokenizer.encode([long])) == [long]


def test_joint_vocabulary_is_trained_once_and_kept(tmp_path):
    source = Pairs()
    first = load_or_train(config(), source, tmp_path)
    second = load_or_train(config(), source, str(tmp_path))
    assert first[0] is first[1] and second[0] is second[1]
    assert source.reads == 1
    assert os.listdir(tmp_path) == ["tokenizer.model"]
    assert load_tokenizers(tmp_path)[0].fingerprint == first[0].fingerprint
    letters = set("".join(first[0].pieces(range(300))))
    assert {"h", "u", "H", "U"} <= letters


def test_two_vocabularies(tmp_path):
    one, other = load_or_train(config(vocab_size=280, joint=False), Pairs(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["source_tokenizer.model", "target_tokenizer.model"]
    assert "h" in one.pieces(range(280)) and "h" not in other.pieces(range(280))
    assert "H" in other.pieces(range(280))
    assert [t.fingerprint for t in load_tokenizers(tmp_path)] == [
        one.fingerprint,
        other.fingerprint,
    ]


def test_ready_model_is_copied_into_the_workdir(small, tmp_path):
    small.save(tmp_path / "ready.model")
    source = Pairs()
    fields = {"model_file": str(tmp_path / "ready.model"), "vocab_size": 8000}
    for _ in range(2):
        pair = load_or_train(config(**fields), source, tmp_path / "run")
        assert pair[0].fingerprint == small.fingerprint
    assert source.reads == 0
    (tmp_path / "ready.model").unlink()
    assert load_or_train(config(**fields), source, tmp_path / "run")[0].vocab_size == 300


def test_ready_source_model_and_trained_target(small, tmp_path):
    small.save(tmp_path / "ready.model")
    fields = config(joint=False, model_file=str(tmp_path / "ready.model"), vocab_size=280)
    one, other = load_or_train(fields, Pairs(), tmp_path / "run")
    assert (one.vocab_size, other.vocab_size) == (300, 280)
    again = load_or_train(fields, Pairs(), tmp_path / "run")
    assert [t.vocab_size for t in again] == [300, 280]


def test_workdir_that_contradicts_the_config(small, tmp_path):
    load_or_train(config(), Pairs(), tmp_path)
    with pytest.raises(InputError, match="vocab_size=280, but the vocabulary in .* has 300 pieces"):
        load_or_train(config(vocab_size=280), Pairs(), tmp_path)
    with pytest.raises(InputError, match="joint=False, but .* has one joint vocabulary"):
        load_or_train(config(joint=False), Pairs(), tmp_path)
    other = train_tokenizer(["other words", *LINES], config(), progress=False)
    other.save(tmp_path / "other")
    with pytest.raises(InputError, match="model_file=.*other' is not the vocabulary in"):
        load_or_train(config(model_file=str(tmp_path / "other")), Pairs(), tmp_path)


def test_workdir_without_vocabulary(tmp_path):
    names = "tokenizer.model, or source_tokenizer.model"
    with pytest.raises(InputError, match=f"{tmp_path} .*{names}"):
        load_tokenizers(tmp_path)
