// Attention heads: the buttons that switch heads, and the map of all layers and heads.

const THUMBNAIL = 40; // pixels of a side

/** A button per head, one for all, one for none. change(heads) gets the new sorted list. */
function headButtons(count, chosen, change) {
  const buttons = Array.from({ length: count }, (_, head) => element(
    "button",
    {
      type: "button", class: "head", "data-head": head,
      "aria-label": `Head ${head + 1}`, title: `Head ${head + 1}; double-click: only this head`,
      click: () => {
        const now = chosen();
        change(now.includes(head) ? now.filter((other) => other !== head) : [...now, head]);
      },
      dblclick: () => change([head]),
    },
    element("i", { "aria-hidden": "true" }),
    String(head + 1),
  ));
  const every = Array.from({ length: count }, (_, head) => head);
  const node = element(
    "fieldset",
    { class: "heads" },
    element("legend", {}, "Heads"),
    element("div", { class: "head-row" }, buttons,
      element("button", { type: "button", class: "plain", click: () => change(every) }, "All"),
      element("button", { type: "button", class: "plain", click: () => change([]) }, "None")),
  );
  const show = () => buttons.forEach((button, head) => {
    button.setAttribute("aria-pressed", String(chosen().includes(head)));
    setStyle(button, { "--head": headColour(head) });
    button.classList.toggle("dashed", head >= 8);
  });
  return { node, show };
}

/** A small picture of one head's whole matrix; in large ones a pixel is the maximum of its cells. */
function drawThumbnail(canvas, array, layer, head) {
  const matrix = row(array, layer, head);
  const [, , rows, columns] = array.shape;
  const high = Math.min(rows, THUMBNAIL * 2);
  const wide = Math.min(columns, THUMBNAIL * 2);
  const pixels = new Float32Array(high * wide);
  for (let r = 0; r < rows; r += 1) {
    const y = Math.floor((r * high) / rows);
    for (let c = 0; c < columns; c += 1) {
      const at = y * wide + Math.floor((c * wide) / columns);
      pixels[at] = Math.max(pixels[at], matrix[r * columns + c]);
    }
  }
  const picture = paintImage({
    rows: high, columns: wide, value: (r, c) => pixels[r * wide + c], scale: () => weightScale(headColour(head)),
  });
  canvas.width = wide;
  canvas.height = high;
  canvas.getContext("2d").drawImage(picture, 0, 0);
}

/** Every layer and head of a kind; a click on one shows it alone. */
function headMap(array, side, current, pick) {
  const [layers, heads] = array.shape;
  const numbers = layerNumbers(side);
  const buttons = [];
  const rows = numbers.map((number, layer) => element("tr", {},
    element("th", { scope: "row" }, String(number)),
    Array.from({ length: heads }, (_, head) => {
      const canvas = element("canvas", { "aria-hidden": "true" });
      const button = element("button", {
        type: "button", "aria-label": `Layer ${number}, head ${head + 1}`,
        click: () => pick(layer, head),
      }, canvas);
      buttons.push({ button, canvas, layer, head });
      return element("td", {}, button);
    })));
  const table = element("table", { class: "head-map" },
    element("caption", {}, "All layers and heads. Choose one to show only it."),
    element("thead", {}, element("tr", {},
      element("th", { scope: "col" }, "Layer"),
      Array.from({ length: heads }, (_, head) => element("th", { scope: "col" }, String(head + 1))))),
    element("tbody", {}, rows));
  roving(table, buttons.map(({ button }) => button), (index, key) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads }[key];
    return by === undefined ? undefined : index + by;
  });
  const draw = () => buttons.forEach(({ canvas, layer, head }) => drawThumbnail(canvas, array, layer, head));
  const show = () => {
    const { layer: shownLayer, heads: shownHeads } = current();
    buttons.forEach(({ button, layer, head }) => button.setAttribute(
      "aria-pressed", String(layer === shownLayer && shownHeads.includes(head)),
    ));
  };
  draw();
  return { node: element("div", { class: "scroll" }, table), draw, show };
}
