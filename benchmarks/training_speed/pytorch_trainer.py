"""PyTorch's side: `torch.nn.Transformer` eager, compiled, and eager with its memory tuned."""

from __future__ import annotations

import time

import numpy as np

from training_speed.shapes import (
    BOS_ID,
    DROPOUT,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    PEAK_SECONDS,
    PEAK_SIZES,
    THREADS,
    Shape,
    Trainer,
    random_batch,
)

EAGER_ENVIRONMENT = {"OMP_NUM_THREADS": str(THREADS)}
# glibc returns each large freed tensor to the system, and the next one is cleared page by page.
# These settings keep freed memory in the process.
TUNED_ENVIRONMENT = EAGER_ENVIRONMENT | {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**26),
}


def sinusoids(length: int, width: int) -> np.ndarray:
    """Positional encodings of the paper (3.5), float32 `[length, width]`."""
    angles = np.arange(length)[:, None] / 10_000.0 ** (np.arange(0, width, 2) / width)
    table = np.empty((length, width), np.float32)
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


def pytorch_model(shape: Shape):
    """An unmodified `torch.nn.Transformer` with tied embeddings and sinusoidal positions."""
    import torch

    width = shape.d_model

    class TiedTransformer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(shape.vocab_size, width)
            torch.nn.init.normal_(self.embedding.weight, std=width**-0.5)
            stacks = (shape.heads, shape.layers, shape.layers, shape.d_ff, DROPOUT, "relu")
            self.transformer = torch.nn.Transformer(width, *stacks, batch_first=True)
            self.dropout = torch.nn.Dropout(DROPOUT)
            self.positions = torch.from_numpy(sinusoids(shape.length, width))
            self.causal = torch.nn.Transformer.generate_square_subsequent_mask(shape.length)

        def embed(self, tokens):
            return self.dropout(self.embedding(tokens) * width**0.5 + self.positions)

        def forward(self, inputs, decoder_inputs):
            source, target = self.embed(inputs), self.embed(decoder_inputs)
            decoded = self.transformer(source, target, tgt_mask=self.causal, tgt_is_causal=True)
            return torch.nn.functional.linear(decoded, self.embedding.weight)

    torch.manual_seed(0)
    return TiedTransformer()


def prepare_pytorch(shape: Shape, *, compiled: bool = False, fused_adam: bool = False) -> Trainer:
    """A training step of PyTorch.

    Args:
      shape: of the model and the batch.
      compiled: model and loss go through `torch.compile` (inductor, default mode).
      fused_adam: the update of all parameters in one kernel.
    """
    import torch

    torch.set_num_threads(THREADS)
    model = pytorch_model(shape).train()
    settings = {"lr": LEARNING_RATE, "betas": (0.9, 0.98), "eps": 1e-9}
    optimizer = torch.optim.Adam(model.parameters(), **settings, fused=fused_adam or None)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    batch = {name: torch.from_numpy(ids).long() for name, ids in random_batch(shape).items()}
    targets = batch["targets"]
    start = torch.full((shape.rows, 1), BOS_ID)

    def loss_fn(inputs, decoder_inputs, targets):
        return criterion(model(inputs, decoder_inputs).flatten(0, 1), targets.flatten())

    if compiled:
        loss_fn = torch.compile(loss_fn)

    def run(steps: int) -> float:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_fn(batch["inputs"], torch.cat([start, targets[:, :-1]], dim=1), targets)
            loss.backward()
            optimizer.step()
        return loss.item()

    parameters = sum(p.numel() for p in model.parameters())
    return Trainer(run, parameters, f"torch {torch.__version__}")


def prepare_compiled(shape: Shape) -> Trainer:
    return prepare_pytorch(shape, compiled=True)


def prepare_tuned(shape: Shape) -> Trainer:
    return prepare_pytorch(shape, fused_adam=True)


def pytorch_peak() -> float:
    """FLOP/s of PyTorch's fastest float32 product of two square matrices."""
    import torch

    peak = 0.0
    for size in PEAK_SIZES:
        matrix = torch.full((size, size), 0.5)
        out = torch.empty(size, size)
        torch.mm(matrix, matrix, out=out)
        end = time.perf_counter() + PEAK_SECONDS
        while (start := time.perf_counter()) < end:
            torch.mm(matrix, matrix, out=out)
            peak = max(peak, 2.0 * size**3 / (time.perf_counter() - start))
    return peak
