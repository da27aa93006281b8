"""What is refused or said before the first step, when tokens have been counted."""

import pytest
from training_run import change, small_config, write_corpus, write_pairs

from jaxformer.errors import InputError
from jaxformer.training.setup import describe_run, prepare_run

LONG = " ".join(["three"] * 40)


@pytest.fixture
def config(tmp_path):
    return small_config(write_corpus(tmp_path / "corpus"), tmp_path / "cache")


def learned(config, positions):
    """With a table of learned positions that is as long as the configuration asks for."""
    config = change(config, model__max_length=positions, decoding__max_source_length=positions)
    return change(config, data__max_length=positions, model__positions="learned")


@pytest.mark.parametrize(("split", "stem"), [("validation", "valid"), ("test", "test")])
def test_a_sentence_beyond_the_learned_positions_is_refused_at_the_start(
    config, tmp_path, split, stem
):
    write_pairs(tmp_path / "corpus", stem, [("one two", "un deux"), (LONG, LONG)])
    with pytest.raises(InputError) as refused:
        prepare_run(learned(config, 16), tmp_path / "run")
    message = str(refused.value)
    assert message.startswith("model.max_length=16 learned positions are too few for rows of ")
    assert f" of data.{split}; raise it to at least " in message
    longest = int(message.rsplit(" ", 1)[1])
    raised = change(learned(config, 16), model__max_length=longest)
    prepare_run(raised, tmp_path / "raised")
    with pytest.raises(InputError):
        prepare_run(change(raised, model__max_length=longest - 1), tmp_path / "run")


def test_rows_padded_beyond_the_learned_positions_are_refused_at_the_start(config, tmp_path):
    with pytest.raises(InputError, match=r"rows of 6 tokens \(padding included\) of data.train"):
        prepare_run(learned(config, 5), tmp_path / "run")


def test_a_warm_up_that_outlasts_the_run_is_said(config, tmp_path):
    said = "optimizer.warmup_steps=20 "
    for steps, there in ((20, True), (21, False)):
        run = prepare_run(change(config, training__num_steps=steps), tmp_path / f"run {steps}")
        assert (said in describe_run(run)) == there


def test_a_mesh_that_would_not_cut_the_model_is_refused_as_plan_refuses_it(config, tmp_path):
    with pytest.raises(InputError, match=r"mesh.tensor=4 does not divide model.num_heads=2"):
        prepare_run(change(config, mesh__tensor=4), tmp_path / "run")
    assert not (tmp_path / "run").exists()
