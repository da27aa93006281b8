"""WMT14 English-French, Transformer big: row "big" of the paper's table 2.

Command:   python train.py --config=configs/wmt14_en_fr_big.py
           (prepares 40 M pairs with TFDS on the first run; needs the network once)
Hardware:  meant for 8 GPUs or one TPU slice; 300,000 updates
Expected:  41.8 tokenised BLEU on newstest2014, average of 20 checkpoints (41.0 in the paper's text)
Score:     not yet run
"""

import runpy
from pathlib import Path


def get_config():
    big = Path(__file__).with_name("wmt14_en_de_big.py")
    config = runpy.run_path(str(big))["get_config"]()
    config.model.dropout_rate = 0.1  # the paper's value for English-French
    config.data.name = "wmt14_translate/fr-en"
    config.data.target_language = "fr"
    config.tokenizer.vocab_size = 32_000
    return config
