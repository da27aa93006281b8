from .config import (
    Config as Config,
    DataConfig as DataConfig,
    DecodingConfig as DecodingConfig,
    MeshConfig as MeshConfig,
    OptimizerConfig as OptimizerConfig,
    TokenizerConfig as TokenizerConfig,
    TrainingConfig as TrainingConfig,
)
from .data.dataset import ArrayDataset as ArrayDataset, ArraySpec as ArraySpec, Dataset as Dataset
from .data.tokenizers import Tokenizer as Tokenizer, load_tokenizers as load_tokenizers
from .decoding.engine import (
    DecodingResult as DecodingResult,
    IndexedCache as IndexedCache,
    decode as decode,
)
from .decoding.strategies import BeamSearch as BeamSearch, Greedy as Greedy, Sample as Sample
from .decoding.translator import Hypothesis as Hypothesis, Translator as Translator
from .errors import InputError as InputError
from .model_config import TransformerConfig as TransformerConfig
from .models.attention import MultiHeadAttention as MultiHeadAttention
from .models.layers import FeedForward as FeedForward, TransformerLayer as TransformerLayer
from .models.stack import TransformerStack as TransformerStack
from .models.transformer import (
    AttentionWeights as AttentionWeights,
    EncoderOutput as EncoderOutput,
    Transformer as Transformer,
    TransformerOutput as TransformerOutput,
)
from .ops.attention import dot_product_attention as dot_product_attention
from .ops.differentiation import plain_derivatives as plain_derivatives
from .ops.dropout import dropout as dropout
from .ops.kv_cache import (
    CrossAttentionCache as CrossAttentionCache,
    KVCache as KVCache,
    SelfAttentionCache as SelfAttentionCache,
)
from .ops.losses import (
    label_smoothed_cross_entropy as label_smoothed_cross_entropy,
    shift_right as shift_right,
)
from .ops.masks import (
    causal_mask as causal_mask,
    combine_masks as combine_masks,
    padding_mask as padding_mask,
    segment_mask as segment_mask,
)
from .ops.positions import (
    apply_rotary as apply_rotary,
    encode_positions as encode_positions,
    sinusoidal_positions as sinusoidal_positions,
)
from .parallel.mesh import make_mesh as make_mesh
from .parallel.sharding import (
    parameter_shardings as parameter_shardings,
    shard_batch as shard_batch,
)
from .tasks.open_run import OpenedRun as OpenedRun, open_run as open_run
from .tasks.registry import register_task as register_task
from .tasks.task import Objective as Objective, Task as Task
from .training.loop import TrainingResult as TrainingResult, train as train
from .training.program import TrainingProgram as TrainingProgram
from .training.state import TrainState as TrainState
from .training.step import make_train_step as make_train_step
