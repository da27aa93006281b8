// Layers say: the output projection applied to the state of every decoder layer.

function buildLayersSay(sentence) {
  const numbers = layerNumbers("decoder");
  const cells = [];
  const columns = sentence.steps.map((step, t) => element("th", { scope: "col" },
    element("button", { type: "button", class: "plain", click: () => goTo({ step: t }), lang: report.model.target_language },
      pieceNode(step.chosen.text))));
  const rows = numbers.map((number, layer) => element("tr", {},
    element("th", { scope: "row" }, `Layer ${number}`),
    sentence.steps.map((step, t) => {
      const cell = layerCell(step, layer, number, () => goTo({ step: t }));
      cells.push({ ...cell, t, layer });
      return cell.node;
    })));
  const table = element("table", { class: "lens" },
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Chosen"), columns)),
    element("tbody", {}, rows));
  const width = sentence.steps.length;
  roving(table, cells.map((cell) => cell.button), (index, key) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: width, ArrowUp: -width }[key];
    return by === undefined ? undefined : index + by;
  });
  const detail = element("div", { class: "lens-detail" });
  find("#lens .content").replaceChildren(element("div", { class: "scroll" }, table), detail);
  followPlace(() => {
    for (const { node, t } of cells) node.classList.toggle("current", t === place.step);
    columns.forEach((column, t) => column.classList.toggle("current", t === place.step));
    detail.replaceChildren(...layerDetail(sentence, numbers));
  });
}

/** One step and layer: its first choice, tinted by probability, marked when it is the chosen piece. */
function layerCell(step, layer, number, choose) {
  const [best] = step.layers[layer];
  const agrees = best.id === step.chosen.id;
  const button = element(
    "button",
    {
      type: "button", click: choose, lang: report.model.target_language, "data-prob": best.prob,
      title: step.layers[layer].map(({ text, prob }) => `${text} ${percent(prob)}`).join("\n"),
      "aria-label": `Layer ${number} says ${best.text}, ${percent(best.prob)}${agrees ? ", the chosen piece" : ""}`,
    },
    pieceNode(best.text),
    element("small", {}, percent(best.prob), agrees ? " ✓" : ""),
  );
  const node = element("td", { class: agrees ? "agrees" : "", style: { "--weight": `${Math.round(best.prob * 38)}%` } }, button);
  return { node, button };
}

/** The three first choices of each layer at the step in view. */
function layerDetail(sentence, numbers) {
  const step = sentence.steps[place.step];
  return [
    element("h3", {}, `Step ${place.step + 1}, first three choices of each layer`),
    element("div", { class: "lens-layers" }, numbers.map((number, layer) => element("div", {},
      element("h4", {}, `Layer ${number}`),
      element("ol", { class: "bars" }, step.layers[layer].map((candidate) => barRow(
        candidate, candidate.prob, percent(candidate.prob), candidate.id === step.chosen.id, candidate.prob,
      )))))),
  ];
}
