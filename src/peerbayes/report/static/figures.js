// Figures of a run: drawn, grown by what is new, in the colours of the page, and one peer chosen among many.
//
//   peerbayes.draw(name, spec)     a figure into <div id="figure-NAME">, again where it was drawn before
//   peerbayes.patch(patches)       what `report.figures.patch` gives; a trace's meta says how it grows
//   peerbayes.select(peer, run)    marks a peer in all figures and says its numbers; null: none
//   peerbayes.curve                a hook: (peer, run) -> a promise of what `report.figures.curve` gives
//   peerbayes.chooser(runs)        controls in <div id="chooser">: [{title, nodes, names}]
//   peerbayes.figure(name)         what is drawn: {data, layout}
//   peerbayes.all()                draws everything now; others wait until they are nearly in sight
//
// Of several runs the figures are called NAME-0, NAME-1, …; those of all together have no number.
"use strict";

globalThis.peerbayes = (() => {
  const ROLES = [
    "ink", "muted", "grid", "paper", "peers", "rc", "ml", "local", "chosen", "class-1", "class-2", "class-3", "class-4",
    "class-5", "class-6", "class-7", "class-8", "class-9", "low", "middle", "high", "none", "some", "much",
  ];
  const SHARE = 0.3; // of the time may go into drawing
  const NARROW = 520; // pixels below which a figure is on a phone
  const STEP = 90; // pixels of width after which a figure is arranged anew
  const LANES = [2, 90]; // pixels of a lane of columns: least and most
  const TURN = 0.2; // of a lane: where an arrow turns
  const AHEAD = "600px"; // how far out of sight figures are drawn
  const TYPES = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array };

  const shown = new Map(); // name -> {div, spec, near, dirty}
  const waiting = []; // names to draw, in order
  let colours = new Map(); // light colour -> the page's
  let drawing = false;
  let hurried = false;
  let wake = () => {};
  let chosen = null; // {peer, run, curve}
  let asking = false;

  // Numbers.

  function numbers(value) {
    if (!value || typeof value !== "object" || value.bdata === undefined || value.shape !== undefined) return value;
    const text = atob(value.bdata);
    const bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
    return new TYPES[value.dtype](bytes.buffer);
  }

  function decoded(value) {
    if (Array.isArray(value)) return value.map(decoded);
    if (!value || typeof value !== "object") return value;
    if (value.bdata !== undefined) return numbers(value);
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, decoded(part)]));
  }

  function joined(first, second) {
    const kind = first.BYTES_PER_ELEMENT ? first.constructor : second.BYTES_PER_ELEMENT ? second.constructor : Array;
    const all = new kind(first.length + second.length);
    for (let place = 0; place < first.length; place++) all[place] = first[place];
    for (let place = 0; place < second.length; place++) all[first.length + place] = second[place];
    return all;
  }

  // Growing.

  function grow(trace, more) {
    const how = (trace.meta || {}).grows;
    if (how === "append") {
      for (const key of Object.keys(more)) trace[key] = joined(trace[key], numbers(more[key]));
    } else if (how === "each") {
      growEach(trace, numbers(more.x), numbers(more.y));
    } else {
      for (const [path, value] of Object.entries(more)) put(trace, path, numbers(value));
    }
  }

  // Every curve gets the same new x and its own new y, before the gap that ends it.
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
      for (let turn = 0; turn < before; turn++) {
        next.x[to + turn] = trace.x[from + turn];
        next.y[to + turn] = trace.y[from + turn];
      }
      for (let turn = 0; turn < x.length; turn++) {
        next.x[to + before + turn] = x[turn];
        next.y[to + before + turn] = y[curve * x.length + turn];
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

  // Colours: whatever is light in a figure, in the page's.

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const found = new Map();
    for (const role of ROLES) {
      const light = style.getPropertyValue(`--light-${role}`).trim().toLowerCase();
      found.set(light, style.getPropertyValue(`--${role}`).trim());
    }
    return found;
  }

  function coloured(text) {
    const exact = colours.get(text);
    if (exact !== undefined) return exact;
    const parts = /^rgba\((\d+),(\d+),(\d+),([\d.]+)\)$/.exec(text);
    if (!parts) return text;
    const hex = "#" + parts.slice(1, 4).map((part) => Number(part).toString(16).padStart(2, "0")).join("");
    const other = colours.get(hex);
    if (other === undefined) return text;
    const [red, green, blue] = [1, 3, 5].map((place) => parseInt(other.slice(place, place + 2), 16));
    return `rgba(${red},${green},${blue},${parts[4]})`;
  }

  function themed(value) {
    if (typeof value === "string") return value[0] === "#" || value[0] === "r" ? coloured(value) : value;
    if (Array.isArray(value)) return value.length < 64 ? value.map(themed) : value;
    if (!value || typeof value !== "object" || ArrayBuffer.isView(value) || value.bdata !== undefined) return value;
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, themed(part)]));
  }

  // Widths: a phone has no room beside a figure.

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

  // Lanes as wide as the names in them leave room for; `structure.reach` does the same.
  function indented(layout, names, width) {
    const room = width - layout.margin.l - layout.margin.r;
    const widest = Math.min(...names.map((name, lane) => (room - name) / (lane + TURN)));
    layout.xaxis.range = [-TURN, room / Math.min(Math.max(widest, LANES[0]), LANES[1]) - TURN];
  }

  // Small figures in a grid, as many across as there is room for; `densities.arranged` does the same.
  function arranged(layout, grid, width) {
    const { panels } = grid;
    const across = Math.max(1, Math.min(grid.most, panels.length, Math.floor(width / grid.width)));
    const down = Math.ceil(panels.length / across);
    const gap = { x: across > 1 ? 0.06 : 0, y: grid.gap / (grid.height * down) };
    const size = { x: (1 - gap.x * (across - 1)) / across, y: (1 - gap.y * (down - 1)) / down };
    if (grid.legend) {
      const lines = Math.ceil(grid.legend.count / Math.max(1, Math.floor((width - 16) / grid.legend.width)));
      layout.margin = { ...layout.margin, t: 32 + 20 * lines };
    }
    layout.height = layout.margin.t + layout.margin.b + grid.height * down;
    panels.forEach((panel, place) => {
      const left = (place % across) * (size.x + gap.x);
      const bottom = 1 - Math.floor(place / across) * (size.y + gap.y) - size.y;
      layout[panel.x].domain = [left, Math.min(1, left + size.x)];
      layout[panel.y].domain = [Math.max(0, bottom), Math.min(1, bottom + size.y)];
      Object.assign(layout.annotations[place], { x: left, y: Math.min(1, bottom + size.y) });
    });
  }

  // Drawing: one figure after another, with pauses that leave the page most of the time.

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

  async function render(name) {
    const figure = shown.get(name);
    if (!figure) return;
    figure.dirty = false;
    const width = figure.div.clientWidth || 640;
    const { data, layout } = fitted(themed(figure.spec), width);
    layout.uirevision = "kept"; // a zoom, or a trace switched off, outlives a redraw
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // a finger scrolls the page
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
        const name = waiting.shift();
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

  // Somebody has done something and looks: what waits is drawn without pauses, once.
  function hurry() {
    hurried = true;
    wake();
    work();
  }

  function later(name) {
    const figure = shown.get(name);
    figure.dirty = true;
    if (figure.near && !waiting.includes(name)) waiting.push(name);
    work();
  }

  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const name = entry.target.id.replace(/^figure-/, "");
      const figure = shown.get(name);
      if (!figure) continue;
      figure.near = entry.isIntersecting;
      if (figure.near && figure.dirty) later(name);
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
      div.style.minHeight = `${spec.layout.height}px`; // so that the page does not jump
      figure.listening = false;
      sight.observe(div);
      widths.observe(div);
    }
    if (chosen) mark(name);
    later(name);
  }

  function patch(patches) {
    for (const [name, more] of Object.entries(patches.figures)) {
      const figure = shown.get(name);
      if (!figure) continue;
      for (const [place, part] of Object.entries(more.traces || {})) grow(figure.spec.data[place], part);
      for (const [path, value] of Object.entries(more.layout || {})) put(figure.spec.layout, path, value);
      if (more.summary) figure.spec.layout.meta = { ...figure.spec.layout.meta, summary: more.summary };
      later(name);
    }
    if (chosen && Object.keys(patches.figures).length) refresh();
  }

  async function all() {
    for (const [name, figure] of shown) if (figure.dirty) await render(name);
  }

  function figure(name) {
    const found = shown.get(name);
    return found && found.spec;
  }

  // Choosing a peer.

  const runOf = (name) => Number((/-(\d+)$/.exec(name) || [0, 0])[1]);
  const kindOf = (name) => name.replace(/-\d+$/, "");

  function clicked(name, event) {
    const point = event.points[0];
    const role = (figure(name).data[point.curveNumber].meta || {}).role;
    if (role === "peers" || role === "each") select(Number(point.customdata), runOf(name));
  }

  // Write the chosen peer into a figure's own trace for it.
  function mark(name) {
    const spec = figure(name);
    const trace = spec.data.find((one) => (one.meta || {}).role === "chosen");
    if (!trace) return false;
    let [x, y] = [[], []];
    const here = chosen && (!/-\d+$/.test(name) || runOf(name) === chosen.run);
    if (here && kindOf(name) === "network") {
      const peers = spec.data.find((one) => one.meta.role === "peers");
      const place = peers.customdata.indexOf(chosen.peer);
      if (place >= 0) [x, y] = [[peers.x[place]], [peers.y[place]]];
    } else if (here && chosen.curve) {
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
      say("");
      return;
    }
    chosen = { peer, run, curve: null };
    controls(peer, run);
    const now = chosen;
    try {
      const curve = await globalThis.peerbayes.curve(peer, run);
      if (now !== chosen) return; // somebody has chosen another meanwhile
      chosen.curve = curve;
      markAll();
      hurry();
      say(told(curve));
    } catch (error) {
      if (now !== chosen) return;
      chosen = null;
      markAll();
      say(`Peer ${peer}: ${error.message}`);
    }
  }

  // The chosen peer's curve after new rounds: asked for again, never twice at a time.
  async function refresh() {
    if (asking) return;
    asking = true;
    const now = chosen;
    try {
      const curve = await globalThis.peerbayes.curve(now.peer, now.run);
      if (now === chosen) {
        chosen.curve = curve;
        for (const name of shown.keys()) if (kindOf(name) !== "network" && mark(name)) later(name);
        say(told(curve));
      }
    } catch {
      // the next patch asks again
    } finally {
      asking = false;
    }
  }

  const short = (value, digits) => (value === null || value === undefined ? "unknown" : Number(value).toFixed(digits));

  function told(curve) {
    const last = curve.rounds.length - 1;
    const name = curve.name.charAt(0).toUpperCase() + curve.name.slice(1);
    const rows = `${name}: ${curve.rows.toLocaleString("en")} ${curve.rows === 1 ? "row" : "rows"}`;
    if (last < 0) return `${rows}; no round has been evaluated yet.`;
    const apart = curve.disagreement && curve.disagreement[last];
    const far = apart === null || apart === undefined ? "" : `, disagreement ${Number(apart).toPrecision(3)}`;
    const part = curve.whole === false ? " Its curve is not kept here." : "";
    return `${rows}; ${curve.kind} ${short(curve.error[last], 4)}${far} after round ${curve.rounds[last]}.${part}`;
  }

  function say(text) {
    const region = document.getElementById("chosen-said");
    if (region) region.textContent = text;
  }

  function element(kind, attributes, text = "") {
    const made = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  }

  function chooser(runs) {
    const place = document.getElementById("chooser");
    if (!place) return;
    place.replaceChildren(element("label", { for: "chosen-peer" }, "Peer"));
    const names = runs[0].names;
    const input = names
      ? element("select", { id: "chosen-peer" })
      : element("input", { id: "chosen-peer", type: "number", min: 0, max: runs[0].nodes - 1, step: 1, inputmode: "numeric" });
    if (names) {
      input.append(element("option", { value: "" }, "none"));
      names.forEach((name, peer) => input.append(element("option", { value: peer }, name)));
    }
    place.append(input);
    let which = null;
    if (runs.length > 1) {
      which = element("select", { id: "chosen-run" });
      runs.forEach((run, number) => which.append(element("option", { value: number }, run.title)));
      place.append(element("label", { for: "chosen-run" }, "of"), which);
    }
    place.append(element("p", { id: "chosen-said", role: "status", "aria-live": "polite" }));
    const change = () => {
      const run = which ? Number(which.value) : 0;
      const peer = input.value === "" ? null : Number(input.value);
      if (peer !== null && !(Number.isInteger(peer) && peer >= 0 && peer < runs[run].nodes)) {
        say(`There is no peer ${input.value}: choose 0 to ${runs[run].nodes - 1}.`);
      } else {
        select(peer, run);
      }
    };
    input.addEventListener(names ? "change" : "input", change);
    if (which) which.addEventListener("change", change);
    place.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        input.value = "";
        select(null);
      }
    });
  }

  function controls(peer, run) {
    const input = document.getElementById("chosen-peer");
    const which = document.getElementById("chosen-run");
    if (input && Number(input.value || NaN) !== peer) input.value = String(peer);
    if (which) which.value = String(run);
  }

  // The page's colours, now and whenever they change.

  function theme() {
    colours = readColours();
    for (const name of shown.keys()) later(name);
  }

  colours = readColours();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  addEventListener("beforeprint", () => { all(); });

  const curve = () => Promise.reject(new Error("no curve is known"));
  return { draw, patch, select, chooser, figure, all, theme, curve, numbers };
})();
