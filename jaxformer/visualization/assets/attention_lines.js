// Attention lines: words on two sides, and a line for each weight between them.

const LINE_HEIGHT = 26;
const MOST_LINES = 3000;
const LEAST_WEIGHT = 0.02; // weaker lines could not be seen
const LEAST_WEIGHT_OF_WORD = 0.004;

/**
 * Words left (queries) and right (keys) with lines between them.
 *
 * chosen: {heads: sorted numbers, focus: {side, index} or null}; point(focus or null) is called by
 * pointer and focus, pin(focus) by click.
 */
function attentionLines(view, language, point, pin) {
  const height = Math.max(view.rows.length, view.columns.length) * LINE_HEIGHT;
  const lines = svg("svg", {
    viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true",
    style: { height: `${height}px` },
  });
  const left = wordList(view.rows, "query", "Queries", language.rows, point, pin);
  const right = wordList(view.columns, "key", "Keys", language.columns, point, pin);
  const note = element("p", { class: "legend-note" });
  const node = element("div", {},
    element("div", { class: "lines-frame" }, element("div", { class: "lines", style: { "--heads": view.heads.length } }, left.node, lines, right.node)), note);
  const draw = (chosen) => {
    const least = drawLines(lines, view, chosen);
    note.textContent = least > LEAST_WEIGHT
      ? `Only the ${MOST_LINES} strongest lines are drawn, from ${percent(least)}; a selected word shows all of its own.`
      : `Lines below ${percent(chosen.focus ? LEAST_WEIGHT_OF_WORD : LEAST_WEIGHT)} are not drawn.`;
    shadeWords(left, right, view, chosen);
  };
  return { node, draw };
}

function wordList(groups, side, label, language, point, pin) {
  const buttons = groups.map((group, index) => {
    const text = element("bdi", { class: "word-text", lang: language });
    text.append(pieceNode(group.text));
    return element(
      "button",
      {
        type: "button", class: "word", title: group.text, "data-side": side, "data-index": index,
        "aria-pressed": "false",
        pointerenter: (event) => event.pointerType === "mouse" && point({ side, index }),
        focus: (event) => event.target.matches(":focus-visible") && point({ side, index }),
        blur: () => point(null),
        click: () => pin({ side, index }),
      },
      text,
      element("span", { class: "shades", "aria-hidden": "true" }),
    );
  });
  const node = element("div", {
    class: `words ${side}`, role: "group", "aria-label": label,
    pointerleave: () => point(null),
  }, buttons);
  roving(node, buttons);
  return { node, buttons };
}

/** [weight, head, row, column] of the lines to draw, and the weight from which on. */
function strongestLines(view, { heads, focus }) {
  const width = view.columns.length;
  let least = focus ? LEAST_WEIGHT_OF_WORD : LEAST_WEIGHT;
  const found = [];
  for (const head of heads) {
    const weights = view.heads[head];
    for (let r = 0; r < view.rows.length; r += 1) {
      if (focus?.side === "query" && focus.index !== r) continue;
      for (let c = 0; c < width; c += 1) {
        if (focus?.side === "key" && focus.index !== c) continue;
        const weight = weights[r * width + c];
        if (weight >= least) found.push([weight, head, r, c]);
      }
    }
  }
  if (found.length > MOST_LINES) {
    found.sort((a, b) => b[0] - a[0]);
    found.length = MOST_LINES;
    least = found.at(-1)[0];
  }
  return { found, least };
}

function drawLines(parent, view, chosen) {
  const { found, least } = strongestLines(view, chosen);
  const crowd = chosen.focus ? 1 : 1 / Math.sqrt(chosen.heads.length || 1);
  parent.replaceChildren(...found.map(([weight, head, r, c]) => {
    const from = (r + 0.5) * LINE_HEIGHT;
    const spread = chosen.heads.length > 1 ? (head / (view.heads.length - 1 || 1) - 0.5) * 8 : 0;
    const to = (c + 0.5) * LINE_HEIGHT + spread;
    return svg("path", {
      d: `M0 ${from} C45 ${from} 55 ${to} 100 ${to}`,
      stroke: headColour(head),
      "stroke-opacity": Math.min(1, weight ** 0.85 * crowd).toFixed(3),
      "stroke-width": (0.8 + 2.2 * weight).toFixed(2),
      "stroke-dasharray": head >= 8 ? "5 3" : null,
      "data-head": head, "data-row": r, "data-column": c, "data-weight": weight,
    });
  }));
  return least;
}

/** Beside each word of the other side a bar a head, as strong as its weight. */
function shadeWords(left, right, view, { heads, focus, pinned }) {
  for (const [side, list, other] of [["query", left, "key"], ["key", right, "query"]]) {
    list.buttons.forEach((button, index) => {
      const here = focus?.side === side && focus.index === index;
      button.classList.toggle("in-view", here);
      button.setAttribute("aria-pressed", String(pinned?.side === side && pinned.index === index));
      const shades = button.lastChild;
      if (focus?.side !== other) {
        button.classList.remove("dimmed");
        shades.replaceChildren();
        return;
      }
      const [r, c] = side === "key" ? [focus.index, index] : [index, focus.index];
      button.classList.toggle("dimmed", meanWeight(view, heads, r, c) < 0.02
        && !heads.some((head) => view.heads[head][r * view.columns.length + c] > 0.1));
      shades.replaceChildren(...heads.map((head) => element("i", {
        style: {
          background: headColour(head),
          opacity: Math.min(1, view.heads[head][r * view.columns.length + c] ** 0.7).toFixed(3),
        },
      })));
    });
  }
}
