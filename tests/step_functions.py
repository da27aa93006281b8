"""Step functions of the engine, from functions that read one token of each row."""

from jaxformer.decoding.engine import IndexedCache


def one_token(function):
    """`function(tokens [R], index, rows) -> (logits [R, V], rows)`, as `decode` calls a step."""

    def step_fn(tokens, cache):
        logits, rows = function(tokens[:, 0], cache.index, cache.rows)
        return logits[:, None], IndexedCache(rows, cache.index + 1)

    return step_fn
