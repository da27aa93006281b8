"""What a checkpoint knows of its run, and that nothing else is taken for it."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from training_run import change, number_pairs

from jaxformer.config import Config, MeshConfig, TokenizerConfig
from jaxformer.data.tokenizer_training import train_tokenizer
from jaxformer.data.tokenizers import Tokenizer, vocabularies_of
from jaxformer.errors import InputError
from jaxformer.parallel.mesh import make_mesh
from jaxformer.storage.changes import Change, Effect
from jaxformer.storage.identity import (
    Identity,
    check_checkpoint,
    check_vocabularies,
    cpu_model,
    describe_hardware,
    describe_versions,
    identify,
    identity_changes,
    newest_identity,
    read_identity,
)
from jaxformer.storage.manifest import write_manifest
from jaxformer.storage.workdir import Workdir

RUN = Path("run")


@pytest.fixture(scope="module")
def tokenizers():
    """Vocabularies of 300 and of 301 pieces."""
    lines = [line for pair in number_pairs(300, 1) for line in pair]
    return [
        train_tokenizer(lines, TokenizerConfig(vocab_size=size), progress=False)
        for size in (300, 301)
    ]


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshConfig(fsdp=2), jax.devices()[:4])


@pytest.fixture
def identity(tokenizers, mesh):
    """Of a run with a joint vocabulary of 300 pieces on four devices."""
    config = change(Config(), model__vocab_size=300, tokenizer__vocab_size=300)
    joint = (tokenizers[0], tokenizers[0])
    return identify(config, vocabularies_of(joint), {"train": "aa", "validation": "bb"}, mesh)


def store(workdir, step, identity):
    """A checkpoint folder that holds an identity and nothing else."""
    folder = workdir.checkpoints / str(step)
    (folder / "meta").mkdir(parents=True)
    meta = {} if identity is None else {"identity": identity.to_dict()}
    (folder / "meta" / "metadata").write_text(json.dumps(meta))
    write_manifest(folder)
    return folder


def test_an_identity_comes_back_from_json_as_it_was(identity):
    assert len(identity.tokenizers) == 2 and identity.corpus == {"train": "aa", "validation": "bb"}
    values = json.loads(json.dumps(identity.to_dict()))
    assert Identity.from_dict(values, "there") == identity
    assert Identity.from_meta({"identity": values, "selection": {}}, "there") == identity
    assert Identity.from_meta({"selection": {}}, "there") is None


def test_versions_and_hardware(identity, mesh):
    assert identity.versions["jax"] == jax.__version__
    assert identity.versions["numpy"] == np.__version__
    assert identity.versions["jaxlib"].count(".") == 2 and identity.versions["jaxformer"]
    assert describe_versions(mesh) == identity.versions
    assert identity.hardware == {
        "device_kind": cpu_model(), "devices": 4, "processes": 1, "mesh": "data=2 fsdp=2 tensor=1",
    }  # fmt: skip
    assert describe_hardware(mesh)["device_kind"]


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("tokenizers", None, ("there: ", "damaged", "KeyError('tokenizers')")),
        ("row_multiple", "8", ("there: ", "damaged", "TypeError")),
        ("corpus", [], ("there: ", "damaged", "TypeError")),
        ("config", {"modle": {}}, ("there: config.modle", "nearest: there: config.model")),
    ],
)
def test_a_damaged_identity_is_refused(identity, part, value, words):
    values = identity.to_dict() | {part: value}
    if value is None:
        del values[part]
    with pytest.raises(InputError) as refused:
        Identity.from_dict(values, "there")
    assert all(word in str(refused.value) for word in words)


def test_differences_of_text_versions_and_hardware(identity):
    other = Identity(
        config=change(identity.config, training__num_steps=9),
        corpus=identity.corpus | {"train": "dd"},
        versions=identity.versions | {"jaxlib": "9.9.9", "new": "1"},
        hardware=identity.hardware | {"devices": 8},
    )
    assert identity_changes(identity, other) == [
        Change("training.num_steps", 100_000, 9, Effect.NOTHING),
        Change("data.train_text", "aa", "dd", Effect.TRAINING),
        Change("versions.jaxlib", identity.versions["jaxlib"], "9.9.9", Effect.NUMERICS),
        Change("hardware.devices", 4, 8, Effect.NUMERICS),
    ]
    assert identity_changes(identity, identity) == []


def test_what_is_not_known_is_not_compared(identity):
    assert identity_changes(Identity(config=identity.config), identity) == []
    assert identity_changes(identity, Identity(config=identity.config)) == []


def test_the_newest_good_checkpoint_says_what_a_run_is(tmp_path, identity):
    workdir = Workdir(tmp_path)
    assert newest_identity(workdir) == (None, None)
    workdir.store_config(Config())
    assert newest_identity(workdir) == (Identity(config=Config()), None)
    store(workdir, 9, None)  # of an older version
    assert newest_identity(workdir) == (Identity(config=Config()), 9)
    store(workdir, 10, identity)
    longer = change(identity.config, training__num_steps=7)
    newest = store(workdir, 100, Identity(config=longer))
    assert newest_identity(workdir) == (Identity(config=longer), 100)
    (newest / "meta" / "metadata").write_bytes(b"{}")
    assert newest_identity(workdir) == (identity, 10)
    with pytest.raises(InputError, match="/100 .*meta/metadata: 2 bytes"):
        read_identity(newest)


def test_a_workdir_that_cannot_be_looked_into_is_bad_input_and_no_new_run(tmp_path, monkeypatch):
    workdir = Workdir(tmp_path)
    workdir.store_config(Config())

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(InputError, match=f"{tmp_path}/config.json .*Permission denied"):
        newest_identity(workdir)


def test_another_vocabulary_is_refused_by_the_name_of_its_file(tmp_path, identity, tokenizers):
    right, wrong = tokenizers
    check_vocabularies(identity, vocabularies_of((right, right)), tmp_path, "it")
    with pytest.raises(InputError) as refused:
        check_vocabularies(identity, vocabularies_of((wrong, wrong)), tmp_path, "the run")
    message = str(refused.value)
    assert message.startswith(f"{tmp_path}/tokenizer.model ") and "the run's own file" in message
    assert re.search(rf"\b301 .*{wrong.fingerprint}.*{right.fingerprint}", message)
    with pytest.raises(InputError, match=f"^{tmp_path}/target_tokenizer.model "):
        check_vocabularies(identity, vocabularies_of((right, wrong)), tmp_path, "it")
    check_vocabularies(
        Identity(config=identity.config), vocabularies_of((wrong, wrong)), tmp_path, "it"
    )


def test_every_flipped_bit_of_a_vocabulary_is_refused_or_changes_nothing(identity, tokenizers):
    """The last bits hold the options of the trainer, which decide nothing any more."""
    right = tokenizers[0]
    lines = [line for pair in number_pairs(20, 7) for line in pair] + ["½ é\t \U0001f600"]
    ids = right.encode(lines)
    refused = 0
    draw = np.random.default_rng(0)
    for at in draw.choice(len(right.model), 150, replace=False):
        damaged = bytearray(right.model)
        damaged[at] ^= 1 << draw.integers(8)
        try:
            tokenizer = Tokenizer(bytes(damaged))
            check_vocabularies(identity, vocabularies_of((tokenizer, tokenizer)), RUN, "it")
        except (InputError, UnicodeDecodeError):
            refused += 1
        else:
            assert tokenizer.encode(lines) == ids and tokenizer.decode(ids) == lines
    assert refused > 100


def test_a_checkpoint_of_the_workdir_is_used(tmp_path, identity, tokenizers, capsys):
    folder = store(Workdir(tmp_path), 5, identity)
    free = change(identity.config, decoding__beam_size=1, optimizer__name="muon", seed=5)
    assert check_checkpoint(folder, free, (tokenizers[0],) * 2) == identity
    assert capsys.readouterr().err == ""


def test_a_checkpoint_of_another_model_is_refused(tmp_path, identity, tokenizers):
    folder = store(Workdir(tmp_path), 5, identity)
    other = change(identity.config, model__norm="pre", model__positions="rotary")
    with pytest.raises(InputError) as refused:
        check_checkpoint(folder, other, vocabularies_of((tokenizers[0],) * 2))
    first, *changed, last = str(refused.value).split("\n")
    assert first.startswith(f"{tmp_path}/config.json ") and str(folder) in first
    assert changed == [
        "  model.norm: 'post' -> 'pre'", "  model.positions: 'sinusoidal' -> 'rotary'",
    ]  # fmt: skip
    assert "the run's own file" in last
    with pytest.raises(InputError, match=f"/tokenizer.model .* {folder} "):
        check_checkpoint(folder, identity.config, vocabularies_of((tokenizers[1],) * 2))


def test_a_checkpoint_of_an_older_version_is_used_with_a_warning(
    tmp_path, identity, tokenizers, capsys
):
    folder = store(Workdir(tmp_path), 5, None)
    assert check_checkpoint(folder, identity.config, vocabularies_of((tokenizers[1],) * 2)) is None
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: {folder} ") and "vocabulary" in warning
