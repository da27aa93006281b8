// Beam layout: a column a step, the candidates of a step ranked from above.

const BEAM_COLUMN = 116;
const BEAM_ROW = 40;
const BEAM_LEFT = 72; // room for the beginning

/**
 * Places of the nodes: {nodes: [{...node, index, x, y, children, leaf}], width, height, steps}.
 *
 * A column holds the candidates of one step, the most probable sentence beginning on top.
 */
function layOutBeam(beam) {
  const nodes = beam.nodes.map(({ parent, step, text, log_prob, score, state, returned }, index) => (
    { parent, step, text, log_prob, score, state, returned, index, children: [] }));
  const columns = [];
  for (const node of nodes) {
    if (node.parent >= 0) nodes[node.parent].children.push(node.index);
    (columns[node.step] ??= []).push(node);
  }
  let tallest = 1;
  for (const column of columns) {
    column?.sort((a, b) => b.log_prob - a.log_prob);
    column?.forEach((node, place) => {
      node.rank = place;
      node.x = BEAM_LEFT + node.step * BEAM_COLUMN;
      node.y = (place + 0.5) * BEAM_ROW + 28;
    });
    tallest = Math.max(tallest, column?.length ?? 0);
  }
  for (const node of nodes) node.leaf = node.children.length === 0;
  return {
    nodes,
    columns,
    root: { x: 12, y: ((columns[0]?.length ?? 1) * BEAM_ROW) / 2 + 28 },
    width: BEAM_LEFT + columns.length * BEAM_COLUMN + 8,
    height: tallest * BEAM_ROW + 40,
  };
}

/** Indices from the first step to a node. */
function pathTo(layout, index) {
  const path = [];
  for (let at = index; at >= 0; at = layout.nodes[at].parent) path.unshift(at);
  return path;
}

/** The text of a beginning, its space marks read as spaces. */
function textTo(layout, index) {
  return pathTo(layout, index).map((at) => layout.nodes[at].text).join("")
    .replace(/^▁/u, "").replaceAll("▁", " ");
}
