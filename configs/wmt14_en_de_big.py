"""WMT14 English-German, Transformer big: row "big" of the paper's table 2.

Command:   python train.py --config=configs/wmt14_en_de_big.py
           (prepares 4.5 M pairs with TFDS on the first run; needs the network once)
Hardware:  meant for 8 GPUs or one TPU slice; 300,000 updates
Expected:  28.4 tokenised BLEU on newstest2014 with compound splitting, average of 20 checkpoints
Score:     not yet run
"""

import runpy
from pathlib import Path

from jaxformer.model_config import TransformerConfig


def get_config():
    base = Path(__file__).with_name("wmt14_en_de_base.py")
    config = runpy.run_path(str(base))["get_config"]()
    config.model.update(TransformerConfig.preset("big").to_dict())
    config.training.num_steps = 300_000
    config.training.keep_checkpoints = 20
    return config
