// Vectors: what a side of the model holds for its pieces, as strips of one colour a number.

const MOST_LABELLED_ROWS = 48;
const FIRST_NUMBERS = 6;

/**
 * The strips of one side and the cursor that they share.
 *
 * side: {name, pieces, arrays, row() the piece in view, setRow(row), shown(row)}.
 */
function vectorStrips(side) {
  const strips = { side, maps: [], notes: [], column: 0, pointed: false };
  const labelled = side.pieces.length <= MOST_LABELLED_ROWS;
  strips.labels = labelled ? side.pieces.map((piece) => piece.text) : null;
  strips.height = labelled ? 15 : Math.max(3, Math.floor(720 / side.pieces.length));
  strips.update = () => {
    for (const map of strips.maps) map.redraw();
    for (const write of strips.notes) write();
  };
  return strips;
}

/** One array [rows, D] as a strip with its title and the first numbers of the piece in view. */
function strip(strips, title, array, limit, note) {
  const { side } = strips;
  const [rows, columns] = array.shape;
  const move = (r, c) => { strips.column = c; strips.pointed = true; side.setRow(r); };
  const map = heatMap({
    label: `${title} of ${side.name}: ${rows} pieces, ${columns} numbers each`,
    rows,
    columns,
    value: (r, c) => array.values[r * columns + c],
    scale: () => signedScale(limit),
    height: strips.height,
    width: 0,
    rowLabels: strips.labels,
    shown: side.shown,
    cursor: () => ({ row: side.row(), column: strips.pointed ? strips.column : -1 }),
    move,
  });
  const numbers = element("p", { class: "numbers" });
  strips.maps.push(map);
  strips.notes.push(() => {
    const vector = row(array, side.row());
    const shown = [...vector.subarray(0, FIRST_NUMBERS)].map((value) => decimal(value, 3));
    const more = columns > FIRST_NUMBERS ? ", …" : "";
    numbers.replaceChildren(
      pieceNode(side.pieces[side.row()].text),
      ` [${shown.join(", ")}${more}] length ${decimal(euclideanNorm(vector), 2)}`,
    );
  });
  return element("figure", { class: "strip" },
    element("figcaption", {}, element("strong", {}, title), note ? ` ${note}` : ""), map.node, numbers);
}

/** Colours of a strip: what blue, nothing and orange stand for. */
function signedLegend(limit) {
  return element(
    "p",
    { class: "legend" },
    element("span", {}, `−${decimal(limit, 1)}`),
    element("span", { class: "signed-scale", "aria-hidden": "true" }),
    element("span", {}, `+${decimal(limit, 1)}`),
    element("span", { class: "legend-note" }, "blue below zero, orange above, larger ones in the full colour; a row a piece, a column a dimension"),
  );
}

/** embedding + positions = sum, three strips on one scale, and the sum of the cell in view. */
function sumOfVectors(strips) {
  const { arrays, pieces, row: rowInView } = strips.side;
  const limit = usualMagnitude([arrays.embedding, arrays.sum]);
  const rotary = !arrays.positions || report.model.positions === "rotary";
  const root = `√${report.model.d_model}`;
  const equation = element("p", { class: "readout", role: "status" });
  strips.notes.push(() => {
    const { column } = strips;
    const number = (array) => decimal(row(array, rowInView())[column], 4);
    const terms = rotary
      ? number(arrays.sum)
      : `${number(arrays.embedding)} + ${number(arrays.positions)} = ${number(arrays.sum)}`;
    equation.replaceChildren(
      pieceNode(pieces[rowInView()].text), ` at position ${rowInView()}, dimension ${column}: `,
      element("b", {}, terms),
    );
  });
  const parts = rotary
    ? [strip(strips, "Embedding", arrays.embedding, limit, `times ${root}`)]
    : [
      strip(strips, "Embedding", arrays.embedding, limit, `times ${root}`),
      element("span", { class: "sign", "aria-label": "plus" }, "+"),
      strip(strips, "Position", arrays.positions, limit),
      element("span", { class: "sign", "aria-label": "equals" }, "="),
      strip(strips, "Sum", arrays.sum, limit),
    ];
  return element("div", {}, element("div", { class: "sum" }, parts), equation, signedLegend(limit));
}

/** The output of each layer, and one number on its way through them. */
function layerOutputs(strips, numbers) {
  const { arrays, pieces, row: rowInView } = strips.side;
  const layers = numbers.map((number, i) => ({
    title: `Layer ${number}`,
    array: { shape: arrays.layers.shape.slice(1), values: row(arrays.layers, i) },
  }));
  if (arrays.final_norm) layers.push({ title: "Final norm", array: arrays.final_norm });
  const limit = usualMagnitude(layers.map((layer) => layer.array));
  const path = element("p", { class: "readout", role: "status" });
  strips.notes.push(() => {
    const number = (array) => decimal(row(array, rowInView())[strips.column], 2);
    const way = layers.map((layer) => `${layer.title.toLowerCase()} ${number(layer.array)}`);
    path.replaceChildren(
      pieceNode(pieces[rowInView()].text), `, dimension ${strips.column}: `,
      element("b", {}, `sum ${number(arrays.sum)} → ${way.join(" → ")}`),
    );
  });
  return element(
    "div",
    {},
    element("div", { class: "layers" },
      layers.map(({ title, array }) => strip(strips, title, array, limit))),
    path,
    signedLegend(limit),
  );
}
