// Shared: the report, the sentence in view, and the two places that several sections follow.

const report = JSON.parse(find("#report").textContent);
const place = { source: 0, step: 0 }; // the piece of the source and the decoding step in view
let followers = [];

/** Call `follow()` now and whenever the place changes. */
function followPlace(follow) {
  followers.push(follow);
  follow();
}

function goTo(changes) {
  Object.assign(place, changes);
  for (const follow of followers) follow();
}

/** A new sentence: the old one's callbacks and drawings are dropped. */
function forgetSentence() {
  followers = [];
  drawings.clear();
  Object.assign(place, { source: 0, step: 0 });
}

/** The layers that the report holds, as people count them; their parameters are `layer_(n - 1)`. */
function layerNumbers(side) {
  const { encoder_layers: encoder, decoder_layers: decoder } = report.model;
  return { encoder, decoder }[side].map((layer) => layer + 1);
}
