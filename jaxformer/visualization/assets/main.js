// Main: the sentence in view, and everything that is shown of it.

let shownSentence = 0;

function showSentence(index) {
  buildSentence(index).catch((error) => {
    const text = typeof DecompressionStream === "undefined"
      ? "This browser is too old for the report: it cannot unpack compressed data. Use one from 2023 or later."
      : `The report cannot be shown: ${error.message}`;
    find("#main").prepend(element("p", { class: "failure", role: "alert" }, text));
    throw error;
  });
}

async function buildSentence(index) {
  shownSentence = index;
  const sentence = report.sentences[index];
  const main = find("#main");
  main.setAttribute("aria-busy", "true");
  showHeading(sentence, index);
  const [encoder, decoder] = await Promise.all([unpackSide(sentence.encoder), unpackSide(sentence.decoder)]);
  if (index !== shownSentence) return; // another was chosen in the meantime
  forgetSentence();
  const arrays = { encoder, decoder };
  buildStations(sentence, arrays);
  buildAttention(sentence, arrays);
  buildNextPiece(sentence);
  buildBeam(sentence);
  buildLayersSay(sentence);
  main.removeAttribute("aria-busy");
}

function showHeading(sentence, index) {
  const { source_language: source, target_language: target } = report.model;
  const line = (label, text, language, kind) => [
    element("dt", {}, label),
    element("dd", { class: kind, lang: language, dir: "auto" }, text),
  ];
  find("#sentence").replaceChildren(
    ...line("Source", sentence.source, source, "source"),
    ...line("Translation", sentence.translation, target, "translation"),
    ...(sentence.reference === null ? [] : line("Reference", sentence.reference, target, "reference")),
  );
  find("#cut").hidden = !sentence.truncated;
  find("#scores").textContent = `log-probability ${decimal(sentence.log_prob, 4)}, score ${decimal(sentence.score, 4)}, `
    + `${sentence.target_pieces.length} pieces`;
  const count = report.sentences.length;
  find("#sentence-choice").value = index;
  find("#previous").disabled = index === 0;
  find("#next").disabled = index === count - 1;
  document.title = `${shortened(sentence.source, 60)} · jaxformer`;
}

function startSwitcher() {
  const select = find("#sentence-choice");
  select.append(...report.sentences.map((sentence, i) => element(
    "option", { value: i }, `${i + 1}. ${shortened(sentence.source || "(empty)", 64)}`,
  )));
  select.addEventListener("change", () => showSentence(Number(select.value)));
  find("#previous").addEventListener("click", () => showSentence(shownSentence - 1));
  find("#next").addEventListener("click", () => showSentence(shownSentence + 1));
  find("#switcher").hidden = report.sentences.length === 1;
}

function showModel() {
  const model = report.model;
  const facts = [
    [model.source_language, model.target_language].filter(Boolean).join(" → "),
    `${model.num_encoder_layers} + ${model.num_decoder_layers} layers`,
    `${model.num_heads} heads`,
    `width ${model.d_model}, feed-forward ${model.d_ff}`,
    `${model.norm}-norm, ${model.activation}, ${model.positions} positions`,
    `${model.vocab_size} pieces`,
    model.checkpoint ? `checkpoint ${model.checkpoint}` : "",
  ];
  find("#model").textContent = facts.filter(Boolean).join(" · ");
}

// For the console: the report, and its arrays as {shape, values}.
Object.defineProperty(window, "jaxformer", { value: Object.freeze({ report, unpack }) });

startTheme();
showModel();
startSwitcher();
showSentence(0);
