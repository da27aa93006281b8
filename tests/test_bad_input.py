"""Bad input: one short message that names the field, the value and the repair; exit status 2."""

import re
import shutil

import pytest
from training_run import (
    call_train_script,
    number_pairs,
    write_config_file,
    write_corpus,
    write_pairs,
)

from jaxformer.__main__ import main
from jaxformer.training.setup import prepare_run


@pytest.fixture
def run_train(monkeypatch, capsys):
    """`python train.py ARGUMENTS` in this process: (exit status, what stderr says)."""

    def run(*arguments):
        return call_train_script(monkeypatch, *arguments), capsys.readouterr().err

    return run


@pytest.fixture
def run_command(capsys):
    """`python -m jaxformer ARGUMENTS` in this process: (exit status, what stderr says)."""

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = ended.code
        return status, capsys.readouterr().err

    return run


@pytest.fixture
def config_file(tmp_path):
    """A config file over a corpus of number words in `tmp_path / "corpus"`."""
    write_corpus(tmp_path / "corpus")
    return write_config_file(tmp_path / "small.py", tmp_path / "corpus", tmp_path / "cache")


def assert_refused(outcome, *words):
    status, err = outcome
    assert status == 2
    message = err.rpartition("error: ")[2]
    assert "Traceback" not in err and len(message) < 600
    for word in words:
        assert str(word) in message


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        (
            "--config.model.d_modl=5",
            ["--config.model.d_modl ", "config.model.d_model"],
        ),
        ("--config.modle.d_model=5", ["--config.modle.d_model ", "config.model.d_"]),
        ("--config.model.d_model=wide", ["--config.model.d_model=wide", "int", "1000"]),
        ("--config.model.d_model=30", ["model.d_model=30", "num_heads=4", "nearest: 5"]),
        ("--config.model.dropout_rate=2", ["model.dropout_rate=2.0", "between 0 and 0.99"]),
        ("--config.model.remat=maybe", ["--config.model.remat=maybe", "true or false"]),
        ("--config.model=5", ["--config.model ", "section", "--config.model."]),
        ("--config.model.vocab_size=99", ["--config.model.vocab_size", "tokenizer.vocab_size"]),
        ("--config.data.root", ["--config.data.root ", "--config.data.root="]),
        ("--config=configs/pokcet.py", ["--config=configs/pokcet.py: ", "configs/pocket.py"]),
        ("--config=nowhere/pocket.py", ["--config=nowhere/pocket.py: ", " nowhere"]),
        ("--workdri=x", ["workdri", "workdir"]),
        ("--config.data.source=text", ["data.root", "data.source='text'", "folder"]),
        ("--config.data.target_language=de", ["data.target_language='de'", "en and fr"]),
        ("--config.training.bleu_tokenize=13A", ["training.bleu_tokenize='13A'", "nearest: 13a"]),
        (
            "--config.training.r_drop_alpha=5 --config.model.dropout_rate=0",
            ["training.r_drop_alpha=5.0", "model.dropout_rate", "training.r_drop_alpha=0"],
        ),
        ("--config.mesh.data=3", ["mesh.data=3", "8 devices", "-1"]),
    ],
)
def test_flags(run_train, tmp_path, flag, words):
    assert_refused(run_train(f"--workdir={tmp_path / 'run'}", *flag.split()), *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("Config(model=TransformerConfig(d_model=30)).to_config_dict()",
         ["/own.py, line 7: model.d_model=30", "num_heads=8", "nearest: 10"]),
        ("ml_collections.ConfigDict({'model': {'d_modl': 4}})",
         ["config.model.d_modl ", "config.model.d_model"]),
        ("ml_collections.ConfigDict({'seed': 'one'})", ["config.seed='one'", "int"]),
    ],
)  # fmt: skip
def test_config_files(run_train, tmp_path, body, words):
    (tmp_path / "own.py").write_text(
        "import ml_collections\n\nfrom jaxformer.config import Config, TransformerConfig\n\n\n"
        f"def get_config():\n    return {body}\n"
    )
    outcome = run_train(f"--config={tmp_path / 'own.py'}", f"--workdir={tmp_path / 'run'}")
    assert_refused(outcome, *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", ["get_config()", "configs/pocket.py"]),
        ("def get_config():\n    return lerning_rate", [", line 2: NameError", "lerning_rate"]),
        ("def get_config(:", [", line 1: SyntaxError"]),
        ("def get_config():\n    return int('x')", [", line 2: ValueError", "'x'"]),
        ("def get_config():\n    return {}['x']", [", line 2: KeyError", "'x'"]),
        ("import not_there\n", [", line 1: ModuleNotFoundError", "not_there"]),
        ("def get_config():\n    return open('no.txt')", ["no.txt"]),
        ("def get_config():\n    return 3", ["get_config()", " 3", "ConfigDict"]),
    ],
)
def test_config_files_that_are_none(run_train, run_command, tmp_path, text, words):
    path = tmp_path / "own.py"
    path.write_text(text)
    assert_refused(run_train(f"--config={path}", f"--workdir={tmp_path / 'run'}"), path, *words)
    assert_refused(run_command("plan", f"--config={path}", "--devices=1"), path, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--workdir="], ["--workdir", ""], ["--config="], ["--allow_changes="],
        ["--config.data.root="], ["--config.data.root", ""], ["--config.data.cache_dir="],
        ["--coordinator_address="],
    ],
)  # fmt: skip
def test_an_empty_value_of_train(run_train, flags):
    assert_refused(run_train(*flags), flags[0].rstrip("="), "empty")


def test_missing_files(run_train, config_file, tmp_path):
    (tmp_path / "corpus" / "train.fr").unlink()
    outcome = run_train(f"--config={config_file}", f"--workdir={tmp_path / 'run'}")
    assert_refused(outcome, "data.train='train'", "train.en", "train.fr", "train (en)")
    outcome = run_train(
        f"--config={config_file}", f"--workdir={tmp_path / 'run'}", "--config.data.root=no/where"
    )
    assert_refused(outcome, "data.root='no/where'", "folder")
    outcome = run_train(
        f"--config={config_file}", f"--workdir={tmp_path / 'run'}",
        "--config.tokenizer.model_file=no.model", "--config.data.train=valid",
    )  # fmt: skip
    assert_refused(outcome, "no.model: ", "tokenizer", "No such file")


def test_unequal_line_counts(run_train, config_file, tmp_path):
    with open(tmp_path / "corpus" / "train.fr", "ab") as file:
        file.write(b"un\ndeux\n")
    outcome = run_train(f"--config={config_file}", f"--workdir={tmp_path / 'run'}")
    assert_refused(outcome, "train.en", " 400 ", "train.fr", " 402")


def test_text_that_is_not_utf8(run_train, config_file, tmp_path):
    path = tmp_path / "corpus" / "train.fr"
    lines = path.read_bytes().split(b"\n")
    lines[6] = "zéro".encode("latin-1")
    path.write_bytes(b"\n".join(lines))
    outcome = run_train(f"--config={config_file}", f"--workdir={tmp_path / 'run'}")
    assert_refused(outcome, f"{path}, line 7: ", "0xE9", "iconv -f LATIN1 -t UTF-8")


@pytest.mark.parametrize(("content", "word"), [(b"", "empty"), (b" \n\n", "blank lines")])
def test_an_empty_corpus(run_train, config_file, tmp_path, content, word):
    for suffix in ("en", "fr"):
        (tmp_path / "corpus" / f"train.{suffix}").write_bytes(content)
    outcome = run_train(f"--config={config_file}", f"--workdir={tmp_path / 'run'}")
    assert_refused(outcome, word)


def test_a_corpus_of_which_nothing_is_left(run_train, config_file, tmp_path):
    outcome = run_train(
        f"--config={config_file}", f"--workdir={tmp_path / 'run'}", "--config.data.max_length=2"
    )
    assert_refused(outcome, "data.train", "400 over data.max_length=2", "raise data.max_length")


def test_a_vocabulary_larger_than_the_text_allows(run_train, config_file, tmp_path):
    outcome = run_train(
        f"--config={config_file}", f"--workdir={tmp_path / 'run'}",
        "--config.tokenizer.vocab_size=9000",
    )  # fmt: skip
    status, err = outcome
    assert_refused(outcome, "tokenizer.vocab_size=9000", "800 sentences")
    largest = int(re.findall(r"\d+", err)[-1])
    assert 260 < largest < 9000
    assert run_train(
        f"--config={config_file}", f"--workdir={tmp_path / 'run'}",
        f"--config.tokenizer.vocab_size={largest + 1}",
    )[0] == status == 2  # fmt: skip


def test_a_batch_too_small_for_the_devices(run_train, config_file, tmp_path):
    outcome = run_train(
        f"--config={config_file}", f"--workdir={tmp_path / 'run'}",
        "--config.data.tokens_per_batch=16", "--config.optimizer.accumulation_steps=2",
    )  # fmt: skip
    assert_refused(outcome, "data.tokens_per_batch=16 ", "16 row", "raise it to")


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--config.model.d_model=64", ["model.d_model: 32 -> 64"]),
        ("--config.tokenizer.vocab_size=300", ["tokenizer.vocab_size: 350 -> 300"]),
        ("--config.optimizer.ema_decay=0.9", ["optimizer.ema_decay: 0.0 -> 0.9"]),
    ],
)
def test_a_workdir_of_another_model(run_train, small_run, tmp_path, flag, words):
    file = write_config_file(tmp_path / "c.py", small_run.corpus, small_run.config.data.cache_dir)
    stored = (small_run.workdir / "config.json").read_bytes()
    outcome = run_train(f"--config={file}", f"--workdir={small_run.workdir}", flag)
    assert_refused(outcome, f"{small_run.workdir} ", *words, "another --workdir", "old values")
    assert (small_run.workdir / "config.json").read_bytes() == stored


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ["config.json: ", "JSON"]),
        ("import os", ["config.json: ", "JSON"]),
        ('{"model": {"layers": 2}}', ["config.json.model.layers ", "nearest: "]),
        ('{"model": {"d_model": "wide"}}', ["config.json.model.d_model='wide'", "str", "int"]),
    ],
)
def test_a_damaged_workdir(run_train, run_command, config_file, tmp_path, content, words):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(content)
    outcome = run_train(f"--config={config_file}", f"--workdir={tmp_path / 'run'}")
    assert_refused(outcome, *words)
    for command in ("translate", "evaluate", "average"):
        extra = ["--last=1"] if command == "average" else []
        assert_refused(run_command(command, f"--workdir={tmp_path / 'run'}", *extra), *words)


@pytest.mark.parametrize("command", ["translate", "evaluate", "average"])
def test_commands_without_a_checkpoint(run_command, small_run, tmp_path, command):
    extra = ["--last=1"] if command == "average" else []
    outcome = run_command(command, f"--workdir={tmp_path}", *extra)
    assert_refused(outcome, f"{tmp_path} ", "config.json", f"python train.py --workdir={tmp_path}")
    for name in ("config.json", "tokenizer.model"):
        shutil.copy(small_run.workdir / name, tmp_path)
    outcome = run_command(command, f"--workdir={tmp_path}", *extra)
    words = " 0 checkpoints" if command == "average" else f"train.py --workdir={tmp_path}"
    assert_refused(outcome, f"{tmp_path}/checkpoints ", words)


def test_checkpoints_of_another_model(run_command, small_run, tmp_path):
    shutil.copytree(small_run.workdir, tmp_path / "run")
    text = (tmp_path / "run" / "config.json").read_text()
    wider = text.replace('"d_ff": 64', '"d_ff": 48')
    assert wider != text
    (tmp_path / "run" / "config.json").write_text(wider)
    outcome = run_command("translate", f"--workdir={tmp_path / 'run'}", f"--input={__file__}")
    assert_refused(outcome, f"{tmp_path}/run/config.json ", "model.d_ff: 64 -> 48")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate", "--checkpoint=7"],
         ["--checkpoint=7 ", ": best, latest, 20, 40"]),
        (["translate", "--input=no.txt"], ["no.txt: "]),
        (["translate", "--input={latin}"], ["latin.txt, line 2: ", "UTF-8", "iconv"]),
        (["translate", "--max_length=0"], ["--max_length=0", "at least 1"]),
        (["translate", "--greedy", "--alpha=2"], ["--alpha=2.0 ", "--beam_size"]),
        (["evaluate", "--beam_size=1", "--length_penalty=gnmt"],
         ["--length_penalty=gnmt ", "--beam_size"]),
        (["translate", "--input={latin}", "--output=no/where.txt"],
         ["--output=no/where.txt: ", "folder no; "]),
        (["translate", "--top_beams=5"], ["--top_beams=5 ", " 3", "--beam_size"]),
        (["translate", "--greedy", "--top_beams=2"], ["--top_beams=2 ", " 1"]),
        (["translate", "--beam_size=0"], ["decoding.beam_size=0", "at least 1"]),
        (["translate", "--greedy", "--beam_size=2"], ["--beam_size", "--greedy"]),
        (["translate", "--beam=2"], ["--beam=2"]),
        (["translate", "--length_penalty=none"], ["'none'", "gnmt", "power"]),
        (["evaluate", "--split=testing"], ["--split=testing", "train, validation, test"]),
        (["evaluate", "--source={latin}"], ["--source", "--reference"]),
        (["evaluate", "--split=test", "--source=a", "--reference=b"], ["--split", "--source"]),
        (["evaluate", "--source=no.en", "--reference=no.fr"], ["no.en: "]),
        (["evaluate", "--source={latin}", "--reference={one}"],
         ["latin.txt", " 3 ", "one.txt", " 1"]),
        (["evaluate", "--tokenize=13b"], ["tokenize='13b'", "nearest: 13a"]),
        (["average", "--last=9"], ["--last=9", " 6 checkpoints", "training.keep_checkpoints"]),
        (["average", "--best=4"], ["--best=4", " 3 checkpoints", "for bleu"]),
        (["average"], ["--last", "--best"]),
    ],
)  # fmt: skip
def test_flags_of_commands(run_command, small_run, tmp_path, arguments, words):
    (tmp_path / "latin.txt").write_bytes(b"one\nz\xe9ro\ntwo\n")
    (tmp_path / "one.txt").write_bytes(b"one\n")
    names = {"latin": tmp_path / "latin.txt", "one": tmp_path / "one.txt"}
    command, *flags = [argument.format(**names) for argument in arguments]
    assert_refused(run_command(command, f"--workdir={small_run.workdir}", *flags), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tranlate"], ["'tranlate'", "translate", "evaluate", "average"]),
        ([], ["required: command"]),
        (["translate"], ["required: --workdir"]),
    ],
)
def test_unknown_commands(run_command, arguments, words):
    assert_refused(run_command(*arguments), *words)


def test_odd_line_breaks_keep_the_corpus_aligned(run_train, config_file, tmp_path, monkeypatch):
    odd = ["one\u2028two", "one\rtwo", "one\x00two", "one two\r", "one\x85two", "one\x0btwo"]
    pairs = [(line, line.replace("one", "un").replace("two", "deux")) for line in odd]
    write_pairs(tmp_path / "corpus", "train", number_pairs(300, 1) + pairs)
    write_pairs(tmp_path / "corpus", "valid", pairs + [("three four", "trois quatre")])
    caught = []
    monkeypatch.setattr("jaxformer.training.loop.train", lambda *a, **_: caught.append(a) or Done)
    assert run_train(f"--config={config_file}", f"--workdir={tmp_path / 'run'}")[0] == 0
    run = prepare_run(caught[0][0], tmp_path / "run")
    (source, target), corpus = run.vocabularies, run.dataset.corpus
    assert (corpus.report.read, corpus.report.kept) == (306, 306)
    for index in range(300, 306):
        ids = [side.tolist()[:-1] for side in corpus.pair(index)]
        english, french = source.decode([ids[0]])[0], target.decode([ids[1]])[0]
        assert english == odd[index - 300].removesuffix("\r")
        assert french == english.replace("one", "un").replace("two", "deux")
    assert run.validation.pairs[-1] == ("three four", "trois quatre")
    assert len(run.validation.pairs) == 7


class Done:
    """What a finished `train` returns, as far as train.py looks."""

    exit_status = 0
