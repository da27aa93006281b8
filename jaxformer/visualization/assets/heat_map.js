// Heat map: a matrix on a canvas, with a cursor for pointer and keyboard.

const LABEL_FONT = '12px system-ui, "Segoe UI", sans-serif';
const LONGEST_LABEL = 96; // pixels

/**
 * A matrix whose cells are colours.
 *
 * options: label (for screen readers), rows, columns, value(row, column), scale() giving a painter
 * of theme.js, height and width of a cell (width 0: the matrix fills its frame), rowLabels and
 * columnLabels or nothing, shown(row) false for rows to dim, cursor() giving {row, column} or null,
 * move(row, column) and leave() for pointer and arrow keys, pick(row, column) for click and Enter.
 */
function heatMap(options) {
  const canvas = element("canvas", {
    class: "heat-map", tabindex: "0", role: "application", "aria-label": options.label,
    "aria-roledescription": "matrix, read with the arrow keys",
  });
  const map = { node: element("div", { class: "heat-map-frame" }, canvas), canvas, options };
  map.repaint = () => { map.image = null; requestDrawing(map); };
  map.redraw = () => requestDrawing(map);
  listenToPointer(map);
  listenToKeys(map);
  new ResizeObserver(map.redraw).observe(map.node);
  drawings.add(map.repaint);
  return map;
}

function requestDrawing(map) {
  if (map.waiting) return;
  map.waiting = true;
  requestAnimationFrame(() => {
    map.waiting = false;
    if (map.node.isConnected) drawHeatMap(map);
  });
}

/** Where the cells are: margins for the labels, then rows of `height` and columns of `width`. */
function measure(map) {
  const { rows, columns, height, rowLabels, columnLabels } = map.options;
  const context = map.canvas.getContext("2d");
  context.font = LABEL_FONT;
  const longest = (labels) => Math.min(
    LONGEST_LABEL,
    Math.ceil(Math.max(...labels.map((label) => context.measureText(label).width))),
  );
  const left = rowLabels ? longest(rowLabels) + 8 : 0;
  const top = columnLabels ? Math.ceil(longest(columnLabels) * 0.87) + 12 : 0;
  const right = columnLabels ? Math.ceil(longest(columnLabels.slice(-4)) * 0.5) : 0;
  const room = Math.max(40, map.node.clientWidth - left - right);
  const width = map.options.width || room / columns;
  return { left, top, width, height, total: left + columns * width + right, tall: top + rows * height };
}

function paintImage({ rows, columns, value, scale }) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const paint = scale();
  for (let r = 0; r < rows; r += 1) {
    for (let c = 0; c < columns; c += 1) paint(value(r, c), image.data, (r * columns + c) * 4);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function drawHeatMap(map) {
  const { canvas, options } = map;
  const { rows, columns } = options;
  const size = measure(map);
  map.size = size;
  const density = window.devicePixelRatio || 1;
  canvas.width = Math.round(size.total * density);
  canvas.height = Math.round(size.tall * density);
  setStyle(canvas, { width: `${size.total}px`, height: `${size.tall}px` });
  const context = canvas.getContext("2d");
  context.scale(density, density);
  map.image ??= paintImage(options);
  context.imageSmoothingEnabled = size.width * density < 1;
  context.drawImage(map.image, size.left, size.top, columns * size.width, rows * size.height);
  if (options.shown) {
    context.fillStyle = cssColour("--panel");
    context.globalAlpha = 0.78;
    for (let r = 0; r < rows; r += 1) {
      if (!options.shown(r)) {
        context.fillRect(size.left, size.top + r * size.height, columns * size.width, size.height);
      }
    }
    context.globalAlpha = 1;
  }
  context.strokeStyle = cssColour("--rule");
  context.strokeRect(size.left + 0.5, size.top + 0.5, columns * size.width - 1, rows * size.height - 1);
  drawLabels(context, options, size);
  drawCursor(context, options, size);
}

function fitted(context, text, width) {
  let shown = text;
  let most = text.length;
  while (most > 1 && context.measureText(shown).width > width) {
    most -= 1;
    shown = shortened(text, most);
  }
  return shown;
}

/** A piece next to or above the cells, its space mark dimmed. */
function writePiece(context, label, x, y, endsThere) {
  const [marks, rest] = splitMarks(fitted(context, label, LONGEST_LABEL));
  const wide = context.measureText(marks).width;
  const start = endsThere ? x - wide - context.measureText(rest).width : x;
  context.fillText(rest, start + wide, y);
  context.globalAlpha = 0.35;
  context.fillText(marks, start, y);
  context.globalAlpha = 1;
}

function drawLabels(context, { rowLabels, columnLabels, cursor }, size) {
  const at = cursor?.() ?? {};
  context.font = LABEL_FONT;
  context.textBaseline = "middle";
  const ink = (here) => { context.fillStyle = cssColour(here ? "--ink" : "--muted"); };
  context.textAlign = "left";
  rowLabels?.forEach((label, r) => {
    ink(r === at.row);
    const y = size.top + (r + 0.5) * size.height;
    writePiece(context, label, size.left - 6, y, true);
  });
  columnLabels?.forEach((label, c) => {
    ink(c === at.column);
    context.save();
    context.translate(size.left + (c + 0.5) * size.width, size.top - 6);
    context.rotate(-Math.PI / 3);
    writePiece(context, label, 0, 0, false);
    context.restore();
  });
}

function drawCursor(context, { rows, columns, cursor }, size) {
  const at = cursor?.();
  if (!at) return;
  context.strokeStyle = cssColour("--ink");
  context.lineWidth = 1;
  const x = size.left + at.column * size.width;
  const y = size.top + at.row * size.height;
  if (at.row >= 0 && at.row < rows) {
    context.strokeRect(size.left + 0.5, y + 0.5, columns * size.width - 1, size.height - 1);
  }
  if (at.column >= 0 && at.column < columns) {
    context.lineWidth = 2;
    context.strokeRect(x - 1, y - 1, Math.max(3, size.width) + 2, size.height + 2);
  }
}

function cellAt(map, event) {
  if (!map.size) return null;
  const box = map.canvas.getBoundingClientRect();
  const { left, top, width, height } = map.size;
  const column = Math.floor((event.clientX - box.left - left) / width);
  const row = Math.floor((event.clientY - box.top - top) / height);
  const inside = row >= 0 && row < map.options.rows && column >= 0 && column < map.options.columns;
  return inside ? { row, column } : null;
}

function listenToPointer(map) {
  const { move, leave, pick } = map.options;
  map.canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(map, event);
    if (cell) move?.(cell.row, cell.column);
    else leave?.();
  });
  map.canvas.addEventListener("pointerleave", () => leave?.());
  map.canvas.addEventListener("click", (event) => {
    const cell = cellAt(map, event);
    if (cell) (pick ?? move)?.(cell.row, cell.column);
  });
}

function listenToKeys(map) {
  const { rows, columns, cursor, move, pick } = map.options;
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  map.canvas.addEventListener("keydown", (event) => {
    const seen = cursor?.() ?? { row: 0, column: 0 };
    const at = { row: Math.max(0, seen.row), column: Math.max(0, seen.column) };
    const clamp = (value, count) => Math.min(count - 1, Math.max(0, value));
    if (event.key in steps) {
      const [down, right] = steps[event.key];
      move?.(clamp(at.row + down, rows), clamp(at.column + right, columns));
    } else if (event.key === "Home" || event.key === "End") {
      move?.(clamp(at.row, rows), event.key === "Home" ? 0 : columns - 1);
    } else if (event.key === "Enter" && pick) {
      pick(clamp(at.row, rows), clamp(at.column, columns));
    } else {
      return;
    }
    event.preventDefault();
  });
}
