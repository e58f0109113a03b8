const PAGE_ROWS = 20;
const PREVIEW = 160;
const ALL = "";

/** The samples as objects, each with its prompt. */
function loadSamples() {
  const { fields, prompts, rows } = data("samples");
  return rows.map((row) => {
    const sample = Object.fromEntries(fields.map((field, index) => [field, row[index]]));
    return { ...sample, status: sample.status || "none", prompt: prompts[sample.prompt] };
  });
}

/** All text of a sample that the search looks at, made once. */
function searchable(sample) {
  if (sample.text === undefined) {
    const messages = sample.prompt.messages.map((message) => message.content);
    const texts = [...messages, sample.prompt.id, sample.prompt.label, sample.response, sample.extracted, sample.detail];
    sample.text = texts.filter(Boolean).join("\n").toLowerCase();
  }
  return sample.text;
}

/** The table of samples with what narrows it down. */
class SampleBrowser {
  constructor(place, samples) {
    this.samples = samples;
    this.page = 0;
    this.step = this.choice("Step", distinct(samples, "step"));
    this.status = this.choice("Verdict", distinct(samples, "status"));
    this.search = element("input", { type: "search", oninput: () => this.show(0) });
    this.count = element("p", { role: "status" });
    this.body = element("tbody");
    this.back = element("button", { type: "button", onclick: () => this.show(this.page - 1) }, "Previous");
    this.next = element("button", { type: "button", onclick: () => this.show(this.page + 1) }, "Next");
    place.append(this.controls(), this.table());
    this.show(0);
  }

  choice(name, values) {
    const options = values.map((value) => element("option", { value }, String(value)));
    const all = element("option", { value: ALL }, "all");
    return element("select", { onchange: () => this.show(0), "data-name": name }, all, ...options);
  }

  controls() {
    return element(
      "div",
      { class: "controls" },
      element("label", {}, "Step", this.step),
      element("label", {}, "Verdict", this.status),
      element("label", { class: "wide" }, "Search prompts, responses, answers", this.search),
      this.back,
      this.next,
      this.count,
    );
  }

  table() {
    const columns = [
      ["", "3.2rem"], ["Step", "3.6rem", "number"], ["Prompt", "9rem"], ["Verdict", "8rem"], ["Score", "4.4rem", "number"],
      ["Advantage", "6rem", "number"], ["Tokens", "4.6rem", "number"], ["Finish", "4.6rem"], ["Answer read", "8rem"],
      ["Response", "auto"],
    ];
    const heads = columns.map(([name, width, kind]) => {
      const head = element("th", { scope: "col", class: kind || null }, name);
      head.style.width = width;
      return head;
    });
    const table = element("table", { class: "samples" }, element("thead", {}, element("tr", {}, ...heads)), this.body);
    return element("div", { class: "table-frame" }, table);
  }

  /** Fill the table with a page of the samples that fit. */
  show(page) {
    const wanted = this.search.value.trim().toLowerCase();
    const fitting = this.samples.filter(
      (sample) =>
        (this.step.value === ALL || String(sample.step) === this.step.value) &&
        (this.status.value === ALL || sample.status === this.status.value) &&
        (!wanted || searchable(sample).includes(wanted)),
    );
    const pages = Math.max(Math.ceil(fitting.length / PAGE_ROWS), 1);
    this.page = Math.min(Math.max(page, 0), pages - 1);
    const start = this.page * PAGE_ROWS;
    const rows = fitting.slice(start, start + PAGE_ROWS);
    this.body.replaceChildren(...rows.flatMap((sample) => sampleRows(sample)));
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page === pages - 1;
    const place = rows.length ? `${start + 1} to ${start + rows.length} of ` : "";
    this.count.textContent = `${place}${fitting.length.toLocaleString("en-US")} samples`;
  }
}

function distinct(samples, field) {
  return [...new Set(samples.map((sample) => sample[field]))];
}

/** The row of a sample, and the one below that opens. */
function sampleRows(sample) {
  const detail = element("tr", { hidden: true }, element("td", { colspan: 10 }));
  const toggle = element("button", { type: "button", "aria-expanded": "false", "aria-label": "Show the whole sample" }, "+");
  toggle.addEventListener("click", () => {
    detail.hidden = !detail.hidden;
    toggle.setAttribute("aria-expanded", String(!detail.hidden));
    toggle.textContent = detail.hidden ? "+" : "\u2212";
    if (!detail.firstChild.childElementCount) detail.firstChild.append(sampleDetail(sample));
  });
  const preview = (text) => element("td", { class: "preview" }, visible((text || "").slice(0, PREVIEW)));
  const number = (value) => element("td", { class: "number" }, value);
  const row = element(
    "tr",
    {},
    element("td", {}, toggle),
    number(String(sample.step)),
    preview(sample.prompt.id),
    element("td", {}, element("span", { class: "verdict", tone: sample.status }, sample.status)),
    number(shown(sample.score)),
    number(shown(sample.advantage)),
    number(shown(sample.tokens)),
    element("td", {}, sample.finish),
    preview(sample.extracted),
    preview(sample.response),
  );
  return [row, detail];
}

/** Everything about a sample. */
function sampleDetail(sample) {
  const { prompt } = sample;
  const facts = [
    ["Prompt", `${prompt.id}, sample ${sample.index}${prompt.source ? `, from ${prompt.source}` : ""}`],
    ["Reference answer", prompt.label],
    ["Answer read", sample.extracted],
    ["Verdict", sample.detail ? `${sample.status}: ${sample.detail}` : sample.status],
    ["Advantage", sample.advantage === null ? "not trained on" : `${shown(sample.advantage)} (mean over tokens)`],
  ];
  const list = facts.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, visible(value === null ? "-" : value))),
  );
  const messages = prompt.messages.flatMap((message) => textBlock(message.role, message.content));
  const tokens = messages.length ? messages : textBlock("prompt", `${prompt.tokens} tokens, without text`);
  return element("div", { class: "detail" }, element("dl", { class: "facts" }, ...list), ...tokens, ...textBlock("response", sample.response));
}

function textBlock(name, text) {
  return [element("h4", {}, name), element("pre", { dir: "auto" }, visible(text))];
}

function showSamples(place) {
  const samples = loadSamples();
  if (samples.length) new SampleBrowser(place, samples);
}

showSamples(document.getElementById("browser"));
