"use strict";
// Draws the charts of a report, and lets readers point at values and choose what is shown.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const MOST_ROWS = 500; // of a table in the page; the CSV has all
  const DRAWN_PATHS = 8;
  const COLOURS = { below: 0, low: 0, zero: 0, high: 0, above: 0 };

  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const shown = (value) => {
    if (typeof value !== "number") return String(value);
    if (Number.isNaN(value)) return "–";
    return String(Number(value.toPrecision(4))).replace("-", "−");
  };
  const missing = (value) => typeof value === "number" && !Number.isFinite(value);
  const extent = (values) => {
    let [lowest, highest] = [Infinity, -Infinity];
    for (const value of values) {
      if (value < lowest) lowest = value;
      if (value > highest) highest = value;
    }
    return [lowest, highest];
  };
  const failed = (error) => `This chart could not be drawn (${error.message}).`;
  const exact = (value) =>
    typeof value === "number" ? (Number.isNaN(value) ? "" : Number(value.toPrecision(7))) : value;

  // ---- data ------------------------------------------------------------------------------------
  const block = (variable, place) => {
    variable.read ??= {};
    return (variable.read[place] ??= new Float32Array(
      Uint8Array.from(atob(variable.blocks[place]), (byte) => byte.charCodeAt(0)).buffer
    ));
  };
  const size = (chart, dim) => chart.dims[dim].labels.length;
  const label = (chart, dim, at) => chart.dims[dim].labels[at[dim]];
  const place = (chart, dims, at) => dims.reduce((sum, dim) => sum * size(chart, dim) + at[dim], 0);
  const read = (chart, name, at) => {
    const variable = chart.variables[name];
    const held = block(variable, variable.index[place(chart, variable.chosen, at)]);
    return held[place(chart, variable.rest, at)];
  };
  function* combinations(chart, dims, at = {}) {
    if (!dims.length) return yield { ...at };
    const [dim, ...rest] = dims;
    for (let n = 0; n < size(chart, dim); n++) yield* combinations(chart, rest, { ...at, [dim]: n });
  }
  const rowsOf = (chart, chosen) => {
    const { x, y, low, high, series, panel } = chart.roles;
    const dims = Object.keys(chart.dims).filter((dim) => !chart.switches.includes(dim));
    const rows = [];
    for (const at of combinations(chart, dims, chosen)) {
      const value = read(chart, chart.value, at);
      const of = (role) =>
        role in chart.dims ? label(chart, role, at) : read(chart, role, at);
      const row = { at, value, x: of(x), y: of(y), series: "" };
      if (missing(value) || missing(row.x) || missing(row.y)) continue;
      if (chart.mark === "heatmap") Object.assign(row, { x: String(row.x), y: String(row.y) });
      if (low && !missing(of(low)) && !missing(of(high)))
        Object.assign(row, { low: of(low), high: of(high) });
      if (series) {
        row.series = String(label(chart, series, at));
        row.dashed = chart.series[at[series]].dashed;
      }
      if (panel) row.panel = at[panel];
      rows.push(row);
    }
    return rows;
  };

  // Paths as lines through the heads of every layer, the strongest first.
  const pathRows = (chart, rows) => {
    const heads = [];
    for (const name of chart.dims.path.labels)
      name.split("-").forEach((head, layer) => {
        heads[layer] ??= [];
        if (!heads[layer].includes(head)) heads[layer].push(head);
      });
    heads.forEach((each) =>
      each.sort((a, b) => (a === "skip") - (b === "skip") || Number(a) - Number(b))
    );
    const across = (layer, head) =>
      (heads[layer].indexOf(head) - (heads[layer].length - 1) / 2) / heads[layer].length;
    const strongest = [...rows].sort((a, b) => b.value - a.value).slice(0, DRAWN_PATHS);
    const corners = strongest.flatMap((row, rank) => {
      const aside = ((rank - (strongest.length - 1) / 2) / DRAWN_PATHS) * 0.07;
      const parts = row.x.split("-");
      const places = [0, ...parts.map((head, layer) => across(layer, head)), 0];
      return places.map((x, y) => ({ ...row, path: row.x, x: x + aside, y, rank }));
    });
    const nodes = heads.flatMap((each, layer) =>
      each.map((head) => ({ node: head, x: across(layer, head), y: layer + 1 }))
    );
    const ends = [0, heads.length + 1].map((y) => ({ node: " ", x: 0, y }));
    return { rows: [...corners, ...nodes, ...ends], strongest };
  };

  const words = (chart, row) => {
    const dims = Object.keys(row.at).filter((dim) => !chart.switches.includes(dim));
    const where = dims
      .filter((dim) => dim !== chart.roles.series && dim !== chart.roles.panel)
      .map((dim) => `${chart.dims[dim].title} ${shown(label(chart, dim, row.at))}`);
    for (const dim of [chart.roles.series, chart.roles.panel])
      if (dim) where.unshift(String(label(chart, dim, row.at)));
    const { low, high } = chart.roles;
    const values = Object.keys(chart.variables)
      .filter((name) => name !== low && name !== high)
      .map((name) => `${chart.variables[name].title} = ${shown(read(chart, name, row.at))}`);
    const range = low && row.high > row.low ? ` (${shown(row.low)} to ${shown(row.high)})` : "";
    return `${where.join(", ")}. ${values.join(", ")}${range}`;
  };

  // ---- tables and files --------------------------------------------------------------------------
  const download = (name, text) => {
    const link = make("a", {
      href: URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" })),
      download: `${name}.csv`,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const field = (value) => {
    const text = String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = (chart) => {
    const dims = Object.keys(chart.dims);
    const names = Object.keys(chart.variables);
    const lines = [[...dims, ...names]];
    for (const at of combinations(chart, dims)) {
      const values = names.map((name) => exact(read(chart, name, at)));
      if (values.some((value) => value !== ""))
        lines.push([...dims.map((dim) => label(chart, dim, at)), ...values]);
    }
    return lines.map((line) => line.map(field).join(",")).join("\n") + "\n";
  };
  const tableOf = (chart, rows) => {
    const dims = Object.keys(chart.dims).filter((dim) => !chart.switches.includes(dim));
    const names = Object.keys(chart.variables);
    const titles = [...dims.map((d) => chart.dims[d].title), ...names.map((n) => chart.variables[n].title)];
    const head = make("tr", {}, ...titles.map((text) => make("th", { scope: "col", textContent: text })));
    const body = rows.slice(0, MOST_ROWS).map((row) =>
      make(
        "tr",
        {},
        ...dims.map((dim) => make("td", { textContent: shown(label(chart, dim, row.at)) })),
        ...names.map((name) =>
          make("td", { className: "number", textContent: shown(read(chart, name, row.at)) })
        )
      )
    );
    const caption = make("caption", {
      textContent:
        rows.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${rows.length} rows; the CSV has all.` : "What is shown now.",
    });
    return make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...body));
  };

  // ---- charts ------------------------------------------------------------------------------------
  const tip = make("div", { className: "tip", hidden: true, ariaHidden: "true" });
  document.body.append(tip);
  const state = {};
  const figures = [];

  class Panel {
    constructor(figure, name) {
      this.figure = figure;
      const { chart } = figure;
      this.element = make("div", { className: `plot ${chart.mark}`, tabIndex: 0 });
      this.element.setAttribute("role", "application");
      const title = name ? `${chart.title}, ${name}` : chart.title;
      this.element.setAttribute("aria-label", `${title}. Arrow keys go from value to value.`);
      this.element.setAttribute("aria-describedby", figure.readout.id);
      this.canvas = make("div", { className: "canvas", ariaHidden: "true" });
      this.ring = make("div", { className: "ring", hidden: true });
      this.element.append(this.canvas, this.ring);
      this.element.addEventListener("pointermove", (event) => this.point(event));
      this.element.addEventListener("pointerdown", (event) => this.point(event));
      this.element.addEventListener("pointerleave", () => this.leave());
      this.element.addEventListener("blur", () => this.leave());
      this.element.addEventListener("keydown", (event) => this.key(event));
      this.width = 0;
    }
    async draw(rows, ends) {
      this.rows = rows;
      this.leave();
      const { chart } = this.figure;
      this.width = this.canvas.clientWidth;
      const square = chart.mark === "heatmap" || chart.mark === "paths";
      const height = square ? Math.min(this.width * 0.88, 560) : Math.max(240, Math.min(this.width * 0.62, 340));
      const view = await (this.made ??= this.embed(rows));
      view.width(this.width).height(height);
      view.signal("lowest", ends[0]).signal("highest", ends[1]);
      if (chart.mark === "heatmap" && chart.diverging)
        for (const stop in COLOURS) view.signal(`${stop}Colour`, COLOURS[stop]);
      view.data("rows", rows);
      await view.runAsync();
      this.places = null;
    }
    async embed(rows) {
      const plain = { actions: false, tooltip: false, hover: false, defaultStyle: false };
      const spec = { ...this.figure.chart.spec, data: { name: "rows", values: rows } };
      const made = await vegaEmbed(this.canvas, spec, { renderer: "svg", ast: true, ...plain });
      return (this.view = made.view);
    }
    // Where every value is, in pixels of the panel; asked for only when somebody points.
    positions() {
      if (this.places) return this.places;
      const { view } = this;
      const scale = (name) => { try { return view.scale(name); } catch { return null; } };
      const [x, y, offset] = ["x", "y", "xOffset"].map(scale);
      const [left, top] = view.origin();
      const pad = view.padding();
      const middle = (along, value) => along(value) + (along.bandwidth ? along.bandwidth() / 2 : 0);
      this.half = x.bandwidth && !offset ? x.bandwidth() / 2 : 0;
      this.places = this.rows
        .filter((row) => row.at)
        .map((row) => ({
          row,
          x: left + pad.left + (offset ? x(row.x) + middle(offset, row.series) : middle(x, row.x)),
          y: top + pad.top + middle(y, row.y),
        }));
      return this.places;
    }
    point(event) {
      if (!this.view) return;
      const box = this.canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      let nearest = null;
      let least = Infinity;
      const bars = this.figure.chart.mark === "bars";
      for (const each of this.positions()) {
        const distance = Math.hypot(each.x - x, bars ? (each.y - y) / 8 : each.y - y);
        if (distance < least) [nearest, least] = [each, distance];
      }
      if (nearest && least < Math.max(40, this.half)) this.mark(nearest, event);
      else this.leave();
    }
    mark(found, event) {
      const text = words(this.figure.chart, found.row);
      this.at = found;
      this.figure.readout.textContent = text;
      tip.textContent = text;
      tip.hidden = false;
      const box = this.canvas.getBoundingClientRect();
      const [x, y] = event ? [event.clientX, event.clientY] : [box.left + found.x, box.top + found.y];
      tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 12 : y + 18}px`;
      this.ring.hidden = false;
      this.ring.style.left = `${found.x}px`;
      this.ring.style.top = `${found.y}px`;
      this.emphasise(found.row.path);
    }
    leave() {
      this.at = null;
      tip.hidden = true;
      this.ring.hidden = true;
      this.emphasise("");
    }
    emphasise(path) {
      if (this.figure.chart.mark === "paths" && this.view && this.picked !== (path ?? ""))
        this.view.signal("picked", (this.picked = path ?? "")).runAsync();
    }
    key(event) {
      const way = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Escape") return this.leave();
      if (!this.view || !(way || event.key === "Home" || event.key === "End")) return;
      event.preventDefault();
      const places = [...this.positions()].sort((a, b) => a.x - b.x || a.y - b.y);
      if (!places.length) return;
      if (!way || !this.at)
        return this.mark(event.key === "End" ? places[places.length - 1] : places[0]);
      const { at } = this;
      const near = 0.5;
      const same = (one, other) => Math.abs(one - other) < near;
      const ahead = places.filter((each) => {
        const [dx, dy] = [each.x - at.x, each.y - at.y];
        if (way[1]) return dy * way[1] > near && same(each.x, at.x);
        return dx * way[0] > near && (this.half ? same(each.y, at.y) : each.row.series === at.row.series);
      });
      const along = way[1] ? "y" : "x";
      ahead.sort((a, b) => Math.abs(a[along] - at[along]) - Math.abs(b[along] - at[along]));
      if (ahead.length) this.mark(ahead[0]);
    }
  }

  class Figure {
    constructor(element) {
      const chart = (this.chart = page.charts[Number(element.dataset.chart)]);
      this.element = element;
      this.chosen = Object.fromEntries(chart.switches.map((dim) => [dim, 0]));
      this.selects = {};
      const controls = make("div", { className: "controls" });
      for (const dim of chart.switches) {
        if (size(chart, dim) < 2) continue;
        const select = make("select");
        chart.dims[dim].labels.forEach((text, n) => select.append(make("option", { value: n, textContent: text })));
        select.addEventListener("change", () => choose(dim, chart.dims[dim].labels[Number(select.value)]));
        this.selects[dim] = select;
        controls.append(make("label", {}, make("span", { textContent: chart.dims[dim].title }), select));
      }
      this.legend = make("ul", { className: "legend" });
      this.readout = make("output", { className: "readout", id: `readout-${element.dataset.chart}` });
      this.readout.setAttribute("aria-live", "polite");
      this.readout.textContent = "Point at a value, or focus the plot and use the arrow keys.";
      const { panel } = chart.roles;
      const names = panel ? chart.dims[panel].labels : [""];
      const grid = make("div", { className: `panels ${names.length > 1 ? "several" : ""}` });
      this.panels = names.map((name) => {
        const own = new Panel(this, name);
        grid.append(make("div", {}, ...(name ? [make("p", { className: "panel", textContent: name })] : []), own.element));
        return own;
      });
      this.details = make("details", {}, make("summary", { textContent: "Values as a table" }));
      this.details.addEventListener("toggle", () => this.list());
      this.table = make("div", { className: "scroll", tabIndex: 0 });
      this.table.setAttribute("role", "group");
      this.table.setAttribute("aria-label", `Values of ${chart.title}`);
      this.details.append(this.table);
      const save = make("button", { type: "button", textContent: "Download CSV" });
      save.setAttribute("aria-label", `Download CSV of ${chart.title}`);
      save.addEventListener("click", () => download(element.dataset.name, csv(chart)));
      element.append(controls, this.legend, grid, this.readout, make("div", { className: "beneath" }, this.details, save));
      this.name(chart.series.map((each) => [each.name, each.colour, each.dashed]));
      this.dirty = true;
      this.visible = false;
    }
    name(entries) {
      this.legend.replaceChildren(
        ...entries.map(([text, colour, dashed]) => {
          const swatch = make("span", { className: dashed ? "swatch dashed" : "swatch" });
          swatch.style.setProperty("--colour", colour);
          return make("li", {}, swatch, text);
        })
      );
      this.legend.hidden = !entries.length;
    }
    choose(dim, text) {
      const { chart } = this;
      if (!(dim in this.chosen)) return;
      const n = chart.dims[dim].labels.indexOf(text);
      if (n < 0 || n === this.chosen[dim]) return;
      this.chosen[dim] = n;
      if (this.selects[dim]) this.selects[dim].value = n;
      this.dirty = true;
      this.refresh();
    }
    refresh(anyway) {
      if (!this.dirty || !(this.visible || anyway)) return;
      this.dirty = false;
      this.show().catch((error) => {
        this.readout.textContent = failed(error);
        console.error(error);
      });
    }
    async show() {
      const { chart } = this;
      this.rows = rowsOf(chart, this.chosen);
      let { rows } = this;
      let ends = extent(rows.flatMap((row) => [row.y, row.low, row.high]));
      if (chart.mark === "bars") ends = [Math.min(0, ends[0]), Math.max(0, ends[1])];
      if (chart.mark === "heatmap") {
        const values = rows.map((row) => row.value).sort((a, b) => a - b);
        const reach = values.length ? Math.max(-values[0], values[values.length - 1]) || 1 : 1;
        const at = (part) => values[Math.round(part * (values.length - 1))] ?? 0;
        ends = chart.diverging ? [-reach, reach] : [at(0.01), at(0.99)];
      }
      if (chart.mark === "paths") {
        const drawn = pathRows(chart, rows);
        this.name(drawn.strongest.map((row, rank) => [`${row.x}: ${shown(row.value)}`, `var(--series-${rank})`]));
        rows = drawn.rows;
        ends = [0, Math.max(drawn.strongest[0]?.value ?? 0, 1e-9)];
      }
      if (!(ends[1] > ends[0])) {
        const middle = Number.isFinite(ends[0]) ? ends[0] : 0;
        ends = [middle - 1, middle + 1];
      }
      const { panel } = chart.roles;
      this.list();
      const own = (n) => (panel ? rows.filter((row) => row.panel === n) : rows);
      await Promise.all(this.panels.map((each, n) => each.draw(own(n), ends)));
    }
    list() {
      if (this.details.open) this.table.replaceChildren(tableOf(this.chart, this.rows ?? []));
    }
  }

  const choose = (dim, text) => {
    state[dim] = text;
    figures.forEach((figure) => figure.choose(dim, text));
  };
  const redraw = () =>
    figures.forEach((figure) => {
      figure.dirty = true;
      figure.refresh();
    });

  // ---- the page ----------------------------------------------------------------------------------
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const setTheme = (isDark) => {
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(isDark));
    const style = getComputedStyle(document.documentElement);
    for (const stop in COLOURS) COLOURS[stop] = style.getPropertyValue(`--heat-${stop}`).trim();
    redraw();
  };
  button.addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  dark.addEventListener("change", (event) => setTheme(event.matches));
  button.hidden = false;

  for (const element of document.querySelectorAll("[data-chart]"))
    try {
      figures.push(new Figure(element));
    } catch (error) {
      element.append(make("p", { textContent: failed(error) }));
      console.error(error);
    }
  for (const save of document.querySelectorAll("[data-table]")) {
    save.hidden = false;
    save.addEventListener("click", () => download(save.dataset.name, page.tables[Number(save.dataset.table)]));
  }
  setTheme(dark.matches);
  const seen = new IntersectionObserver(
    (entries) =>
      entries.forEach((entry) => {
        const figure = figures.find((each) => each.element === entry.target);
        figure.visible = entry.isIntersecting;
        figure.refresh();
      }),
    { rootMargin: "600px" }
  );
  const sized = new ResizeObserver((entries) =>
    entries.forEach((entry) => {
      const figure = figures.find((each) => each.element === entry.target);
      if (figure.panels[0].width && figure.panels[0].canvas.clientWidth !== figure.panels[0].width) {
        figure.dirty = true;
        figure.refresh();
      }
    })
  );
  figures.forEach((figure) => {
    seen.observe(figure.element);
    sized.observe(figure.element);
  });
  addEventListener("beforeprint", () => figures.forEach((figure) => figure.refresh(true)));
  addEventListener("scroll", () => (tip.hidden = true), { passive: true });
})();
