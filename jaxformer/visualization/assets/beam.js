// Beam: the hypotheses that were kept, dropped and finished, and those that were returned.

function buildBeam(sentence) {
  const layout = layOutBeam(sentence.beam);
  const section = { sentence, layout, pinned: sentence.beam.returned[0]?.node ?? null };
  section.readout = element("p", { class: "readout", role: "status" });
  section.drawing = drawBeam(section);
  section.frame = element("div", { class: "scroll beam-frame" }, section.drawing);
  section.returned = returnedList(section);
  const counts = countStates(layout);
  find("#beam .content").replaceChildren(
    element("p", { class: "note" }, beamNote(sentence.beam, counts)),
    section.returned,
    element("div", { class: "controls" },
      beamLegend(counts),
      counts.dropped
        ? checkbox("Show what was dropped", true, (on) => section.drawing.classList.toggle("without-dropped", !on))
        : null),
    section.frame,
    section.readout,
  );
  showPath(section, section.pinned);
}

function countStates(layout) {
  const counts = { kept: 0, dropped: 0, finished: 0 };
  for (const node of layout.nodes) counts[node.state] += 1;
  return counts;
}

function beamNote(beam, counts) {
  if (beam.strategy === "greedy") return "One hypothesis: at each step the most probable piece is taken.";
  if (beam.strategy === "sample") return "One hypothesis: at each step a piece is drawn at random.";
  const base = { gnmt: "((5 + L) / 6)", power: "L" }[beam.length_penalty];
  return `At each step the ${beam.width} most probable partial translations are kept and continued. A column shows the candidates of one step, the most probable on top, with the log-probability of the whole hypothesis. ${counts.finished} finished; their score is the log-probability divided by the length penalty ${base}^${beam.alpha}, for L pieces including the end of the sentence.`;
}

function beamLegend(counts) {
  const entry = (state, text) => element("li", {},
    svg("svg", { viewBox: "-8 -8 16 16", "aria-hidden": "true", class: `symbol ${state}` }, nodeMark(state)),
    `${counts[state]} ${text}`);
  return element("ul", { class: "beam-legend" },
    entry("kept", "kept"), entry("dropped", "dropped"), entry("finished", "finished"));
}

/** The mark of a state has its own form, not only its own colour. */
function nodeMark(state) {
  if (state === "finished") return svg("rect", { x: -5, y: -5, width: 10, height: 10, rx: 1.5 });
  if (state === "dropped") return svg("path", { d: "M-4 -4 L4 4 M-4 4 L4 -4" });
  return svg("circle", { r: 5 });
}

function drawBeam(section) {
  const { layout } = section;
  const { nodes, root } = layout;
  const edges = nodes.map((node) => {
    const from = node.parent < 0
      ? { x: root.x + 44, y: root.y }
      : { x: nodes[node.parent].x + BEAM_COLUMN - 30, y: nodes[node.parent].y };
    const middle = (from.x + node.x - 8) / 2;
    return svg("path", {
      class: `edge ${node.state}`, "data-index": node.index,
      d: `M${from.x} ${from.y} C${middle} ${from.y} ${middle} ${node.y} ${node.x - 8} ${node.y}`,
    });
  });
  section.groups = nodes.map((node) => drawNode(section, node));
  const heads = layout.columns.map((_, step) => svg(
    "text", { class: "step-number", x: BEAM_LEFT + step * BEAM_COLUMN - 6, y: 14 }, `${step + 1}`,
  ));
  const drawing = svg("svg", {
    class: "beam-tree", width: layout.width, height: layout.height, role: "group",
    "aria-label": "Tree of hypotheses; arrow keys move in it",
    pointerleave: () => showPath(section, section.pinned),
  },
  svg("g", { class: "edges" }, edges),
  svg("text", { class: "begin", x: root.x, y: root.y, dy: "0.35em" }, "begin"), heads, section.groups);
  section.edges = edges;
  roving(drawing, section.groups, (index, key) => neighbour(layout, index, key));
  return drawing;
}

function drawNode(section, node) {
  const score = node.state === "finished" && node.score !== null ? `score ${decimal(node.score, 3)}` : decimal(node.log_prob, 2);
  const rank = node.returned === null ? "" : `, returned as number ${node.returned + 1}`;
  return svg(
    "g",
    {
      class: `node ${node.state}`, role: "button", transform: `translate(${node.x} ${node.y})`,
      "data-index": node.index, "data-leaf": String(node.leaf), "data-state": node.state, "data-returned": node.returned,
      "aria-label": `step ${node.step + 1}, ${node.text}, ${node.state}, ${score}${rank}`,
      pointerenter: () => showPath(section, node.index),
      focus: () => showPath(section, node.index),
      click: () => { section.pinned = node.index; showPath(section, node.index); },
    },
    svg("rect", { class: "target", x: -10, y: -18, width: BEAM_COLUMN - 22, height: 36, rx: 6 }),
    nodeMark(node.state),
    svg("text", { x: 10, y: -3, class: "text" }, pieceSpans(shortened(node.text, 11))),
    svg("text", { x: 10, y: 11, class: "score" }, score),
    rank ? svg("text", { x: BEAM_COLUMN - 32, y: -4, class: "rank" }, `#${node.returned + 1}`) : null,
  );
}

/** Left to the parent, right to the best child, up and down within the step. */
function neighbour(layout, index, key) {
  const node = layout.nodes[index];
  if (key === "ArrowLeft") return node.parent >= 0 ? node.parent : undefined;
  if (key === "ArrowRight") {
    return node.children.toSorted((a, b) => layout.nodes[b].log_prob - layout.nodes[a].log_prob)[0];
  }
  const by = { ArrowUp: -1, ArrowDown: 1 }[key];
  return by && layout.columns[node.step][node.rank + by]?.index;
}

/** Mark the way to a node and say what it stands for. */
function showPath(section, index) {
  const { layout } = section;
  const path = new Set(index === null ? [] : pathTo(layout, index));
  section.groups.forEach((group, i) => group.classList.toggle("on-path", path.has(i)));
  section.edges.forEach((edge, i) => edge.classList.toggle("on-path", path.has(i)));
  section.returned?.querySelectorAll("button").forEach((button) => (
    button.setAttribute("aria-pressed", String(Number(button.dataset.node) === index))));
  if (index === null) return;
  const node = layout.nodes[index];
  const before = node.parent < 0 ? 0 : layout.nodes[node.parent].log_prob;
  const states = {
    kept: node.leaf ? "kept when the search ended" : "kept",
    dropped: "dropped",
    finished: section.sentence.beam.returned[node.returned]?.truncated ? "ended by the length limit" : "finished",
  };
  section.readout.replaceChildren(
    element("bdi", { class: "so-far", lang: report.model.target_language }, textTo(layout, index)),
    ` ${states[node.state]}; log-probability ${decimal(before, 3)} + (${decimal(node.log_prob - before, 3)}) = `,
    element("b", {}, decimal(node.log_prob, 3)),
    node.score === null ? "" : `, score ${decimal(node.score, 4)}`,
  );
}

function returnedList(section) {
  const { returned } = section.sentence.beam;
  const items = returned.map((hypothesis, rank) => element("li", {}, element(
    "button",
    {
      type: "button", "data-node": hypothesis.node,
      click: () => {
        section.pinned = hypothesis.node;
        showPath(section, hypothesis.node);
        const { x } = section.layout.nodes[hypothesis.node];
        section.frame.scrollTo({ left: x - section.frame.clientWidth / 2 });
      },
    },
    element("span", { class: "rank" }, `#${rank + 1}`),
    element("bdi", { class: "hypothesis", lang: report.model.target_language }, hypothesis.text),
    element("span", { class: "numbers" }, `score ${decimal(hypothesis.score, 4)}, log p ${decimal(hypothesis.log_prob, 3)}`),
    hypothesis.truncated ? element("span", { class: "cut" }, "truncated at the length limit") : null,
  )));
  return element("ol", { class: "returned", "aria-label": "Returned translations" }, items);
}
