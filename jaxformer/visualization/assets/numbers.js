// Numbers: unpacking the arrays of the report, and writing numbers for people.

const unpacked = new WeakMap();

/** Promise of {shape, values: Float32Array} of a packed array; unpacked once. */
function unpack(packed) {
  if (!unpacked.has(packed)) unpacked.set(packed, inflate(packed));
  return unpacked.get(packed);
}

async function inflate(packed) {
  const { shape, dtype, scale, data } = packed;
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = shape.reduce((product, size) => product * size, 1);
  if (planes.length !== 4 * count) {
    throw new Error(`an array of shape [${shape}] holds ${planes.length} bytes, not ${4 * count}`);
  }
  return { shape, values: dtype === "f32" ? floats(planes, count) : fractions(planes, count, scale) };
}

/** The four bytes of number i stand in four planes, at i, count + i, ...: lowest byte first. */
function joinBytes(planes, count) {
  const raw = new Uint32Array(count);
  for (let i = 0; i < count; i += 1) {
    raw[i] = planes[i] | planes[count + i] << 8 | planes[2 * count + i] << 16 | planes[3 * count + i] << 24;
  }
  return raw;
}

function floats(planes, count) {
  return new Float32Array(joinBytes(planes, count).buffer);
}

function fractions(planes, count, scale) {
  const raw = joinBytes(planes, count);
  const values = new Float32Array(count);
  for (let i = 0; i < count; i += 1) values[i] = raw[i] * scale;
  return values;
}

/** All arrays of one side of a sentence, by name; null where the model has none. */
async function unpackSide(side) {
  const names = Object.keys(side).filter((name) => side[name]?.data !== undefined);
  const arrays = await Promise.all(names.map((name) => unpack(side[name])));
  return Object.fromEntries(names.map((name, i) => [name, arrays[i]]));
}

/** The numbers at the leading indices of an array, as a view: row(x, 2) of [S, D] is [D]. */
function row(array, ...indices) {
  const size = array.shape.slice(indices.length).reduce((product, n) => product * n, 1);
  let start = 0;
  indices.forEach((index, axis) => { start = start * array.shape[axis] + index; });
  return array.values.subarray(start * size, (start + 1) * size);
}

/** A number with a real minus sign; very small ones are not shown as zero. */
function decimal(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  const rounded = value.toFixed(digits);
  const text = Number(rounded) === 0 && value !== 0 ? value.toExponential(1) : rounded;
  return text.replaceAll("-", "−");
}

/** A probability in percent, with the digits that tell it from its neighbours. */
function percent(probability) {
  const value = probability * 100;
  if (value > 0 && value < 0.1) return "<0.1%";
  if (value > 99.9 && probability < 1) return ">99.9%";
  return `${value.toFixed(value < 99.95 ? 1 : 0)}%`;
}

/** The size that 99 of 100 numbers do not exceed: a few large ones would leave the rest pale. */
function usualMagnitude(arrays) {
  const sizes = Float32Array.from(arrays.flatMap(({ values }) => {
    const step = Math.ceil(values.length / 50_000); // a sample is enough for a colour scale
    return Array.from({ length: Math.floor(values.length / step) }, (_, i) => Math.abs(values[i * step]));
  })).sort();
  return sizes[Math.floor(sizes.length * 0.99)] || 1;
}

function euclideanNorm(vector) {
  return Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
}
