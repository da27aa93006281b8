"""IWSLT14 German-English, with the shape and recipe of fairseq's widely used baseline.

Command:   python train.py --config=configs/iwslt14_de_en.py --config.data.root=DIR
           (DIR holds {train,valid,test}.{de,en}: 160 k pairs, lower-cased, Moses-tokenised)
Hardware:  meant for one GPU; 6+6 layers, d_model 512, d_ff 1024, 4 heads
Expected:  34.4 to 34.8 tokenised BLEU on test with the average of the last 10 checkpoints, beam 5
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
        model=TransformerConfig.preset("base", d_ff=1024, num_heads=4, dropout_rate=0.3),
        data=DataConfig(
            source="text",
            root="iwslt14",
            source_language="de",
            target_language="en",
            max_length=175,
            max_length_ratio=1.5,
            tokens_per_batch=4096,
        ),
        tokenizer=TokenizerConfig(vocab_size=10_000),
        optimizer=OptimizerConfig(
            schedule="inverse_sqrt",
            learning_rate=5e-4,
            warmup_steps=4000,
            epsilon=1e-8,
            weight_decay=1e-4,
        ),
        training=TrainingConfig(
            num_steps=60_000,
            eval_every=1000,
            save_every=1000,
            keep_checkpoints=10,
            bleu_tokenize="none",
        ),
        decoding=DecodingConfig(beam_size=5, length_penalty="power", alpha=1.0),
    ).to_config_dict()
