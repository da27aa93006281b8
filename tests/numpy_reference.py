"""The encoder-decoder of "Attention Is All You Need" in float64 NumPy, written from its equations.

One sentence pair, one head and one query at a time: slow, and simple enough to check by eye. A
masked key is left out of the sum, so there is no "minus infinity" here.
"""

import math
from typing import NamedTuple

import numpy as np


class Outputs(NamedTuple):
    """Of a batch: logits [B, T, V], encoded [B, S, D] and weights [L, B, N, ., .] of each kind."""

    logits: np.ndarray
    encoded: np.ndarray
    encoder_weights: np.ndarray
    decoder_weights: np.ndarray
    cross_weights: np.ndarray


def draw_parameters(shapes, seed):
    """Random float32 values for a nested dict of shapes; none is 0 or 1, as new biases are."""
    rng = np.random.default_rng(seed)

    def draw(name, shape):
        if isinstance(shape, dict):
            return {key: draw(key, shape[key]) for key in sorted(shape)}
        values = rng.normal(size=shape)
        if name == "kernel":
            values /= math.sqrt(shape[-2])
        elif name == "embedding":
            values /= math.sqrt(shape[-1])
        else:
            values = 0.3 * values + (name == "scale")
        return values.astype(np.float32)

    return draw("", shapes)


def softmax(scores):
    """Equation 1: exp(s_i) / sum_j exp(s_j) of a vector."""
    exponentials = [math.exp(score - max(scores)) for score in scores]
    return np.array(exponentials) / math.fsum(exponentials)


def attention(queries, keys, values, allowed):
    """Equation 1 for one head: queries [T, H], keys and values [S, H], allowed [T, S]."""
    weights = np.zeros((len(queries), len(keys)))
    for t, query in enumerate(queries):
        visible = np.flatnonzero(allowed[t])
        if len(visible):
            scores = [float(query @ keys[s]) / math.sqrt(len(query)) for s in visible]
            weights[t, visible] = softmax(scores)
    return weights @ values, weights


def rotate(x, positions):
    """Rotary embedding of [T, H]: channel i with channel i + H/2 is one complex number."""
    half = x.shape[1] // 2
    numbers = x[:, :half] + 1j * x[:, half:]
    for t, position in enumerate(positions):
        for i in range(half):
            numbers[t, i] *= np.exp(1j * position / 10000 ** (2 * i / x.shape[1]))
    return np.concatenate([numbers.real, numbers.imag], axis=1)


def linear(x, parameters):
    """x W + b."""
    return x @ np.float64(parameters["kernel"]) + np.float64(parameters.get("bias", 0.0))


def multi_head_attention(x, context, parameters, num_heads, allowed, positions=None):
    """Section 3.2.2: heads side by side; returns [T, D] and the weights [N, T, S]."""
    size = x.shape[1] // num_heads
    queries = linear(x, parameters["query"])
    keys, values = linear(context, parameters["key"]), linear(context, parameters["value"])
    heads, weights = [], []
    for n in range(num_heads):
        query, key, value = (m[:, n * size : (n + 1) * size] for m in (queries, keys, values))
        if positions is not None:
            query, key = rotate(query, positions), rotate(key, positions)
        head, weight = attention(query, key, value, allowed)
        heads.append(head)
        weights.append(weight)
    return linear(np.concatenate(heads, axis=1), parameters["out"]), np.array(weights)


def layer_norm(x, parameters):
    """(x - mean) / sqrt(variance + 1e-6) * scale + bias over the last axis (Ba et al. 2016)."""
    x = np.float64(x)
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    return centred / deviation * np.float64(parameters["scale"]) + np.float64(parameters["bias"])


def relu(x):
    return np.maximum(0.0, x)


def gelu(x):
    """The tanh form of Hendrycks and Gimpel (2016)."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def swish(x):
    return x / (1.0 + np.exp(-x))


ACTIVATIONS = {"relu": relu, "gelu": gelu, "swish": swish}
GATED = {"reglu": relu, "geglu": gelu, "swiglu": swish}


def feed_forward(x, parameters, activation):
    """Section 3.3, equation 2; the gated forms from Shazeer (2020)."""
    inner = linear(x, parameters["inner"])
    if activation in GATED:
        inner = GATED[activation](linear(x, parameters["gate"])) * inner
    else:
        inner = ACTIVATIONS[activation](inner)
    return linear(inner, parameters["outer"])


def positional_encoding(positions, d_model):
    """Section 3.5, entry by entry."""
    table = np.zeros((len(positions), d_model))
    for row, position in enumerate(positions):
        for i in range(d_model // 2):
            angle = position / 10000 ** (2 * i / d_model)
            table[row, 2 * i], table[row, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def embed(ids, side, parameters, config):
    """Section 3.4: sqrt(d_model) times the embedding, plus the position."""
    shared = "token_embedding" in parameters
    table = parameters["token_embedding" if shared else f"{side}_embedding"]["embedding"]
    x = np.float64(table)[ids] * math.sqrt(config.d_model)
    if config.positions == "sinusoidal":
        return x + positional_encoding(range(len(ids)), config.d_model)
    if config.positions == "learned":
        return x + np.float64(parameters[f"{side}_positions"]["embedding"])[: len(ids)]
    return x


def stack(x, parameters, config, num_layers, self_allowed, encoded=None, cross_allowed=None):
    """Section 3.1: the layers of the encoder, or of the decoder if `encoded` is given."""
    positions = range(len(x)) if config.positions == "rotary" else None
    self_weights, cross_weights = [], []
    for index in range(num_layers):
        layer = parameters[f"layer_{index}"]

        def attend_self(y, layer=layer):
            out, weights = multi_head_attention(
                y, y, layer["self_attention"], config.num_heads, self_allowed, positions
            )
            self_weights.append(weights)
            return out

        def attend_encoder(y, layer=layer):
            out, weights = multi_head_attention(
                y, encoded, layer["cross_attention"], config.num_heads, cross_allowed
            )
            cross_weights.append(weights)
            return out

        def transform(y, layer=layer):
            return feed_forward(y, layer["feed_forward"], config.activation)

        functions = {"self_attention": attend_self, "feed_forward": transform}
        if encoded is not None:
            functions = {
                "self_attention": attend_self,
                "cross_attention": attend_encoder,
                "feed_forward": transform,
            }
        for name, function in functions.items():
            norm = layer[f"{name}_norm"]
            if config.norm == "post":
                x = layer_norm(x + function(x), norm)
            else:
                x = x + function(layer_norm(x, norm))
    if config.norm == "pre":
        x = layer_norm(x, parameters["final_norm"])
    return x, self_weights, cross_weights


def project(x, parameters, config):
    """The last linear map: the transposed embedding if tied (section 3.4)."""
    if not config.tie_embeddings:
        return linear(x, parameters["output_projection"])
    shared = "token_embedding" in parameters
    table = parameters["token_embedding" if shared else "target_embedding"]["embedding"]
    return x @ np.float64(table).T


def translate_pair(parameters, config, inputs, decoder_inputs, inputs_mask):
    """Encoder and decoder of one sentence pair: ids [S], ids [T], bool [S]."""
    length, source_length = len(decoder_inputs), len(inputs)
    real = np.asarray(inputs_mask, bool)
    encoded, encoder_weights, _ = stack(
        embed(inputs, "source", parameters, config),
        parameters["encoder"],
        config,
        config.num_encoder_layers,
        np.tile(real, (source_length, 1)),
    )
    causal = np.array([[s <= t for s in range(length)] for t in range(length)])
    decoded, decoder_weights, cross_weights = stack(
        embed(decoder_inputs, "target", parameters, config),
        parameters["decoder"],
        config,
        config.num_decoder_layers,
        causal,
        encoded,
        np.tile(real, (length, 1)),
    )
    logits = project(decoded, parameters, config)
    return logits, encoded, encoder_weights, decoder_weights, cross_weights


def transformer(parameters, config, inputs, decoder_inputs, inputs_mask=None) -> Outputs:
    """Everything the model computes for a batch: ids [B, S], ids [B, T], bool [B, S] or None."""
    if inputs_mask is None:
        inputs_mask = np.ones(inputs.shape, bool)
    pairs = [
        translate_pair(parameters, config, *row)
        for row in zip(inputs, decoder_inputs, inputs_mask, strict=True)
    ]
    logits, encoded, *weights = (np.array(values) for values in zip(*pairs, strict=True))
    return Outputs(logits, encoded, *(w.swapaxes(0, 1) for w in weights))
