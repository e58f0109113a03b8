const METRICS = data("metrics");
const TONES = 18;
const HEIGHT = 230;
const MARGIN = { top: 8, right: 12, bottom: 26, left: 58 };
const FEW_POINTS = 40;

/** First and last step of the whole run, half a step wider on both sides: all charts have the same axis. */
function stepRange() {
  const steps = Object.values(METRICS).flatMap((metric) => [metric.steps[0], metric.steps.at(-1)]);
  const [low, high] = [Math.min(...steps), Math.max(...steps)];
  return [low - 0.5, high + 0.5];
}

/** A chart with its numbers: `steps` of all series together, `points` of each as a map from step to value. */
function withNumbers(chart) {
  const series = chart.series.map((one, index) => {
    const { steps, values } = METRICS[one.key];
    const points = new Map(steps.map((step, row) => [step, values[row]]));
    return { ...one, tone: one.tone || `c${index % TONES}`, points };
  });
  const steps = [...new Set(series.flatMap((one) => [...one.points.keys()]))].sort((a, b) => a - b);
  if (chart.total) series.push(rest(chart, series));
  return { ...chart, series, steps };
}

/** What the parts do not add up to. */
function rest(chart, series) {
  const { steps, values } = METRICS[chart.total];
  const sum = (step) => series.reduce((total, one) => total + (one.points.get(step) || 0), 0);
  const points = new Map(steps.map((step, row) => [step, Math.max(values[row] - sum(step), 0)]));
  return { key: chart.total, label: "not measured", about: "The rest of the step.", tone: "rest", points };
}

/** One chart in its frame: heading, legend, drawing, numbers on request. */
function chartFigure(chart, ...controls) {
  const numbers = withNumbers(chart);
  const svg = drawn("svg", { tabindex: 0, role: "img", "aria-label": summary(numbers) });
  const box = element("div", { class: "reading-box", role: "status" });
  const figure = element(
    "figure",
    { class: "chart" },
    element("div", { class: "chart-head" }, element("h3", {}, chart.title), element("span", { class: "unit" }, chart.unit), ...controls),
    legend(numbers),
    svg,
    box,
    numberTable(numbers),
  );
  const draw = () => {
    const width = svg.clientWidth || 560;
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.setAttribute("height", HEIGHT);
    drawChart(svg, numbers, width);
  };
  new ResizeObserver(draw).observe(svg);
  addReading(figure, svg, box, numbers);
  return figure;
}

/** A chart in words. */
function summary({ title, unit, series, steps }) {
  const lasts = series.map((one) => `${one.label} ${shown(last(one))}`);
  return `${title}, ${unit}, over steps ${steps[0]} to ${steps.at(-1)}. Last values: ${lasts.join(", ")}. Arrow keys read steps.`;
}

function last(series) {
  return [...series.points.values()].at(-1);
}

function legend({ series, stacked }) {
  const entries = series.map((one, index) =>
    element(
      "li",
      { title: one.about ? `${one.key}: ${one.about}` : one.key },
      element("span", { class: stacked ? "swatch" : `swatch line ${dash(index)}`, tone: one.tone }),
      one.label,
      element("span", { class: "last" }, shown(last(one))),
    ),
  );
  return element("ul", { class: "legend" }, ...entries);
}

/** Neighbouring lines differ by more than their colour. */
function dash(index) {
  return index % 2 ? "dashed" : "solid";
}

function drawChart(svg, numbers, width) {
  const lines = numbers.stacked ? [] : numbers.series.flatMap((one) => [...one.points.values()]);
  const layers = numbers.stacked ? stack(numbers) : [];
  const values = [...lines, ...layers.flatMap((layer) => layer.tops)].filter((value) => value !== null);
  const x = linear(stepRange(), [MARGIN.left, width - MARGIN.right]);
  const y = linear(range(values, numbers.stacked), [HEIGHT - MARGIN.bottom, MARGIN.top]);
  const shapes = numbers.stacked
    ? layers.map((layer) => areaShape(layer, numbers.steps, x, y))
    : numbers.series.flatMap((one, index) => curveShapes(one, index, x, y));
  const cursor = drawn("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
  svg.replaceChildren(...axes(width, x, y, range(values, numbers.stacked)), ...shapes, cursor);
  svg.place = x;
}

/** Grid, ticks and labels. */
function axes(width, x, y, valueRange) {
  const bottom = HEIGHT - MARGIN.bottom;
  const values = ticks(...valueRange, 6);
  const labels = tickLabels(values);
  const rows = values.flatMap((value, index) => [
    drawn("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
    drawn("text", { class: "tick value", x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, labels[index]),
  ]);
  const [low, high] = stepRange();
  const columns = ticks(Math.ceil(low), Math.floor(high), Math.max(width / 90, 2), true).map((step) =>
    drawn("text", { class: "tick step", x: x(step), y: bottom + 18, "text-anchor": "middle" }, step.toLocaleString("en-US")),
  );
  const name = drawn("text", { class: "tick", x: MARGIN.left - 8, y: bottom + 18, "text-anchor": "end" }, "step");
  const base = drawn("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom });
  return [...rows, base, name, ...columns];
}

/** A line with gaps where a value was not finite, and points where there are few or where one stands alone. */
function curveShapes({ points, tone, key }, index, x, y) {
  const runs = [[]];
  for (const [step, value] of points) {
    if (value === null) runs.push([]);
    else runs.at(-1).push([x(step), y(value)]);
  }
  const text = (run) => run.map(([left, top]) => `${left.toFixed(2)},${top.toFixed(2)}`).join("L");
  const path = runs.filter((run) => run.length > 1).map((run) => `M${text(run)}`).join("");
  const dots = points.size <= FEW_POINTS ? runs.flat() : runs.filter((run) => run.length === 1).flat();
  return [
    drawn("path", { class: `curve ${dash(index)}`, d: path, tone, "data-key": key }),
    ...dots.map(([cx, cy]) => drawn("circle", { class: "point", cx, cy, r: 3, tone })),
  ];
}

/** The layers of a stack, from below: lower and upper bounds by step. */
function stack({ series, steps }) {
  let bottoms = steps.map(() => 0);
  return series.map((one) => {
    const tops = steps.map((step, row) => bottoms[row] + (one.points.get(step) || 0));
    const layer = { ...one, bottoms, tops };
    bottoms = tops;
    return layer;
  });
}

/** A layer as bars, one a step, without gaps between them. */
function areaShape({ bottoms, tops, tone, key }, steps, x, y) {
  const sides = edges(steps).map((edge) => x(edge).toFixed(2));
  const there = tops.map((top, row) => `L${sides[row]},${y(top).toFixed(2)}L${sides[row + 1]},${y(top).toFixed(2)}`);
  const back = bottoms.map((low, row) => `L${sides[row + 1]},${y(low).toFixed(2)}L${sides[row]},${y(low).toFixed(2)}`);
  const outline = `${there.join("")}${back.reverse().join("")}`;
  return drawn("path", { class: "area", d: `M${outline.slice(1)}Z`, tone, "data-key": key });
}

/** Shows the numbers of a step under the pointer, or of the step that arrow keys lead to. */
function addReading(figure, svg, box, { steps, series }) {
  let row = steps.length - 1;
  const show = (next) => {
    row = Math.min(Math.max(next, 0), steps.length - 1);
    readStep(figure, svg, box, steps[row], series);
  };
  const hide = () => figure.classList.remove("reading");
  svg.addEventListener("pointermove", (event) => {
    const left = event.clientX - svg.getBoundingClientRect().left;
    const away = steps.map((step) => Math.abs(svg.place(step) - left));
    show(away.indexOf(Math.min(...away)));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const target = { ArrowLeft: row - 1, ArrowRight: row + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (event.key === "Escape") hide();
    if (target === undefined) return;
    event.preventDefault();
    show(target);
  });
}

function readStep(figure, svg, box, step, series) {
  const rows = series
    .filter((one) => one.points.has(step))
    .map((one) =>
      element(
        "tr",
        {},
        element("td", {}, element("span", { class: "swatch", tone: one.tone })),
        element("td", {}, one.label),
        element("td", {}, shown(one.points.get(step))),
      ),
    );
  const place = svg.place(step);
  const cursor = svg.querySelector(".cursor");
  cursor.setAttribute("x1", place);
  cursor.setAttribute("x2", place);
  box.replaceChildren(element("strong", {}, `step ${step}`), element("table", {}, element("tbody", {}, ...rows)));
  const [frame, plot] = [figure.getBoundingClientRect(), svg.getBoundingClientRect()];
  const left = plot.left - frame.left + place;
  const onTheRight = left > frame.width / 2;
  box.style.left = onTheRight ? "auto" : `${left + 10}px`;
  box.style.right = onTheRight ? `${frame.width - left + 10}px` : "auto";
  box.style.top = `${plot.top - frame.top + 4}px`;
  figure.classList.add("reading");
}

/** The numbers of a chart, made when they are asked for. */
function numberTable({ steps, series }) {
  const frame = element("div", { class: "numbers" });
  const fill = () => {
    if (frame.childElementCount) return;
    const head = ["step", ...series.map((one) => one.label)].map((text) => element("th", { scope: "col" }, text));
    const rows = steps.map((step) => {
      const cells = series.map((one) => element("td", {}, one.points.has(step) ? shown(one.points.get(step)) : ""));
      return element("tr", {}, element("th", { scope: "row" }, String(step)), ...cells);
    });
    frame.append(element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
  };
  return element("details", { ontoggle: fill }, element("summary", {}, "Numbers"), frame);
}

/** A chart whose metric the reader chooses. */
function anyMetric(keys) {
  const place = element("div");
  const choice = element(
    "select",
    { "aria-label": "Metric", onchange: () => draw(choice.value) },
    ...keys.map((key) => element("option", { value: key }, key)),
  );
  const draw = (key) => {
    const series = [{ key, label: key, about: METRICS[key].about, tone: null }];
    place.replaceChildren(chartFigure({ title: "Any metric", unit: "", stacked: false, total: null, series }, choice));
  };
  draw(keys[0]);
  return place;
}

function showCharts(place) {
  const keys = Object.keys(METRICS).sort();
  if (!keys.length) {
    place.replaceWith(element("p", {}, "There are no metrics yet: no step is finished."));
    return;
  }
  place.append(...data("charts").map((chart) => chartFigure(chart)), anyMetric(keys));
}

showCharts(document.getElementById("charts"));
