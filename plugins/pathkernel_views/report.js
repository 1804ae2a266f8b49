"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const LARGEST = 2; // times the size in print, on the screen
  const LETTERS = 8; // points of most letters of a chart
  const LEGIBLE = 11; // pixels that these have at least on a narrow screen
  const PAPER = 660; // pixels of a printed page, the narrower of A4 and Letter, without margins
  const chosen = {}; // by the names of switches, which turn in all charts

  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  const download = (name, text) => {
    const url = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv;charset=utf-8" }));
    make("a", { href: url, download: `${name}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };

  // Vega's own reader of CSV compiles code, which the page forbids
  const parse = (text) => {
    const rows = [[]];
    for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^,\n"]*))(,|\n|$)/g)) {
      rows.at(-1).push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
      if (end === "\n") rows.push([]);
      else if (end === "") break;
    }
    return rows.filter((row) => row.length > 1 || row[0] !== "");
  };

  const records = (text, kinds = {}) => {
    const [names, ...rows] = parse(text);
    const value = (cell, name) => (kinds[name] !== "number" ? cell : cell === "" ? null : Number(cell));
    return rows.map((row) => Object.fromEntries(names.map((name, n) => [name, value(row[n], name)])));
  };

  /** Replaces all CSV text in a part of a specification by values, and collects it in texts. */
  const read = (part, datasets, texts) => {
    for (const [key, source] of Object.entries(part))
      if (source?.format?.type === "csv") {
        const text = source.values ?? datasets[source.name];
        texts.add(text);
        part[key] = { values: records(text, source.format.parse) };
      } else if (source && typeof source === "object") read(source, datasets, texts);
  };

  const tableOf = (text) => {
    const [names, ...rows] = parse(text).slice(0, 2001);
    const cells = (row, tag) => make("tr", {}, ...row.map((cell) => make(tag, { textContent: cell })));
    const body = make("tbody", {}, ...rows.map((row) => cells(row, "td")));
    return make("table", {}, make("thead", {}, cells(names, "th")), body);
  };

  /** Puts panels below each other, each with the axes that it shared; keys are above them. */
  const stack = (part) => {
    if (part.columns) part.columns = 1;
    if (part.usermeta?.stacked) part.vconcat = [part.usermeta.stacked, ...part.vconcat.slice(0, -1)];
    for (const panel of part.vconcat ?? part.concat ?? part.layer ?? []) stack(panel);
    for (const { axis, legend } of Object.values(part.encoding ?? {})) {
      if (axis?.title === null && axis.labels === false) {
        delete axis.title;
        delete axis.labels;
      }
      if (legend?.orient === "right")
        Object.assign(legend, { orient: "top", direction: "horizontal", gradientLength: 110 });
    }
  };

  class Chart {
    constructor(element) {
      this.element = element;
      this.spec = page.charts[element.dataset.chart];
      this.texts = new Set();
      read(this.spec, this.spec.datasets, this.texts);
      this.controls = make("div", { className: "controls" });
      this.plot = make("div", { className: "plot", tabIndex: 0, role: "group" });
      this.plot.ariaLabel = "Chart: arrow keys go from value to value";
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.readout = make("output", { className: "note" });
      const scroll = make("div", { className: "scroll", tabIndex: 0, role: "group", ariaLabel: "Values" });
      const details = make("details", {}, make("summary", { textContent: "Values as a table" }), scroll);
      details.addEventListener("toggle", () => scroll.replaceChildren(...[...this.texts].map(tableOf)), { once: true });
      const save = make("button", { type: "button", textContent: "Download CSV" });
      save.addEventListener("click", () => download(element.dataset.name, [...this.texts].join("\n")));
      this.setting = make("p", { className: "setting", ariaLive: "polite" });
      element.append(this.controls, this.setting, this.plot, this.readout, details, save);
    }
    draw() {
      this.drawn ??= this.embed().catch((error) => {
        this.plot.textContent = `Not drawn: ${error.message}`;
        console.error(error);
      });
    }
    async embed() {
      for (const parameter of this.spec.params ?? [])
        if (parameter.bind?.options.includes(chosen[parameter.name])) parameter.value = chosen[parameter.name];
      const isNarrow = this.plot.clientWidth < 500;
      if (isNarrow) stack(this.spec);
      const settings = { actions: false, renderer: "svg", ast: true, defaultStyle: false, bind: this.controls };
      this.view = (await vegaEmbed(this.plot, this.spec, settings)).view;
      for (const { name } of this.spec.params ?? [])
        this.view.addSignalListener(name, (_, value) => choose(name, value));
      for (const { name } of this.spec.params ?? []) // turned while this chart was drawn
        if (name in chosen) this.turn(name, chosen[name]);
      this.clean();
      const svg = this.plot.querySelector("svg");
      const { title, description } = this.element.dataset;
      const about = (tag, text) => {
        const part = document.createElementNS("http://www.w3.org/2000/svg", tag);
        part.textContent = text;
        return part;
      };
      svg.prepend(about("title", title), about("desc", description));
      svg.setAttribute("aria-label", `${title}. ${description}`);
      svg.style.maxWidth = `${svg.viewBox.baseVal.width * LARGEST}px`;
      // what is too wide scrolls in its box
      if (isNarrow) svg.style.minWidth = `${(svg.viewBox.baseVal.width * LEGIBLE) / LETTERS}px`;
      svg.style.setProperty("--points", `${svg.viewBox.baseVal.width}pt`);
    }
    key(event) {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const marks = [...this.plot.querySelectorAll('[role="graphics-symbol"]:not([aria-roledescription="line mark"])')];
      if (!step || !marks.length) return;
      event.preventDefault();
      this.index = ((this.index ?? (step > 0 ? -1 : 0)) + step + marks.length) % marks.length;
      this.readout.textContent = marks[this.index].ariaLabel;
    }
    turn(name, value) {
      const parameter = this.spec.params?.find((other) => other.name === name);
      if (!this.view || !parameter?.bind?.options.includes(value)) return;
      this.view.signal(name, value).runAsync().then(() => this.clean());
    }
    /** Names the values of the switches; hides groups without marks from screen readers. */
    clean() {
      const settings = this.spec.usermeta?.settings ?? [];
      const value = (part) => (part.parameter ? this.view.signal(part.parameter) : part.value);
      this.setting.textContent = settings.map((part) => part.prefix + value(part)).join(", ");
      for (const group of this.plot.querySelectorAll("g[role]:empty")) group.removeAttribute("role");
    }
  }

  const charts = [...document.querySelectorAll("[data-chart]")].map((element) => new Chart(element));
  const choose = (name, value) => {
    if (chosen[name] === value) return;
    chosen[name] = value;
    for (const chart of charts) chart.turn(name, value);
  };
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries)
        if (isIntersecting) charts.find((chart) => chart.element === target).draw();
    },
    { rootMargin: "600px" }
  );
  for (const chart of charts) observer.observe(chart.element);
  // all are drawn before somebody prints: a browser does not wait for it then
  const drawAll = async () => {
    for (const chart of charts) {
      await new Promise((next) => (window.requestIdleCallback ?? setTimeout)(next));
      await chart.draw();
    }
  };
  addEventListener("load", drawAll);

  const closed = [];
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details.card:not([open])")) {
      details.open = true;
      closed.push(details);
    }
    for (const table of document.querySelectorAll(".scroll table"))
      table.style.setProperty("--shrink", Math.min(1, PAPER / table.scrollWidth));
  });
  addEventListener("afterprint", () => {
    for (const details of closed.splice(0)) details.open = false;
  });

  for (const button of document.querySelectorAll("[data-table]"))
    button.addEventListener("click", () => download(button.dataset.name, page.tables[button.dataset.table]));

  const root = document.documentElement, prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const paint = (theme) => {
    root.dataset.theme = theme;
    root.style.colorScheme = theme;
  };
  paint(prefersDark.matches ? "dark" : "light");
  prefersDark.addEventListener("change", () => paint(prefersDark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => paint(root.dataset.theme === "dark" ? "light" : "dark"));
})();
