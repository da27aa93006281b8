"""Every knob is checked where it is made, and a mistake is answered with the repair."""

import dataclasses

import pytest

from jaxformer.config import (
    SECTIONS,
    Config,
    DataConfig,
    DecodingConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainingConfig,
    check_value,
    field_types,
)
from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig


def test_defaults_are_the_base_model_of_the_paper():
    model = TransformerConfig()
    assert (model.num_encoder_layers, model.num_decoder_layers) == (6, 6)
    assert (model.d_model, model.d_ff, model.num_heads, model.head_dim) == (512, 2048, 8, 64)
    assert (model.norm, model.activation, model.positions) == ("post", "relu", "sinusoidal")
    assert (model.dropout_rate, model.attention_bias, model.tie_embeddings) == (0.1, False, True)
    assert OptimizerConfig().schedule == "paper" and OptimizerConfig().warmup_steps == 4000
    assert (OptimizerConfig().b1, OptimizerConfig().b2) == (0.9, 0.98)
    assert OptimizerConfig().epsilon == 1e-9 and TrainingConfig().label_smoothing == 0.1
    assert (DecodingConfig().beam_size, DecodingConfig().alpha) == (4, 0.6)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("tiny", (4, 4, 128, 256, 4, 0.1)),
        ("small", (3, 3, 256, 1024, 8, 0.1)),
        ("base", (6, 6, 512, 2048, 8, 0.1)),
        ("big", (6, 6, 1024, 4096, 16, 0.3)),
    ],
)
def test_presets(name, shape):
    model = TransformerConfig.preset(name, vocab_size=11)
    assert shape == (
        model.num_encoder_layers, model.num_decoder_layers, model.d_model, model.d_ff,
        model.num_heads, model.dropout_rate,
    )  # fmt: skip
    assert model.vocab_size == 11 and TransformerConfig.preset(name).vocab_size == 32_000


def test_vocabularies():
    shared, separate = TransformerConfig(), TransformerConfig(target_vocab_size=7)
    assert (shared.shares_vocabulary, shared.output_vocab_size) == (True, 32_000)
    assert (separate.shares_vocabulary, separate.output_vocab_size) == (False, 7)


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (TransformerConfig, dict(d_model=512, num_heads=7),
         "model.d_model=512 is not divisible by model.num_heads=7; nearest: 8"),
        (TransformerConfig, dict(d_model=0), "model.d_model=0 must be at least 1"),
        (TransformerConfig, dict(norm="pots"),
         "model.norm='pots' is not one of post, pre; nearest: post"),
        (TransformerConfig, dict(activation="gelo"), "nearest: gelu"),
        (TransformerConfig, dict(dropout_rate=1.0),
         "model.dropout_rate=1.0 must be between 0 and 0.99"),
        (TransformerConfig, dict(dropout_rate=float("nan")),
         "model.dropout_rate=nan must be between 0 and 0.99"),
        (TransformerConfig, dict(d_model=24, num_heads=8, positions="rotary"),
         "d_model / num_heads = 3 is odd; use another model.d_model"),
        (TransformerConfig, dict(d_model=7, num_heads=1),
         "model.positions='sinusoidal' needs an even d_model, not 7; nearest: 8"),
        (DataConfig, dict(source="txt"),
         "data.source='txt' is not one of builtin, text, tfds; nearest: text"),
        (DataConfig, dict(source="text"),
         "data.root is empty; data.source='text' needs the folder of the files"),
        (DataConfig, dict(source="tfds"), "data.name is empty"),
        (DataConfig, dict(tokens_per_batch=100, max_length=101),
         "data.tokens_per_batch=100 cannot hold one sentence of data.max_length=101"),
        (DataConfig, dict(max_length_ratio=0.5), "data.max_length_ratio=0.5 must be at least 1"),
        (DataConfig, dict(window_pairs=999), "data.window_pairs=999 must be at least 1000"),
        (TokenizerConfig, dict(vocab_size=100), "tokenizer.vocab_size=100 must be at least 261"),
        (TokenizerConfig, dict(target_model_file="x.model"), "needs tokenizer.joint=False"),
        (TokenizerConfig, dict(sampling_rate=1.0),
         "tokenizer.sampling_rate=1.0 must be between 0 and 0.99"),
        (DataConfig, dict(workers=-1), "data.workers=-1 must be at least 0"),
        (OptimizerConfig, dict(warmup_steps=0),
         "optimizer.warmup_steps=0: schedule='paper' falls"),
        (OptimizerConfig, dict(name="adamw"),
         "optimizer.weight_decay=0.0: name='adamw' is Adam with decoupled weight decay; set "),
        (OptimizerConfig, dict(epsilon=0.0), "optimizer.epsilon=0.0 must be between 1e-30 and 1"),
        (OptimizerConfig, dict(learning_rate=float("inf")),
         "optimizer.learning_rate=inf must be finite and at least 0"),
        (Config, dict(model=TransformerConfig(param_dtype="float16")),
         "model.param_dtype='float16': the optimizer's squares of gradients vanish in it"),
        (Config, dict(model=TransformerConfig(param_dtype="bfloat16"),
                      optimizer=OptimizerConfig(ema_decay=0.99)),
         "optimizer.ema_decay=0.99 with model.param_dtype='bfloat16'"),
        (OptimizerConfig, dict(accumulation_steps=0), "accumulation_steps=0 must be at least 1"),
        (TrainingConfig, dict(log_every=0), "training.log_every=0 must be at least 1"),
        (DecodingConfig, dict(length_penalty="gmnt"), "nearest: gnmt"),
        (DecodingConfig, dict(beam_size=0), "decoding.beam_size=0 must be at least 1"),
        (MeshConfig, dict(data=-1, fsdp=-1), "at most one of them -1"),
        (MeshConfig, dict(tensor=0), "mesh.tensor=0: each "),
        (Config, dict(seed=-1), "seed=-1 must be between 0 and 2.14748e+09"),
        (Config, dict(model=TransformerConfig(positions="learned", max_length=512)),
         "model.max_length=512 rows of learned positions are fewer than the longest sentence, "
         "1024 tokens"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(cls, values, message):
    with pytest.raises(InputError) as refused:
        cls(**values)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_only_learned_positions_have_an_end():
    assert TransformerConfig(positions="learned", max_length=100).position_limit == 100
    for positions in ("sinusoidal", "rotary"):
        assert TransformerConfig(positions=positions, max_length=100).position_limit is None


def test_configurations_are_immutable_values():
    assert Config() == Config() and hash(TransformerConfig()) == hash(TransformerConfig())
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig().d_model = 4


def test_json_and_config_dict_round_trip():
    config = Config(
        seed=5,
        model=TransformerConfig.preset("tiny", norm="pre"),
        data=DataConfig(source="text", root="données"),
        optimizer=OptimizerConfig(learning_rate=1, schedule="constant", warmup_steps=0),
    )
    assert Config.from_json(config.to_json(), "config.json") == config
    assert Config.from_dict(config.to_config_dict().to_dict()) == config
    assert config.to_config_dict().model.norm == "pre"
    assert Config.from_dict({}) == Config()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modle": {}}, "config.modle does not exist; nearest: config.model"),
        ({"model": {"dropout": 0.1}},
         "config.model.dropout does not exist; nearest: config.model.dropout_rate"),
        ({"training": {"d_model": 4}},
         "config.training.d_model does not exist; nearest: config.model.d_model"),
        ({"model": 5}, "config: model must be a section of fields, not 5"),
        ({"seed": "1"}, "config.seed='1' has the wrong type str; expected int"),
        ({"seed": True}, "config.seed=True has the wrong type bool; expected int"),
        ({"model": {"d_model": 64.0}}, "config.model.d_model=64.0 has the wrong type float"),
        ({"model": {"remat": 1}}, "config.model.remat=1 has the wrong type int; expected bool"),
        ({"optimizer": {"b1": True}}, "config.optimizer.b1=True has the wrong type bool"),
        ({"data": {"root": None}}, "config.data.root=None has the wrong type NoneType"),
    ],
)  # fmt: skip
def test_unknown_names_and_wrong_types_are_refused(values, message):
    with pytest.raises(InputError) as refused:
        Config.from_dict(values)
    assert str(refused.value).startswith(message)


def test_a_whole_number_is_a_float_where_one_is_wanted():
    value = check_value("optimizer.learning_rate", 2, "config")
    assert value == 2.0 and type(value) is float


def test_field_types_cover_every_field():
    types = field_types()
    assert types["model.d_model"] is int and types["optimizer.b2"] is float
    assert types["model.remat"] is bool and types["data.root"] is str and types["seed"] is int
    alone = {name for name in types if "." not in name}
    assert alone == {"task", "seed", "init_from", "init_from_allow"}
    assert len(types) == len(alone) + sum(len(dataclasses.fields(cls)) for cls in SECTIONS.values())
