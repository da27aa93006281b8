// Figure: the model as the paper draws it, from below to above; each box leads to its station.

const BOX = { width: 118, height: 24 };

/** A box of the figure that leads to the element with id `target`. */
function box(x, y, text, target, kind, lines = 1) {
  const height = BOX.height + (lines - 1) * 12;
  const words = text.split("\n");
  return svg(
    "a",
    { href: `#${target}`, class: `box ${kind}`, "data-target": target, "aria-label": text.replace("\n", " ") },
    svg("rect", { x: x - BOX.width / 2, y: y - height / 2, width: BOX.width, height, rx: 5 }),
    words.map((line, i) => svg(
      "text", { x, y: y + (i - (words.length - 1) / 2) * 12, dy: "0.35em" }, line,
    )),
  );
}

function arrow(path) {
  return svg("path", { class: "arrow", d: path, "marker-end": "url(#arrow-head)" });
}

/** The boxes of one tower from below: [text, target, kind, lines], in the order of the norm. */
function tower(side, subLayers) {
  const pre = report.model.norm === "pre";
  return subLayers.flatMap(([text, target, kind, lines]) => (pre
    ? [["Norm", `${side}-layers`, "norm"], [text, target, kind, lines], ["Add", `${side}-layers`, "norm"]]
    : [[text, target, kind, lines], ["Add & norm", `${side}-layers`, "norm"]]));
}

/** Draw boxes upwards from y; returns the nodes, their middles and where the pile ends. */
function stack(x, y, boxes) {
  const nodes = [];
  const middles = [];
  let top = y;
  boxes.forEach(([text, target, kind, lines = 1], i) => {
    const height = BOX.height + (lines - 1) * 12;
    nodes.push(box(x, top - height / 2, text, target, kind, lines));
    middles.push(top - height / 2);
    top -= height;
    if (i < boxes.length - 1) {
      nodes.push(arrow(`M${x} ${top} v-8`));
      top -= 10;
    }
  });
  return { nodes, middles, top };
}

/** What goes into a tower: the pieces, their embedding, and the positions added to it. */
function inputs(x, side, below) {
  const vectors = `${side}-vectors`;
  return [
    svg("a", { href: `#${side}-pieces`, class: "box plain", "data-target": `${side}-pieces` },
      svg("text", { x, y: 538, dy: "0.35em" }, below)),
    arrow(`M${x} 528 v-12`),
    box(x, 502, "Embedding", vectors, "embedding"),
    arrow(`M${x} 490 v-12`),
    svg("a", { href: `#${vectors}`, class: "box plus", "data-target": vectors, "aria-label": "Positions are added" },
      svg("circle", { cx: x, cy: 467, r: 9 }),
      svg("path", { class: "cross", d: `M${x - 5} 467 h10 M${x} 462 v10` })),
    arrow(`M${x} 458 v-20`),
  ];
}

function frame(x, top, bottom, count, side) {
  const left = x - BOX.width / 2 - 8;
  const number = side === "encoder"
    ? svg("text", { class: "count", x: left - 6, y: (top + bottom) / 2, "text-anchor": "end" }, `${count}×`)
    : svg("text", { class: "count", x: left + BOX.width + 22, y: (top + bottom) / 2, "text-anchor": "start" }, `×${count}`);
  return [svg("rect", {
    class: "frame", x: left, y: top - 8, width: BOX.width + 16, height: bottom - top + 16, rx: 9,
  }), number];
}

/** The encoder's output, over the towers' heads and into the decoder's attention to it. */
function bridge(from, to) {
  return svg("path", {
    class: "arrow",
    d: `M${from.x} ${from.y} V${from.y - 14} q0 -8 8 -8 H166 q8 0 8 8 V${to.y - 8} q0 8 8 8 H${to.x}`,
    "marker-end": "url(#arrow-head)",
  });
}

/** The whole drawing. */
function modelFigure() {
  const { norm, num_encoder_layers: encoderLayers, num_decoder_layers: decoderLayers } = report.model;
  const [left, right, bottom] = [96, 252, 436];
  const encoder = stack(left, bottom, tower("encoder", [
    ["Self-attention", "attention", "attention"], ["Feed-forward", "encoder-layers", "forward"],
  ]));
  const decoder = stack(right, bottom, tower("decoder", [
    ["Masked\nself-attention", "attention", "attention", 2],
    ["Attention to\nthe encoder", "attention", "attention", 2],
    ["Feed-forward", "decoder-layers", "forward"],
  ]));
  const head = stack(right, decoder.top - 28, [
    ["Linear", "logits", "linear"], ["Softmax", "softmax", "softmax"],
  ]);
  const top = head.top - 38;
  return svg(
    "svg",
    { viewBox: `0 ${top} 348 ${554 - top}`, class: "model-figure", role: "group", "aria-label": "The model; each box leads to its numbers" },
    svg("defs", {}, svg("marker", {
      id: "arrow-head", viewBox: "0 0 6 6", refX: 5, refY: 3, markerWidth: 5, markerHeight: 5, orient: "auto",
    }, svg("path", { d: "M0 0 L6 3 L0 6 z" }))),
    frame(left, encoder.top, bottom, encoderLayers, "encoder"),
    frame(right, decoder.top, bottom, decoderLayers, "decoder"),
    bridge(
      { x: left, y: encoder.top - 8 },
      { x: right - BOX.width / 2 - 2, y: decoder.middles[norm === "pre" ? 4 : 2] },
    ),
    inputs(left, "source", "Inputs"),
    inputs(right, "target", "Outputs, shifted right"),
    arrow(`M${right} ${decoder.top - 8} v-18`),
    arrow(`M${right} ${head.top} v-13`),
    svg("a", { href: "#chosen", class: "box plain", "data-target": "chosen" },
      svg("text", { x: right, y: head.top - 24, dy: "0.35em" }, "The next piece")),
    encoder.nodes,
    decoder.nodes,
    head.nodes,
  );
}

/** Mark the boxes of the station that is being read. */
function followReading(figure, stations) {
  const seen = new Map();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) seen.set(entry.target.id, entry.isIntersecting);
    const current = stations.find((station) => seen.get(station.id))?.id;
    for (const link of figure.querySelectorAll("[data-target]")) {
      link.classList.toggle("current", link.dataset.target === current);
    }
  }, { rootMargin: "-25% 0px -55% 0px" });
  for (const station of stations) observer.observe(station);
}
