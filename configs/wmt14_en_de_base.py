"""WMT14 English-German, Transformer base: row "base model" of the paper's table 2.

Command:   python train.py --config=configs/wmt14_en_de_base.py
           (prepares 4.5 M pairs with TFDS on the first run; needs the network once)
Hardware:  meant for 8 GPUs or a TPU slice; 100,000 updates of 25,000 tokens a side
Expected:  27.3 tokenised BLEU on newstest2014 with compound splitting, average of 5 checkpoints
Score:     not yet run
"""

from jaxformer.config import (
    Config,
    DataConfig,
    DecodingConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from jaxformer.model_config import TransformerConfig


def get_config():
    return Config(
        model=TransformerConfig.preset("base"),
        data=DataConfig(
            source="tfds",
            name="wmt14_translate/de-en",
            source_language="en",
            target_language="de",
            max_length=256,
            tokens_per_batch=25_600,
        ),
        tokenizer=TokenizerConfig(vocab_size=37_000),
        optimizer=OptimizerConfig(schedule="paper", warmup_steps=4000),
        training=TrainingConfig(num_steps=100_000, eval_every=2000, save_every=1000),
        decoding=DecodingConfig(beam_size=4, length_penalty="gnmt", alpha=0.6),
    ).to_config_dict()
