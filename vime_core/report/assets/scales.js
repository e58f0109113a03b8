/** Round numbers within [low, high], about `count` of them; whole ones only where `whole`. */
function ticks(low, high, count, whole = false) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  if (whole) step = Math.max(Math.round(step), 1);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step + 0);
  return found;
}

/** Labels of ticks, all with the same number of decimals or all with an exponent. */
function tickLabels(values) {
  const size = Math.max(...values.map(Math.abs));
  const step = values.length > 1 ? values[1] - values[0] : size;
  if (size >= 1e7 || (size > 0 && size < 1e-3)) {
    const digits = Math.max(Math.floor(Math.log10(size)) - Math.floor(Math.log10(step) + 1e-9), 0);
    return values.map((value) => (value === 0 ? "0" : value.toExponential(digits)));
  }
  const decimals = Math.max(-Math.floor(Math.log10(step || 1) + 1e-9), 0);
  return values.map((value) =>
    value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }),
  );
}

/** Room for values on the vertical axis: from zero where that does not flatten the curve. */
function range(values, fromZero) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (!values.length) return [0, 1];
  if (fromZero || (low >= 0 && low < 0.6 * high)) low = Math.min(low, 0);
  if (low === high) {
    const margin = Math.abs(low) * 0.1 || 1;
    return low === 0 ? [0, margin] : [low - margin, high + margin];
  }
  const margin = 0.05 * (high - low);
  return [low === 0 ? 0 : low - margin, high + margin];
}

/** Maps [from] linearly onto [to]. */
function linear(from, to) {
  const factor = (to[1] - to[0]) / (from[1] - from[0]);
  return (value) => to[0] + (value - from[0]) * factor;
}

/** Where the bar of each step ends: halfway to its neighbours. */
function edges(steps) {
  const middle = steps.slice(1).map((step, index) => (step + steps[index]) / 2);
  const first = middle.length ? 2 * steps[0] - middle[0] : steps[0] - 0.5;
  const last = middle.length ? 2 * steps.at(-1) - middle.at(-1) : steps[0] + 0.5;
  return [first, ...middle, last];
}
