"""A run that begins with another's parameters: by path, with every difference listed."""

import dataclasses

import jax
import numpy as np
import pytest
from training_run import change, read_metrics

from jaxformer.errors import InputError
from jaxformer.tasks.open_run import open_run
from jaxformer.training.loop import train
from jaxformer.training.setup import prepare_run
from jaxformer.training.warm_start import differences, warm_start


@pytest.fixture
def begin(small_run, tmp_path, monkeypatch):
    """Start a run of a few steps with the parameters of the trained one."""

    def start(*, name="run", checkpoint="120", allow="", own_vocabulary=False, **changes):
        vocabulary = "" if own_vocabulary else str(small_run.workdir / "tokenizer.model")
        config = change(
            small_run.config, tokenizer__model_file=vocabulary, training__num_steps=2, **changes
        )
        origin = f"{small_run.workdir}:{checkpoint}" if checkpoint else str(small_run.workdir)
        config = dataclasses.replace(config, init_from=origin, init_from_allow=allow)
        return config, tmp_path / name

    return start


def first_state(config, workdir):
    run = prepare_run(config, workdir)
    fresh = run.program.first_state(jax.random.key(config.seed), run.mesh)
    return jax.device_get(warm_start(run, fresh))


def flat(tree):
    return {jax.tree_util.keystr(path): leaf for path, leaf in
            jax.tree_util.tree_leaves_with_path(tree)}  # fmt: skip


def test_every_parameter_is_taken_and_nothing_else(begin, small_run, one_device):
    config, workdir = begin(optimizer__ema_decay=0.9)
    state = first_state(config, workdir)
    stored = flat(open_run(small_run.workdir, "120").params)
    for name, leaf in flat(state.params).items():
        np.testing.assert_array_equal(leaf, stored[name], err_msg=name)
    for name, leaf in flat(state.ema_params).items():
        np.testing.assert_array_equal(leaf, stored[name], err_msg=name)
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if np.ndim(leaf)]
    assert state.step == 0 and not any(np.any(leaf) for leaf in moments)


def test_training_goes_on_from_there_and_is_resumed_without_it(begin, one_device, capsys):
    config, workdir = begin(checkpoint="", training__log_every=1, training__save_every=1)
    train(config, workdir)
    assert "init_from" in capsys.readouterr().out
    assert read_metrics(workdir, "train")[0]["loss"] < 2.0  # of a fresh model: 5.9
    train(change(config, training__num_steps=3), workdir)
    out = capsys.readouterr().out
    assert "resuming from the checkpoint of step 2" in out and "init_from" not in out


def test_every_difference_is_listed_at_once(begin, one_device):
    config, workdir = begin(
        model__d_ff=32, model__attention_bias=True, model__num_decoder_layers=2, model__norm="pre"
    )
    with pytest.raises(InputError) as refused:
        first_state(config, workdir)
    message = str(refused.value)
    assert "decoder/layer_0/feed_forward/inner/kernel: (32, 64) instead of (32, 32)" in message
    assert "decoder/layer_0/cross_attention/key/bias: missing" in message
    assert "decoder/layer_1/self_attention/query/kernel: missing" in message
    assert "encoder/final_norm/scale: missing" in message and "init_from_allow" in message


def test_what_may_differ_begins_anew(begin, small_run, one_device, capsys):
    config, workdir = begin(model__d_ff=32, allow="*/feed_forward/*")
    state = first_state(config, workdir)
    stored = flat(open_run(small_run.workdir, "120").params)
    fresh = [name for name, leaf in flat(state.params).items() if leaf.shape != stored[name].shape]
    assert len(fresh) == 6  # of both layers, inner kernel and bias and outer kernel
    for name, leaf in flat(state.params).items():
        assert name in fresh or np.array_equal(leaf, stored[name]), name
    assert "parameters; 6 " in capsys.readouterr().out


def test_rows_of_another_vocabulary_are_not_taken(begin, small_run, one_device):
    config, workdir = begin(own_vocabulary=True, tokenizer__vocab_size=349)
    with pytest.raises(InputError) as refused:
        first_state(config, workdir)
    file = small_run.workdir / "tokenizer.model"
    assert f"--config.tokenizer.model_file={file}" in str(refused.value)
    shapes = {"token_embedding/embedding": (350, 32), "decoder/layer_0/x/kernel": (2, 2)}
    assert differences(shapes, shapes, other_vocabulary=False) == {}
    found = differences(shapes, shapes, other_vocabulary=True)
    assert list(found) == ["token_embedding/embedding"] and "vocabulary" in found[list(found)[0]]


@pytest.mark.parametrize(
    ("origin", "named"),
    [("nowhere", "nowhere"), ("{workdir}:77", "77")],
)
def test_an_origin_that_is_not_there_is_refused(begin, small_run, one_device, origin, named):
    config, workdir = begin()
    origin = origin.format(workdir=small_run.workdir)
    with pytest.raises(InputError, match=named):
        first_state(dataclasses.replace(config, init_from=origin), workdir)
