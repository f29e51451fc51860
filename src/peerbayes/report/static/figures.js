// Figures of a run: drawn, updated, in the colours of the page, with one selected peer.
//
//   peerbayes.draw(name, spec)     draws or redraws a figure in <div id="figure-NAME">
//   peerbayes.patch(patches)       applies the result of `report.figures.patch`; a trace's meta says how it grows
//   peerbayes.select(peer, run)    marks a peer in all figures and shows its values; null: none
//   peerbayes.curve                a hook: (peer, run) -> a promise of the result of `report.figures.curve`
//   peerbayes.chooser(runs)        creates the controls in <div id="chooser">: [{title, count, names}]
//   peerbayes.figure(name)         returns the figure that is drawn: {data, layout}
//   peerbayes.all()                draws all figures now; otherwise those in sight come first
//   peerbayes.axes({x, log, logX}) draws curves against "round", "bytes" or "seconds", on logarithmic axes or not
//
// With several runs, figures are named NAME-0, NAME-1, …; those of all runs together have no number.
"use strict";

globalThis.peerbayes = (() => {
  const ROLES = [
    "ink", "muted", "grid", "paper", "peers", "rc", "ml", "local", "chosen", "class-1", "class-2", "class-3", "class-4",
    "class-5", "class-6", "class-7", "class-8", "class-9", "low", "middle", "high", "none", "some", "much",
  ];
  const SHARE = 0.3; // share of the time spent on drawing, at most
  const NARROW = 520; // pixels: narrower figures are on a phone
  const STEP = 90; // change of width in pixels after which a figure is laid out again
  const LANES = [2, 90]; // least and most pixels of a lane of columns
  const TURN = 0.2; // share of a lane at which an arrow turns
  const AHEAD = "600px"; // distance from the visible area at which figures are drawn
  const PAPER = { full: 655, half: 300, height: 800 }; // pixels of figures on a page of A4 or letter
  const TYPES = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array };

  const shown = new Map(); // name -> {div, spec, near, dirty}
  const waiting = []; // names of figures to draw, in order
  const axes = { x: "round", log: false, logX: false }; // of all curves
  let colours = new Map(); // light colour -> colour of the page
  let drawing = false;
  let hurried = false;
  let wake = () => {};
  let chosen = null; // {peer, run, curve}
  let asking = false;
  let onPaper = false;

  // Numbers.

  function numbers(value) {
    if (!value || typeof value !== "object" || value.bdata === undefined || value.shape !== undefined) return value;
    const text = atob(value.bdata);
    const bytes = new Uint8Array(text.length);
    for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
    return new TYPES[value.dtype](bytes.buffer);
  }

  function decoded(value) {
    if (Array.isArray(value)) return value.map(decoded);
    if (!value || typeof value !== "object") return value;
    if (value.bdata !== undefined) return numbers(value);
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, decoded(item)]));
  }

  function joined(first, second) {
    const kind = first.BYTES_PER_ELEMENT ? first.constructor : second.BYTES_PER_ELEMENT ? second.constructor : Array;
    const all = new kind(first.length + second.length);
    for (let index = 0; index < first.length; index++) all[index] = first[index];
    for (let index = 0; index < second.length; index++) all[first.length + index] = second[index];
    return all;
  }

  // Updates.

  function grow(trace, attributes) {
    const how = (trace.meta || {}).grows;
    if (how === "append") {
      for (const key of Object.keys(attributes)) trace[key] = joined(trace[key], numbers(attributes[key]));
    } else if (how === "each") {
      growEach(trace, numbers(attributes.x), numbers(attributes.y));
    } else {
      for (const [path, value] of Object.entries(attributes)) put(trace, path, numbers(value));
    }
  }

  // Append the same new x, and its own new y, to every curve, before the gap at its end.
  function growEach(trace, x, y) {
    const { curves, repeats } = trace.meta;
    if (!curves) return;
    const before = trace.y.length / curves - 1;
    const after = before + x.length;
    const wide = (values) => new (values.constructor)(curves * (after + 1));
    const next = { x: wide(trace.x), y: wide(trace.y) };
    for (const key of repeats) next[key] = wide(trace[key]);
    for (let curve = 0; curve < curves; curve++) {
      const from = curve * (before + 1);
      const to = curve * (after + 1);
      for (let point = 0; point < before; point++) {
        next.x[to + point] = trace.x[from + point];
        next.y[to + point] = trace.y[from + point];
      }
      for (let point = 0; point < x.length; point++) {
        next.x[to + before + point] = x[point];
        next.y[to + before + point] = y[curve * x.length + point];
      }
      next.x[to + after] = next.y[to + after] = NaN;
      for (const key of repeats) next[key].fill(trace[key][from], to, to + after + 1);
    }
    Object.assign(trace, next);
  }

  function put(target, path, value) {
    const steps = path.split(".");
    const last = steps.pop();
    for (const step of steps) target = target[step] ??= {};
    target[last] = value;
  }

  // Colours: the light colours of a figure are replaced by those of the page.

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const roleColours = new Map();
    for (const role of ROLES) {
      const light = style.getPropertyValue(`--light-${role}`).trim().toLowerCase();
      roleColours.set(light, style.getPropertyValue(`--${role}`).trim());
    }
    return roleColours;
  }

  function coloured(text) {
    const exact = colours.get(text);
    if (exact !== undefined) return exact;
    const channels = /^rgba\((\d+),(\d+),(\d+),([\d.]+)\)$/.exec(text);
    if (!channels) return text;
    const hex = "#" + channels.slice(1, 4).map((channel) => Number(channel).toString(16).padStart(2, "0")).join("");
    const other = colours.get(hex);
    if (other === undefined) return text;
    const [red, green, blue] = [1, 3, 5].map((start) => parseInt(other.slice(start, start + 2), 16));
    return `rgba(${red},${green},${blue},${channels[4]})`;
  }

  function themed(value) {
    if (typeof value === "string") return value[0] === "#" || value[0] === "r" ? coloured(value) : value;
    if (Array.isArray(value)) return value.length < 64 || typeof value[0] === "object" ? value.map(themed) : value;
    if (!value || typeof value !== "object" || ArrayBuffer.isView(value) || value.bdata !== undefined) return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item)]));
  }

  // Widths: on a phone there is no room beside a figure.

  function fitted(spec, width) {
    const { data, layout } = spec;
    const narrow = width < NARROW;
    const { shape } = layout.meta || {};
    if (shape) layout.height = Math.min(layout.height, Math.round(width * shape + (narrow ? 60 : 0)));
    if (layout.meta && layout.meta.grid) arranged(layout, layout.meta.grid, width);
    if (layout.meta && layout.meta.lanes) indented(layout, layout.meta.lanes, width);
    if (!narrow) return spec;
    layout.font = { ...layout.font, size: 11 };
    layout.margin = { ...layout.margin, l: Math.min(layout.margin.l, 40), r: Math.min(layout.margin.r, 76) };
    for (const trace of data) {
      const bar = (trace.marker && trace.marker.colorbar) || trace.colorbar;
      if (bar) {
        Object.assign(bar, { orientation: "h", x: 0.5, xanchor: "center", y: -0.02, yanchor: "top", len: 0.9 });
        bar.title = { ...bar.title, side: "bottom" };
        layout.margin.b = Math.max(layout.margin.b, 60);
      }
    }
    return spec;
  }

  // Make lanes as wide as their names permit; `reach` of structure_figure.py does the same.
  function indented(layout, names, width) {
    const room = width - layout.margin.l - layout.margin.r;
    const widest = Math.min(...names.map((name, lane) => (room - name) / (lane + TURN)));
    layout.xaxis.range = [-TURN, room / Math.min(Math.max(widest, LANES[0]), LANES[1]) - TURN];
  }

  // Arrange panels in a grid, as many per row as fit.
  function arranged(layout, grid, width) {
    const across = Math.max(1, Math.min(grid.most, grid.count, Math.floor(width / grid.width)));
    const down = Math.ceil(grid.count / across);
    if (grid.legend) {
      const rows = Math.ceil(grid.legend.count / Math.max(1, Math.floor((width - 16) / grid.legend.width)));
      layout.margin = { ...layout.margin, t: 32 + 20 * rows };
    }
    layout.height = layout.margin.t + layout.margin.b + grid.height * down;
    layout.grid = { ...layout.grid, rows: down, columns: across };
  }

  // Axes: curves come by round; the page draws them against something else, and on logarithmic axes.

  const ACROSS = {
    round: { title: "round", hover: "round %{x}" },
    bytes: { title: "bytes sent by each peer", hover: "%{x:.3s}B" },
    seconds: { title: "seconds of the rounds", hover: "%{x:.3g} s" },
  };
  const LABEL = 15; // pixels of the height of a label beside a figure

  function crossed({ data, layout }) {
    const tables = layout.meta && layout.meta.against;
    if (!tables) return;
    const x = tables.every((table) => table[axes.x] && table[axes.x].length) ? axes.x : "round";
    layout.uirevision = `${x} ${axes.logX} ${axes.log}`; // other axes, another zoom
    const maps = tables.map((table) => new Map(Array.from(table.round, (round, index) => [round, table[x][index]])));
    const curves = data.filter((trace) => !isReference(trace));
    for (const trace of curves) {
      if (x !== "round") trace.x = Array.from(trace.x, (round) => maps[trace.meta.run || 0].get(round) ?? NaN);
      if (trace.hovertemplate) trace.hovertemplate = trace.hovertemplate.replace(ACROSS.round.hover, ACROSS[x].hover);
    }
    const reach = (layout.meta.extents || {})[x];
    const [least, most] = reach || extent(curves.flatMap((trace) => Array.from(trace.x)), axes.logX);
    if (x !== "round" || axes.logX) {
      const from = axes.logX ? least : 0;
      for (const trace of data.filter(isReference)) {
        trace.x = Array.from(trace.x, (_, index) => from + ((most - from) * index) / (trace.x.length - 1));
      }
      Object.assign(layout.xaxis, {
        title: { ...layout.xaxis.title, text: ACROSS[x].title },
        range: axes.logX ? [Math.log10(least), Math.log10(most) + 0.01] : [0, most * 1.005],
        type: axes.logX ? "log" : "linear",
        tickformat: x === "bytes" ? "~s" : "",
      });
      if (axes.logX) layout.xaxis.dtick = most / least > 30 ? 1 : "D2";
    }
    if (axes.log && layout.yaxis.type !== "log") steep(data, layout);
  }

  const isReference = (trace) => ["rc", "ml", "local"].includes((trace.meta || {}).role);

  // The least and the largest of some numbers; of positive ones only for a logarithmic axis.
  function extent(values, positive) {
    let [least, most] = [Infinity, -Infinity];
    for (const value of values) {
      if (value === null || Number.isNaN(value) || (positive && !(value > 0))) continue;
      least = Math.min(least, value);
      most = Math.max(most, value);
    }
    return least > most ? [0.1, 1] : least === most ? [least / 2, most * 2] : [least, most];
  }

  // Make the vertical axis logarithmic, with the labels of references beside it.
  function steep(data, layout) {
    const [least, most] = extent(data.flatMap((trace) => Array.from(trace.y || [])), true);
    const [low, high] = [Math.log10(least) - 0.05, Math.log10(most) + 0.05];
    Object.assign(layout.yaxis, { type: "log", range: [low, high], dtick: "D2", tickformat: "~g", rangemode: "normal" });
    const room = layout.height - layout.margin.t - layout.margin.b;
    let above = -Infinity;
    for (const note of (layout.annotations || []).slice().sort((one, other) => one.y - other.y)) {
      if (note.yref && note.yref !== "y") continue;
      note.y = Math.log10(note.y);
      const wanted = ((note.y - low) / (high - low)) * room;
      above = Math.max(wanted, above + LABEL);
      note.yshift = above - wanted;
    }
  }

  function setAxes(changes) {
    Object.assign(axes, changes);
    for (const [name, figure] of shown) if ((figure.spec.layout.meta || {}).against) later(name);
    hurry();
  }

  // Drawing: one figure after another, with pauses that keep the page responsive.

  function settings(name) {
    return {
      responsive: true,
      displaylogo: false,
      showSendToCloud: false,
      showEditInChartStudio: false,
      plotlyServerURL: "",
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "sendDataToCloud"],
      toImageButtonOptions: { format: "svg", filename: `peerbayes-${name}` },
    };
  }

  function laidOut(spec, width) {
    const themedSpec = themed(spec);
    themedSpec.layout.uirevision = "kept"; // keep zoom and hidden traces when redrawing
    crossed(themedSpec);
    return fitted(themedSpec, width);
  }

  async function render(name) {
    const figure = shown.get(name);
    if (!figure || onPaper) return;
    figure.dirty = false;
    const width = figure.div.clientWidth || 640;
    const { data, layout } = laidOut(figure.spec, width);
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // touch scrolls the page
    figure.class = Math.floor(width / STEP);
    figure.div.style.minHeight = `${layout.height}px`;
    await Plotly.react(figure.div, data, layout, settings(name));
    figure.div.setAttribute("role", "img");
    figure.div.setAttribute("aria-label", (figure.spec.layout.meta || {}).summary || name);
    figure.div.dataset.drawn = String(Number(figure.div.dataset.drawn || 0) + 1);
    if (!figure.listening) {
      figure.listening = true;
      figure.div.on("plotly_click", (event) => clicked(name, event));
    }
  }

  async function work() {
    if (drawing) return;
    drawing = true;
    try {
      while (waiting.length) {
        const next = waiting.findIndex((name) => (shown.get(name) || {}).near); // those in sight come first
        const [name] = waiting.splice(Math.max(next, 0), 1);
        await new Promise((resolve) => requestAnimationFrame(resolve));
        const began = performance.now();
        await render(name);
        const spent = performance.now() - began;
        if (!waiting.length) hurried = false;
        if (!hurried) await pause(Math.min(10_000, (spent * (1 - SHARE)) / SHARE));
      }
    } finally {
      drawing = false;
    }
  }

  function pause(time) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, time);
      wake = () => { clearTimeout(timer); resolve(); };
    });
  }

  // After a user's action, draw what is waiting without pauses, once.
  function hurry() {
    hurried = true;
    wake();
    work();
  }

  function later(name) {
    const figure = shown.get(name);
    figure.dirty = true;
    // Every figure is drawn once, for those who capture the page; later only what is in sight.
    if ((figure.near || !figure.div.dataset.drawn) && !waiting.includes(name)) waiting.push(name);
    work();
  }

  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const name = entry.target.id.replace(/^figure-/, "");
      const figure = shown.get(name);
      if (!figure) continue;
      figure.near = entry.isIntersecting;
      if (figure.near && figure.dirty) {
        later(name);
        wake();
      }
    }
  }, { rootMargin: AHEAD });

  const widths = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const name = entry.target.id.replace(/^figure-/, "");
      const figure = shown.get(name);
      if (figure && figure.class !== undefined && figure.class !== Math.floor(entry.contentRect.width / STEP)) later(name);
    }
  });

  function draw(name, spec) {
    const div = document.getElementById(`figure-${name}`);
    if (!div) return;
    const before = shown.get(name);
    const figure = { ...before, div, spec: decoded(spec), dirty: true, near: before ? before.near : false };
    shown.set(name, figure);
    if (!before || before.div !== div) {
      div.style.minHeight = `${spec.layout.height}px`; // prevents the page from jumping
      figure.listening = false;
      sight.observe(div);
      widths.observe(div);
    }
    if (chosen) mark(name);
    later(name);
  }

  function patch(patches) {
    for (const [name, update] of Object.entries(patches.figures)) {
      const figure = shown.get(name);
      if (!figure) continue;
      for (const [index, attributes] of Object.entries(update.traces || {})) grow(figure.spec.data[index], attributes);
      for (const [path, value] of Object.entries(update.layout || {})) put(figure.spec.layout, path, value);
      for (const [key, values] of Object.entries(update.against || {})) {
        const [table] = (figure.spec.layout.meta || {}).against || [{}];
        table[key] = table[key] ? joined(table[key], numbers(values)) : numbers(values);
      }
      if (update.summary) figure.spec.layout.meta = { ...figure.spec.layout.meta, summary: update.summary };
      later(name);
    }
    if (chosen && Object.keys(patches.figures).length) refresh();
  }

  // On paper: light colours, the width of a page, and every figure at once.
  function toPaper() {
    if (onPaper) return;
    onPaper = true;
    colours = new Map();
    for (const [name, figure] of shown) {
      const width = figure.div.closest(".span-2") ? PAPER.half : PAPER.full;
      const { data, layout } = laidOut(figure.spec, width);
      Object.assign(layout, { width, height: Math.min(layout.height, PAPER.height), autosize: false });
      figure.div.style.minHeight = "0";
      Plotly.react(figure.div, data, layout, settings(name)); // not awaited: the page is printed when this returns
      figure.div.dataset.drawn = String(Number(figure.div.dataset.drawn || 0) + 1);
    }
  }

  function fromPaper() {
    if (!onPaper) return;
    onPaper = false;
    theme();
  }

  async function all() {
    for (const [name, figure] of shown) if (figure.dirty) await render(name);
  }

  function figure(name) {
    const drawn = shown.get(name);
    return drawn && drawn.spec;
  }

  // Selecting a peer.

  const runOf = (name) => Number((/-(\d+)$/.exec(name) || [0, 0])[1]);
  const kindOf = (name) => name.replace(/-\d+$/, "");

  function clicked(name, event) {
    const point = event.points[0];
    const role = (figure(name).data[point.curveNumber].meta || {}).role;
    if (role === "peers" || role === "each") select(Number(point.customdata), runOf(name));
  }

  // Write the selected peer into the figure's trace for it.
  function mark(name) {
    const spec = figure(name);
    const trace = spec.data.find((item) => (item.meta || {}).role === "chosen");
    if (!trace) return false;
    let [x, y] = [[], []];
    const applies = chosen && (!/-\d+$/.test(name) || runOf(name) === chosen.run);
    if (applies && kindOf(name) === "network") {
      const peers = spec.data.find((item) => item.meta.role === "peers");
      const index = peers.customdata.indexOf(chosen.peer);
      if (index >= 0) [x, y] = [[peers.x[index]], [peers.y[index]]];
    } else if (applies && chosen.curve) {
      x = chosen.curve.rounds;
      y = chosen.curve[kindOf(name)] || [];
    }
    Object.assign(trace, { x, y });
    return true;
  }

  function markAll() {
    for (const name of shown.keys()) if (mark(name)) later(name);
  }

  async function select(peer, run = 0) {
    if (peer === null || Number.isNaN(peer)) {
      chosen = null;
      markAll();
      showText("");
      return;
    }
    chosen = { peer, run, curve: null };
    controls(peer, run);
    const selection = chosen;
    try {
      const curve = await globalThis.peerbayes.curve(peer, run);
      if (selection !== chosen) return; // another peer was selected meanwhile
      chosen.curve = curve;
      markAll();
      hurry();
      showText(description(curve));
    } catch (error) {
      if (selection !== chosen) return;
      chosen = null;
      markAll();
      showText(`Peer ${peer}: ${error.message}`);
    }
  }

  // Request the selected peer's curve again after new rounds, one request at a time.
  async function refresh() {
    if (asking) return;
    asking = true;
    const selection = chosen;
    try {
      const curve = await globalThis.peerbayes.curve(selection.peer, selection.run);
      if (selection === chosen) {
        chosen.curve = curve;
        for (const name of shown.keys()) if (kindOf(name) !== "network" && mark(name)) later(name);
        showText(description(curve));
      }
    } catch {
      // the next patch tries again
    } finally {
      asking = false;
    }
  }

  const short = (value, digits) => (value === null || value === undefined ? "unknown" : Number(value).toFixed(digits));

  function description(curve) {
    const last = curve.rounds.length - 1;
    const name = curve.name.charAt(0).toUpperCase() + curve.name.slice(1);
    const rows = `${name}: ${curve.rows.toLocaleString("en")} ${curve.rows === 1 ? "row" : "rows"}`;
    if (last < 0) return `${rows}; no round has been evaluated yet.`;
    const value = curve.disagreement && curve.disagreement[last];
    const disagreement = value === null || value === undefined ? "" : `, disagreement ${Number(value).toPrecision(3)}`;
    const remark = curve.whole === false ? " Its full curve is not available." : "";
    return `${rows}; ${curve.kind} ${short(curve.error[last], 4)}${disagreement} after round ${curve.rounds[last]}.${remark}`;
  }

  function showText(text) {
    const region = document.getElementById("chosen-said");
    if (region) region.textContent = text;
  }

  function element(kind, attributes, text = "") {
    const node = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.textContent = text;
    return node;
  }

  function chooser(runs) {
    const container = document.getElementById("chooser");
    if (!container) return;
    container.replaceChildren(element("label", { for: "chosen-peer" }, "Peer"));
    const names = runs[0].names;
    const input = names
      ? element("select", { id: "chosen-peer" })
      : element("input", { id: "chosen-peer", type: "number", min: 0, max: runs[0].count - 1, step: 1, inputmode: "numeric" });
    if (names) {
      input.append(element("option", { value: "" }, "none"));
      names.forEach((name, peer) => input.append(element("option", { value: peer }, name)));
    }
    container.append(input);
    let runInput = null;
    if (runs.length > 1) {
      runInput = element("select", { id: "chosen-run" });
      runs.forEach((run, number) => runInput.append(element("option", { value: number }, run.title)));
      container.append(element("label", { for: "chosen-run" }, "of"), runInput);
    }
    container.append(...switches(runs));
    container.append(element("p", { id: "chosen-said", role: "status", "aria-live": "polite" }));
    const change = () => {
      const run = runInput ? Number(runInput.value) : 0;
      const peer = input.value === "" ? null : Number(input.value);
      if (peer !== null && !(Number.isInteger(peer) && peer >= 0 && peer < runs[run].count)) {
        showText(`There is no peer ${input.value}: choose 0 to ${runs[run].count - 1}.`);
      } else {
        select(peer, run);
      }
    };
    input.addEventListener(names ? "change" : "input", change);
    if (runInput) runInput.addEventListener("change", change);
    container.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        input.value = "";
        select(null);
      }
    });
  }

  // The controls of axes.
  function switches(runs) {
    const select = element("select", { id: "axis-x" });
    const kinds = Object.keys(ACROSS).filter((kind) => kind !== "seconds" || runs.every((run) => run.seconds));
    for (const kind of kinds) select.append(element("option", { value: kind }, kind === "round" ? "rounds" : kind));
    select.value = kinds.includes(axes.x) ? axes.x : "round";
    select.addEventListener("change", () => setAxes({ x: select.value }));
    const boxes = [["axis-log", "log error", "log"], ["axis-log-x", "log across", "logX"]].map(([id, text, key]) => {
      const box = element("input", { id, type: "checkbox" });
      box.checked = axes[key];
      box.addEventListener("change", () => setAxes({ [key]: box.checked }));
      const label = element("label", { for: id, class: "switch" }, text);
      label.prepend(box);
      return label;
    });
    const group = element("span", { class: "switches", role: "group", "aria-label": "Axes of the curves" });
    group.append(element("label", { for: "axis-x" }, "Curves against"), select, ...boxes);
    return [group];
  }

  function controls(peer, run) {
    const input = document.getElementById("chosen-peer");
    const runInput = document.getElementById("chosen-run");
    if (input && Number(input.value || NaN) !== peer) input.value = String(peer);
    if (runInput) runInput.value = String(run);
  }

  // The page's colours, and changes of them.

  function theme() {
    colours = readColours();
    for (const name of shown.keys()) later(name);
  }

  colours = readColours();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  addEventListener("beforeprint", toPaper);
  addEventListener("afterprint", fromPaper);

  const curve = () => Promise.reject(new Error("no curves are available"));
  return { draw, patch, select, chooser, switches, figure, all, theme, curve, numbers, axes: setAxes };
})();
