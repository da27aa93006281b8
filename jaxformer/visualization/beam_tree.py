"""The tree of a search: every hypothesis kept, dropped or finished."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jaxformer.decoding.recording import Recorded

KEPT, DROPPED, FINISHED = "kept", "dropped", "finished"
ROOT = -1  # the parent of the first tokens: BOS, which is not a node


@dataclass(frozen=True)
class BeamNode:
    """A hypothesis: its last token, and through `parent` the earlier ones.

    Attributes:
      parent: number of the node that it continues, smaller than its own; `ROOT`: BOS.
      step: position of the token, from 0.
      token: id of the target vocabulary.
      log_prob: natural log-probability of the whole hypothesis up to here.
      score: by which finished hypotheses are ranked; None for others.
      state: `kept` (continued at the next step, if there was one), `dropped`, or `finished`.
      returned: its rank among the results of the search, from 0, the best; None: not returned.
    """

    parent: int
    step: int
    token: int
    log_prob: float
    score: float | None
    state: str
    returned: int | None = None


@dataclass(frozen=True)
class BeamTree:
    """All candidates of a search; its leaves were not continued.

    Attributes:
      width: W, hypotheses kept per step.
      nodes: step by step, in the strategy's ranking.
      returned: the node of each result, best first.
    """

    width: int
    nodes: tuple[BeamNode, ...]
    returned: tuple[int, ...]

    def tokens(self, node: int) -> list[int]:
        """Ids of the hypothesis that ends in `node`."""
        path = []
        while node != ROOT:
            path.append(self.nodes[node].token)
            node = self.nodes[node].parent
        return path[::-1]


def beam_tree(recorded: Recorded, row: int = 0) -> BeamTree:
    """Link the candidates of one sentence's search.

    Args:
      recorded: what `decode` returns for a `Recording`, as NumPy arrays.
      row: of the sentence in the batch.

    Returns:
      The tree.
    """
    result, record = recorded
    tokens, parents, rows, log_probs, scores = (np.asarray(array)[row] for array in record[:5])
    nodes: list[BeamNode] = []
    children: dict[tuple[int, int], int] = {}  # by parent and token
    alive = {0: ROOT}  # node of each row
    for step in range(int(record.num_steps[row])):
        alive_next = {}
        for place in np.flatnonzero(log_probs[step] != -np.inf):
            parent, token = alive[int(parents[step, place])], int(tokens[step, place])
            ended, becomes = scores[step, place] != -np.inf, int(rows[step, place])
            children[parent, token] = len(nodes)
            if becomes >= 0:
                alive_next[becomes] = len(nodes)
            nodes.append(
                BeamNode(
                    parent,
                    step,
                    token,
                    float(log_probs[step, place]),
                    float(scores[step, place]) if ended else None,
                    FINISHED if ended else KEPT if becomes >= 0 else DROPPED,
                )
            )
        alive = alive_next
    returned = []
    for slot in range(int(result.num_hypotheses[row])):
        node = ROOT
        for token in result.tokens[row, slot, : result.lengths[row, slot]]:
            node = children[node, int(token)]
        nodes[node] = replace(nodes[node], returned=slot)
        returned.append(node)
    return BeamTree(result.tokens.shape[1], tuple(nodes), tuple(returned))
