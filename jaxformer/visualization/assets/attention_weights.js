// Attention weights: which array a view shows, and pieces joined into words.

/** The three kinds: their array, and the pieces of their rows (queries) and columns (keys). */
const ATTENTION_KINDS = {
  encoder: {
    label: "Encoder",
    title: "Encoder self-attention",
    note: "Each piece of the source attends to all pieces of the source.",
    array: (arrays) => arrays.encoder.attention,
    side: "encoder",
    rows: (sentence) => sentence.source_pieces,
    columns: (sentence) => sentence.source_pieces,
  },
  decoder: {
    label: "Decoder",
    title: "Decoder self-attention",
    note: "Each piece of the translation attends to itself and to those before it.",
    array: (arrays) => arrays.decoder.self_attention,
    side: "decoder",
    rows: (sentence) => sentence.decoder_pieces,
    columns: (sentence) => sentence.decoder_pieces,
  },
  cross: {
    label: "Decoder → encoder",
    title: "Cross-attention",
    note: "Each piece of the translation attends to the source.",
    array: (arrays) => arrays.decoder.cross_attention,
    side: "decoder",
    rows: (sentence) => sentence.decoder_pieces,
    columns: (sentence) => sentence.source_pieces,
  },
};

/** Pieces as {text, members}: one a piece, or one a word with its pieces. */
function groupPieces(pieces, joined) {
  if (!joined) return pieces.map((piece, i) => ({ text: piece.text, members: [i] }));
  const groups = [];
  pieces.forEach((piece, i) => {
    const last = groups.at(-1);
    if (last?.word === piece.word) {
      last.text += piece.text;
      last.members.push(i);
    } else {
      groups.push({ word: piece.word, text: piece.text, members: [i] });
    }
  });
  return groups.map(({ text, members }) => ({ text: text.replace(/^▁+(?=.)/u, ""), members }));
}

/**
 * Weights [rows, columns] of one head between groups of pieces.
 *
 * A word receives what its pieces receive (their sum) and looks as its pieces do on average (their
 * mean), so the rows still add up to one.
 */
function groupWeights(array, layer, head, rows, columns) {
  const matrix = row(array, layer, head);
  const width = array.shape[3];
  const weights = new Float32Array(rows.length * columns.length);
  rows.forEach((query, r) => columns.forEach((key, c) => {
    let sum = 0;
    for (const i of query.members) for (const j of key.members) sum += matrix[i * width + j];
    weights[r * columns.length + c] = sum / query.members.length;
  }));
  return weights;
}

/** What the attention section shows now: groups, and the weights of every head of the layer. */
function attentionView(sentence, arrays, chosen) {
  const kind = ATTENTION_KINDS[chosen.kind];
  const array = kind.array(arrays);
  const byChoice = chosen.byChoice && kind.side === "decoder";
  const rows = groupPieces(byChoice ? sentence.target_pieces : kind.rows(sentence), chosen.joined);
  const columns = groupPieces(kind.columns(sentence), chosen.joined);
  const layer = chosen.layers[chosen.kind];
  const heads = Array.from({ length: array.shape[1] }, (_, head) => (
    groupWeights(array, layer, head, rows, columns)));
  return { kind, array, layer, rows, columns, heads };
}

/** The mean weight over some heads. */
function meanWeight(view, heads, r, c) {
  const at = r * view.columns.length + c;
  let sum = 0;
  for (const head of heads) sum += view.heads[head][at];
  return heads.length ? sum / heads.length : 0;
}

/** The column with the largest weight in a row of one head. */
function strongest(view, head, r) {
  const width = view.columns.length;
  let best = 0;
  for (let c = 1; c < width; c += 1) {
    if (view.heads[head][r * width + c] > view.heads[head][r * width + best]) best = c;
  }
  return best;
}

/** The row with the largest weight in a column of one head. */
function strongestRow(view, head, c) {
  const width = view.columns.length;
  let best = 0;
  for (let r = 1; r < view.rows.length; r += 1) {
    if (view.heads[head][r * width + c] > view.heads[head][best * width + c]) best = r;
  }
  return best;
}
