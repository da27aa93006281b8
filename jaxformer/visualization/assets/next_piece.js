// Next piece: the distribution and the target of every step, the log-probability of pieces.

/** What can be followed step by step: the translation, and the reference when there is one. */
function tracks(sentence) {
  const found = {
    translation: {
      label: "The translation",
      pieces: sentence.target_pieces,
      logProbs: sentence.steps.map((step) => step.chosen.log_prob),
      top: sentence.steps.map((step) => step.top),
      entropy: sentence.steps.map((step) => step.entropy),
      chosen: sentence.steps.map((step) => step.chosen),
    },
  };
  const reference = sentence.reference_steps;
  if (reference) {
    found.reference = {
      label: "The reference",
      pieces: reference.pieces,
      logProbs: reference.log_probs,
      top: reference.top,
      entropy: reference.entropy,
      losses: reference.losses,
      chosen: reference.pieces.map(({ id, text }, i) => ({ id, text, log_prob: reference.log_probs[i] })),
      smoothed: reference.smoothed,
    };
  }
  return found;
}

function buildNextPiece(sentence) {
  const all = tracks(sentence);
  const section = { all, name: all.reference ? "reference" : "translation", step: 0 };
  const content = find("#next-piece .content");
  section.distribution = element("div", { class: "distribution" });
  section.body = element("div", {});
  content.replaceChildren(
    all.reference
      ? element("div", { class: "controls" }, choice("Follow",
        Object.entries(all).map(([name, { label }]) => [name, label]), section.name, (name) => {
          section.name = name;
          section.step = 0;
          buildTrack(section);
        }))
      : "",
    section.body,
    section.distribution,
  );
  buildTrack(section);
  followPlace(() => {
    if (section.name !== "translation") return;
    section.step = place.step;
    showStep(section);
  });
}

/** The pieces of the track, each with its log-probability, and the slider. */
function buildTrack(section) {
  const track = section.all[section.name];
  const follows = section.name === "translation";
  if (follows) section.step = place.step;
  const choose = (step) => {
    section.step = step;
    if (follows) goTo({ step });
    else showStep(section);
  };
  const least = Math.min(-2, ...track.logProbs);
  section.chips = track.pieces.map((piece, i) => element(
    "button",
    { type: "button", class: "chip surprise", click: () => choose(i), "data-log-prob": track.logProbs[i], lang: report.model.target_language },
    element("span", { class: "well", "aria-hidden": "true" },
      element("span", { class: "bar", style: { height: `${Math.max(2, (track.logProbs[i] / least) * 100)}%` } })),
    pieceNode(piece.text),
    element("small", {}, decimal(track.logProbs[i], 2)),
  ));
  const list = element("div", { class: manyChips(track.pieces), role: "group", "aria-label": "Pieces and their log-probabilities" }, section.chips);
  roving(list, section.chips);
  section.slider = stepper("Step", track.pieces.length, choose);
  section.body.replaceChildren(
    element("p", { class: "note" }, "Below each piece is the natural logarithm of its probability, given the source and the pieces before it; a longer bar means a more surprising piece. ", sumNote(track)),
    list,
    element("div", { class: "step-bar" }, section.slider.node),
  );
  showStep(section);
}

function sumNote(track) {
  const sum = track.logProbs.reduce((total, value) => total + value, 0);
  return `Their sum is ${decimal(sum, 3)}, ${decimal(sum / track.logProbs.length, 3)} per piece.`;
}

function showStep(section) {
  const track = section.all[section.name];
  const { step } = section;
  section.slider.show(step);
  section.chips.forEach((chip, i) => chip.setAttribute("aria-pressed", String(i === step)));
  const before = track.pieces.slice(0, step).map((piece) => piece.text).join("").replace(/^▁/u, "").replaceAll("▁", " ");
  section.distribution.replaceChildren(
    element("p", { class: "prefix" }, "After ",
      element("bdi", { class: "so-far", lang: report.model.target_language }, before ? `“${before}”` : "the beginning"),
      " comes"),
    track.smoothed ? targetTable(track, step) : probabilityBars(track, step),
  );
}

function probabilityBars(track, step) {
  const chosen = track.chosen[step];
  const top = track.top[step];
  const listed = top.some((candidate) => candidate.id === chosen.id) ? top : [...top, chosen];
  const rest = 1 - listed.reduce((sum, candidate) => sum + Math.exp(candidate.log_prob), 0);
  return element("div", {},
    element("ol", { class: "bars wide" },
      listed.map((candidate) => {
        const probability = Math.exp(candidate.log_prob);
        return barRow(candidate, probability, percent(probability), candidate.id === chosen.id, probability);
      }),
      element("li", { class: "rest" },
        element("span", { class: "name" }, "all others"),
        element("span", { class: "track", "aria-hidden": "true" },
          element("span", { class: "bar", style: { width: `${Math.max(0, rest) * 100}%` } })),
        element("span", { class: "number" }, percent(Math.max(0, rest))),
        element("span", { class: "mark" }))),
    element("p", { class: "readout" },
      entropyNote(track, step)));
}

function entropyNote(track, step) {
  const entropy = track.entropy[step];
  return `Entropy ${decimal(entropy, 3)} nats: as uncertain as between ${decimal(Math.exp(entropy), 1)} equally likely pieces.`;
}

/** The model's distribution next to the one-hot and the smoothed target. */
function targetTable(track, step) {
  const target = track.chosen[step];
  const { on, off } = track.smoothed;
  const top = track.top[step];
  const listed = top.some((candidate) => candidate.id === target.id) ? top : [...top, target];
  const rest = 1 - listed.reduce((sum, candidate) => sum + Math.exp(candidate.log_prob), 0);
  const others = report.model.vocab_size - listed.length;
  const line = (name, values, isTarget) => element("tr", { class: isTarget ? "chosen" : "" },
    element("th", { scope: "row" }, name, isTarget ? element("span", { class: "mark" }, "target") : null),
    values.map((value) => element("td", { "data-value": value },
      element("span", { class: "number" }, percent(value)),
      element("span", { class: "track", "aria-hidden": "true" },
        element("span", { class: "bar", style: { width: `${Math.max(0, Math.min(1, value)) * 100}%` } })))));
  return element("div", {},
    element("div", { class: "scroll" }, element("table", { class: "targets" },
      element("thead", {}, element("tr", {},
        element("th", { scope: "col" }, "Piece"),
        element("th", { scope: "col" }, "Model"),
        element("th", { scope: "col" }, "One-hot target"),
        element("th", { scope: "col" }, "Smoothed target"))),
      element("tbody", {},
        listed.map((candidate) => {
          const isTarget = candidate.id === target.id;
          return line(pieceNode(candidate.text),
            [Math.exp(candidate.log_prob), isTarget ? 1 : 0, isTarget ? on : off], isTarget);
        }),
        line(`${others} others`, [Math.max(0, rest), 0, others * off], false)))),
    element("p", { class: "readout" },
      `With label smoothing ${report.model.label_smoothing} the target distribution is ${on.toPrecision(4)} on the target and ${off.toExponential(1).replace("-", "−")} on each other piece. The loss of this step is ${decimal(track.losses[step], 4)} nats; without smoothing it would be −log p = ${decimal(-target.log_prob, 4)}. ${entropyNote(track, step)}`));
}
