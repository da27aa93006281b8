"""TED talks Portuguese-English (TFDS `ted_hrlr_translate`), the corpus of many tutorials.

Command:   python train.py --config=configs/ted_pt_en.py
           (prepares the data with TFDS on the first run; needs the network once)
Hardware:  meant for one GPU or TPU core; 51,785 pairs
Expected:  about 44 BLEU on test (Qi et al. 2018 report 44.3 with pre-trained embeddings)
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
        model=TransformerConfig.preset("small", dropout_rate=0.3),
        data=DataConfig(
            source="tfds",
            name="ted_hrlr_translate/pt_to_en",
            source_language="pt",
            target_language="en",
            max_length=128,
            tokens_per_batch=8192,
        ),
        tokenizer=TokenizerConfig(vocab_size=8000),
        optimizer=OptimizerConfig(schedule="inverse_sqrt", learning_rate=2e-3, warmup_steps=4000),
        training=TrainingConfig(num_steps=20_000, eval_every=500, save_every=500, patience=10),
        decoding=DecodingConfig(beam_size=4),
    ).to_config_dict()
