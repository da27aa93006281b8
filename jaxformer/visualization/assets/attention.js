// Attention: kind, layer and heads chosen; lines, matrix and map drawn; what a word sees, in words.

const MOST_NAMED = 3; // keys named in the readout

function buildAttention(sentence, arrays) {
  const layersOf = (kind) => ATTENTION_KINDS[kind].array(arrays).shape[0];
  const kinds = Object.keys(ATTENTION_KINDS);
  const chosen = {
    kind: "encoder",
    layers: Object.fromEntries(kinds.map((kind) => [kind, layersOf(kind) - 1])),
    heads: Array.from({ length: arrays.encoder.attention.shape[1] }, (_, head) => head),
    joined: false,
    byChoice: false,
    pointed: null,
    pinned: null,
  };
  const section = { sentence, arrays, chosen, content: find("#attention .content") };
  section.content.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen.pinned) pin(section, chosen.pinned);
  });
  drawings.add(() => {
    section.headRow.show();
    section.map.draw();
    showScale(section);
    showAttention(section);
  });
  chooseView(section);
}

/** Build the section for the kind, layer and grouping that are chosen. */
function chooseView(section, focusSelector) {
  const { sentence, arrays, chosen } = section;
  const view = attentionView(sentence, arrays, chosen);
  if (section.matrix) drawings.delete(section.matrix.repaint);
  section.view = view;
  chosen.pinned = null;
  chosen.pointed = null;
  section.headRow = headButtons(view.heads.length, () => chosen.heads, (heads) => {
    chosen.heads = [...new Set(heads)].sort((a, b) => a - b);
    section.largest = showScale(section);
    section.matrix.repaint();
    showAttention(section);
  });
  const language = languages(chosen.kind);
  section.lines = attentionLines(view, language, (focus) => {
    chosen.pointed = focus;
    showAttention(section);
  }, (focus) => pin(section, focus));
  section.scale = element("p", { class: "legend" }, element("span", {}, "0%"),
    element("span", { class: "weight-scale", "aria-hidden": "true" }), element("span", {}));
  section.largest = showScale(section);
  section.matrix = attentionMatrix(section);
  section.map = headMap(view.array, view.kind.side,
    () => ({ layer: view.layer, heads: chosen.heads }), (layer, head) => {
      chosen.layers[chosen.kind] = layer;
      chosen.heads = [head];
      chooseView(section, `.head-map [aria-pressed=true]`);
    });
  section.readout = element("div", { class: "readout sees", role: "status" });
  section.content.replaceChildren(
    attentionControls(section),
    element("p", { class: "note" }, view.kind.note),
    // The readout stands below the words: its height changes, and they must not move under the pointer.
    element("div", { class: "two-views" }, element("div", {}, section.lines.node, section.readout),
      element("figure", { class: "matrix" },
        element("figcaption", {}, "Rows are queries, columns are keys; the mean of the selected heads."),
        section.matrix.node, section.scale)),
    section.map.node,
  );
  showAttention(section);
  if (focusSelector) section.content.querySelector(focusSelector)?.focus();
}

function languages(kind) {
  const { source_language: source, target_language: target } = report.model;
  return { rows: kind === "encoder" ? source : target, columns: kind === "decoder" ? target : source };
}

function attentionControls(section) {
  const { chosen, view } = section;
  const set = (name, value, focus) => {
    chosen[name] = value;
    chooseView(section, focus);
  };
  const numbers = layerNumbers(view.kind.side);
  return element(
    "div",
    { class: "controls" },
    choice("Attention", Object.entries(ATTENTION_KINDS).map(([kind, { label }]) => [kind, label]),
      chosen.kind, (kind) => set("kind", kind, `[value=${kind}]`)),
    choice("Layer", numbers.map((number, layer) => [`layer-${layer}`, number]), `layer-${view.layer}`,
      (value) => {
        chosen.layers[chosen.kind] = Number(value.slice(6));
        chooseView(section, `[value=${value}]`);
      }),
    section.headRow.node,
    element("div", { class: "checkboxes" },
      checkbox("Join pieces into words", chosen.joined, (on) => set("joined", on, ".checkbox input")),
      view.kind.side === "decoder"
        ? checkbox("Name rows by the piece they choose", chosen.byChoice,
          (on) => set("byChoice", on, ".checkbox:nth-child(2) input"))
        : null),
  );
}

function attentionMatrix(section) {
  const { view, chosen } = section;
  const cell = cellSize(section);
  const labels = (groups) => (cell >= 12 ? groups.map((group) => group.text) : null);
  return heatMap({
    label: `${view.kind.title}, layer ${layerNumbers(view.kind.side)[view.layer]}: ${view.rows.length} rows look at ${view.columns.length} columns`,
    rows: view.rows.length,
    columns: view.columns.length,
    value: (r, c) => meanWeight(view, chosen.heads, r, c) / section.largest,
    scale: () => weightScale(matrixColour(chosen.heads)),
    height: cell,
    width: cell,
    rowLabels: labels(view.rows),
    columnLabels: labels(view.columns),
    cursor: () => {
      const focus = chosen.pointed ?? chosen.pinned;
      if (!focus) return null;
      const none = { row: -1, column: -1 };
      return { ...none, [focus.side === "query" ? "row" : "column"]: focus.index, ...focus.cell };
    },
    move: (r, c) => {
      chosen.pointed = { side: "query", index: r, cell: { row: r, column: c } };
      showAttention(section);
    },
    leave: () => {
      chosen.pointed = null;
      showAttention(section);
    },
    pick: (r) => pin(section, { side: "query", index: r }),
  });
}

function matrixColour(heads) {
  return headColour(heads.length === 1 ? heads[0] : 0);
}

/** Pixels of a cell: as large as the frame allows where it can be labelled, else to see the whole. */
function cellSize({ view, content }) {
  const largest = Math.max(view.rows.length, view.columns.length);
  if (largest > 60) return Math.max(3, Math.floor(720 / largest));
  const room = content.clientWidth > 900 ? content.clientWidth / 2 : content.clientWidth;
  return Math.min(28, Math.max(13, Math.floor((room - 128) / view.columns.length)));
}

/** The strongest cell has the full colour; the legend says how much it is. */
function showScale({ view, chosen, scale }) {
  let largest = 0;
  view.rows.forEach((_, r) => view.columns.forEach((__, c) => {
    largest = Math.max(largest, meanWeight(view, chosen.heads, r, c));
  }));
  setStyle(scale, { "--head": matrixColour(chosen.heads) });
  scale.lastChild.textContent = percent(largest);
  return largest || 1;
}

/** Hold a word in view, or let go of it. */
function pin(section, focus) {
  const { chosen } = section;
  const same = chosen.pinned?.side === focus.side && chosen.pinned.index === focus.index;
  chosen.pinned = same ? null : focus;
  if (same) chosen.pointed = null;
  showAttention(section);
}

/** Draw everything that depends on the heads and on the word in view. */
function showAttention(section) {
  const { chosen, view } = section;
  const focus = chosen.pointed ?? chosen.pinned;
  section.headRow.show();
  section.map.show();
  section.lines.draw({ heads: chosen.heads, focus, pinned: chosen.pinned });
  section.matrix.redraw();
  section.readout.replaceChildren(...sees(view, chosen, focus));
}

/** What the word in view looks at, or who looks at it: the mean, then each head's strongest. */
function sees(view, { heads, byChoice }, focus) {
  if (!heads.length) return ["No head is selected; choose one above."];
  if (!focus) return ["Point at a word to see what it attends to; click to keep it selected, Escape to release it."];
  const query = focus.side === "query";
  const others = query ? view.columns : view.rows;
  const weight = (i) => (query ? meanWeight(view, heads, focus.index, i) : meanWeight(view, heads, i, focus.index));
  const cell = focus.cell ? [focus.cell.column] : [];
  const order = others.map((_, i) => i).sort((a, b) => weight(b) - weight(a)).slice(0, MOST_NAMED);
  const named = [...new Set([...cell, ...order])].slice(0, MOST_NAMED);
  const word = pieceNode((query ? view.rows : view.columns)[focus.index].text);
  const verb = query ? (byChoice && view.kind.side === "decoder" ? " is chosen attending to " : " attends to ") : " is attended to by ";
  const mean = element("p", {}, element("b", {}, word), verb,
    named.map((i, n) => [n ? ", " : "", pieceNode(others[i].text), ` ${percent(weight(i))}`]).flat(),
    heads.length > 1 ? ` (mean of ${heads.length} heads)` : "");
  const each = element("p", { class: "each-head" }, heads.map((head) => {
    const best = query ? strongest(view, head, focus.index) : strongestRow(view, head, focus.index);
    const [r, c] = query ? [focus.index, best] : [best, focus.index];
    return element("span", { class: "head-says", style: { "--head": headColour(head) } },
      element("i", { "aria-hidden": "true" }), element("span", { class: "head-number" }, `head ${head + 1}`), " ",
      pieceNode(others[best].text), ` ${percent(view.heads[head][r * view.columns.length + c])}`);
  }));
  return [mean, each];
}
