// Stations: the way of the sentence through the model, each stop with its numbers.

let stationsMade = 0;

function station(id, title, formula, text, ...content) {
  stationsMade += 1;
  return element(
    "article",
    { class: "station", id, "aria-labelledby": `${id}-title` },
    element("header", {},
      element("span", { class: "ordinal", "aria-hidden": "true" }, String(stationsMade)),
      element("h3", { id: `${id}-title` }, title),
      formula ? element("code", { class: "formula" }, formula) : null),
    element("p", { class: "note" }, text),
    ...content,
  );
}

function manyChips(pieces) {
  return pieces.length > 80 ? "chips many" : "chips";
}

/** Pieces with their ids; the one in view is marked, and a click goes to another. */
function pieceList(label, pieces, language, current, choose, known) {
  const chips = pieces.map((piece, i) => element(
    "button",
    { type: "button", class: "chip", click: () => choose(i), lang: language },
    pieceNode(piece.text),
    element("small", {}, String(piece.id)),
  ));
  const list = element("div", { class: manyChips(pieces), role: "group", "aria-label": label }, chips);
  roving(list, chips);
  followPlace(() => chips.forEach((chip, i) => {
    chip.setAttribute("aria-pressed", String(i === current()));
    chip.classList.toggle("later", !known(i));
  }));
  return list;
}

function encoderStations(sentence, arrays) {
  const { d_model: width, source_language: language, norm } = report.model;
  const strips = vectorStrips({
    name: "the source",
    pieces: sentence.source_pieces,
    arrays: arrays.encoder,
    row: () => place.source,
    setRow: (source) => goTo({ source }),
  });
  const numbers = layerNumbers("encoder");
  const stations = [
    station("source-pieces", "Pieces", "", `The sentence is split into ${sentence.source_pieces.length} pieces of a vocabulary; each has a number, its id. A low line marks a space before the piece, and the last piece marks the end of the sentence.`,
      pieceList("Pieces of the source", sentence.source_pieces, language,
        () => place.source, (source) => goTo({ source }), () => true)),
    station("source-vectors", "Embedding and position", embeddingFormula(), positionNote(width),
      sumOfVectors(strips)),
    station("encoder-layers", "Encoder layers", normFormula(norm), "In each layer every piece attends to all pieces of the source (self-attention), and then each is processed by itself (feed-forward). Each row still belongs to one piece; its content is refined from layer to layer.",
      layerOutputs(strips, numbers)),
  ];
  followPlace(strips.update);
  return stations;
}

function embeddingFormula() {
  const added = report.model.positions === "rotary" ? "" : " + P[position]";
  return `x = √${report.model.d_model} · E[id]${added}`;
}

function normFormula(norm) {
  return norm === "pre" ? "x + f(LayerNorm(x))" : "LayerNorm(x + f(x))";
}

function positionNote(width) {
  const kinds = {
    sinusoidal: "A wave for each pair of dimensions, slower from pair to pair, encodes the position.",
    learned: "A learned vector encodes the position.",
    rotary: "No position is added: this model rotates queries and keys by their positions instead (rotary).",
  };
  return `The id selects a row of ${width} numbers. ${kinds[report.model.positions]} Point at a strip, or use the arrow keys in it, to read single numbers.`;
}

function decoderStations(sentence, arrays) {
  const { target_language: language, norm } = report.model;
  const steps = sentence.target_pieces.length;
  const strips = vectorStrips({
    name: "the translation so far",
    pieces: sentence.decoder_pieces,
    arrays: arrays.decoder,
    row: () => place.step,
    setRow: (step) => goTo({ step }),
    shown: (r) => r <= place.step,
  });
  const slider = stepper("Decoding step", steps, (step) => goTo({ step }));
  followPlace(() => slider.show(place.step));
  const numbers = layerNumbers("decoder");
  const stations = [
    station("target-pieces", "The translation so far", "", "The decoder reads its own translation so far, shifted right by one: it starts with the piece that marks the beginning. Pieces not yet written are dimmed.",
      pieceList("What the decoder reads", sentence.decoder_pieces, language,
        () => place.step, (step) => goTo({ step }), (i) => i <= place.step)),
    station("target-vectors", "Embedding and position", embeddingFormula(), "As in the encoder, with the pieces of the translation.",
      sumOfVectors(strips)),
    station("decoder-layers", "Decoder layers", normFormula(norm), "Each layer attends to the translation so far, then to the encoder’s output, then processes each piece. The row of the current step becomes the next piece.",
      layerOutputs(strips, numbers)),
    station("logits", "Linear", `z = W · x, ${report.model.vocab_size} numbers`, "The last row is compared with every piece of the vocabulary. These ten match best; the number is the logit.",
      candidateBars(sentence, "logit")),
    station("softmax", "Softmax", "p = exp(z) / Σ exp(z)", "The same ten as probabilities; over the whole vocabulary they sum to one.",
      candidateBars(sentence, "probability")),
    station("chosen", "The chosen piece", "", "It is appended to the translation, and the next step begins.",
      chosenPiece(sentence, language)),
  ];
  followPlace(strips.update);
  return { slider, stations };
}

/** Ten candidates of the step in view, as bars of their logits or of their probabilities. */
function candidateBars(sentence, quantity) {
  const list = element("ol", { class: "bars" });
  const all = sentence.steps.flatMap((step) => step.top.map((candidate) => candidate.logit));
  const low = Math.min(0, ...all.slice(0, 20000));
  const high = Math.max(...all.slice(0, 20000));
  followPlace(() => {
    const { top, chosen } = sentence.steps[place.step];
    list.replaceChildren(...top.map((candidate) => {
      const value = quantity === "logit" ? candidate.logit : Math.exp(candidate.log_prob);
      const share = quantity === "logit" ? (value - low) / (high - low || 1) : value;
      return barRow(candidate, share, quantity === "logit" ? decimal(value, 2) : percent(value),
        candidate.id === chosen.id, value);
    }));
  });
  return list;
}

/** One candidate: its text, a bar, a number; the chosen one carries a mark. */
function barRow(candidate, share, number, isChosen, value) {
  return element(
    "li",
    { class: isChosen ? "chosen" : "", "data-id": candidate.id, "data-value": value },
    element("span", { class: "name" }, pieceNode(candidate.text)),
    element("span", { class: "track", "aria-hidden": "true" },
      element("span", { class: "bar", style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } })),
    element("span", { class: "number" }, number),
    element("span", { class: "mark" }, isChosen ? "chosen" : ""),
  );
}

function chosenPiece(sentence, language) {
  const text = element("p", { class: "chosen-piece", lang: language });
  const facts = element("p", { class: "readout" });
  followPlace(() => {
    const { top, chosen } = sentence.steps[place.step];
    const rank = top.findIndex((candidate) => candidate.id === chosen.id);
    text.replaceChildren(pieceNode(chosen.text));
    const position = rank < 0 ? "outside the ten most probable" : `number ${rank + 1} of the step`;
    const forced = sentence.truncated && place.step === sentence.steps.length - 1;
    const why = forced
      ? ". The length limit put it here, not the model."
      : ". The search weighs whole sentences: another first choice led to a less probable one, or to one that was dropped.";
    facts.replaceChildren(
      `id ${chosen.id}, logit ${decimal(chosen.logit, 2)}, probability ${percent(Math.exp(chosen.log_prob))}, log-probability ${decimal(chosen.log_prob, 4)}; ${position}`,
      rank === 0 && !forced ? "" : why,
    );
  });
  return element("div", {}, text, facts);
}

function buildStations(sentence, arrays) {
  stationsMade = 0;
  const encoder = encoderStations(sentence, arrays);
  const { slider, stations } = decoderStations(sentence, arrays);
  const figure = modelFigure();
  find("#journey .content").replaceChildren(
    element("nav", { class: "map", "aria-label": "Steps of the model" }, figure),
    element("div", { class: "stations" },
      element("h3", { class: "tower-name" }, "Encoder: reads the whole sentence at once"),
      encoder,
      element("h3", { class: "tower-name" }, "Decoder: writes one piece at each step"),
      element("div", { class: "step-bar" }, slider.node),
      stations),
  );
  followReading(figure, [...encoder, ...stations]);
}
