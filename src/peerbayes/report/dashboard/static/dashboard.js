// The dashboard: it loads the full state once, and then receives updates as server-sent events.
"use strict";

(() => {
  const FIRST_PAUSE = 500, LONGEST_PAUSE = 8000; // milliseconds between attempts to connect
  const SILENCE = 15000; // milliseconds without a message after which a connection counts as lost
  const STOPPED = 10; // seconds without a round after which a simulation seems to have stopped
  const ANNOUNCE_EVERY = 10000; // milliseconds between two announcements to screen readers
  const LOAD_EVERY = 1000; // milliseconds between two loads of the full state
  const CURVE_EVERY = 2000; // milliseconds between two requests for the selected peer's curve
  const LINES = 200; // most entries of the audit log
  const NEIGHBOUR_STATES = { "never heard": "no message yet", "not known": "unknown" }; // texts of states; others are shown as they are

  const RUN_STATES = { proposed: "waiting", approved: "waiting", paused: "waiting", running: "going", done: "done" }; // colours of states; others ended otherwise

  const SUMMARY_TITLES = { test_error: "Test error", train_error: "Training error", disagreement: "Disagreement", bytes: "Bytes sent per peer" };

  const REFERENCE_TITLES = { rc: "RC", ml: "ML" };

  const $ = (id) => document.getElementById(id);
  const chooser = create("div", { class: "chooser", id: "chooser" });
  let version = -1; // of the state shown
  let state = null; // the last state: {kind, facts, …}
  let ahead = 0; // seconds that the server's clock is ahead of this browser's
  let stream = null;
  let pause = FIRST_PAUSE;
  let lastMessage = 0; // time of the last message
  let connected = false;
  let loading = false;
  let loaded = 0;
  let early = []; // updates received while the full state was loading
  let model = -1;
  let entries = []; // of the audit log
  let announced = { text: "", at: 0 };

  // Connection.

  function connect() {
    if (stream) stream.close();
    const mine = (stream = new EventSource("events"));
    lastMessage = Date.now();
    const on = (name, handle) => mine.addEventListener(name, (event) => {
      if (mine !== stream) return;
      lastMessage = Date.now();
      pause = FIRST_PAUSE;
      connected = true;
      const message = JSON.parse(event.data);
      ahead = message.now - Date.now() / 1000;
      handle(message);
      status();
    });
    on("beat", (message) => {
      if (state && message.at !== undefined) Object.assign(state.facts, { at: message.at }, message.running === undefined ? {} : { running: message.running });
      if (message.version !== version) load();
    });
    on("reload", load);
    on("update", update);
    mine.onerror = () => {
      if (mine === stream) lost();
    };
  }

  function lost() {
    if (stream) stream.close();
    stream = null;
    connected = false;
    status();
    if (document.hidden) return;
    setTimeout(() => { if (!stream && !document.hidden) connect(); }, pause * (0.75 + Math.random() / 2));
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  }

  // A browser has few connections per host: a hidden page closes its own.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && stream) lost();
    else if (!document.hidden && !stream) connect();
  });

  async function load() {
    if (loading) return;
    loading = true;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, loaded + LOAD_EVERY - Date.now())));
    let failed = false;
    try {
      const response = await fetch("figures");
      if (!response.ok) throw new Error(await response.text());
      const message = await response.json();
      version = message.version;
      show(message);
    } catch (error) {
      notice(connected ? `The figures could not be loaded: ${error.message}` : "");
      failed = connected;
    }
    loading = false;
    loaded = Date.now();
    const waiting = early;
    early = [];
    if (failed) return load();
    for (const message of waiting) update(message);
  }

  function update(message) {
    if (loading) {
      early.push(message);
      if (early.length > 1000) early.shift();
    } else if (message.since === version) {
      version = message.version;
      grow(message);
    } else if (message.version > version) load();
  }

  // Figures.

  function show(message) {
    state = message;
    ahead = message.now - Date.now() / 1000;
    const peer = message.kind === "peer";
    $("facts").hidden = message.kind === "nothing";
    for (const id of ["peer", "audit"]) $(id).hidden = !peer;
    if (!peer) for (const id of ["refusals", "runs"]) $(id).hidden = true;
    chooser.hidden = peer;
    arrange(message.sections);
    const { facts } = message;
    const controls = `${message.kind} ${facts.peers} ${facts.seconds}`;
    if (!chooser.hidden && message.kind !== "nothing" && chooser.dataset.controls !== controls) {
      chooser.dataset.controls = controls;
      if (message.kind === "run") peerbayes.chooser([{ title: facts.name, count: facts.peers, names: null, seconds: facts.seconds }]);
      else chooser.replaceChildren(...peerbayes.switches([{ seconds: facts.seconds }]));
    }
    for (const [name, spec] of Object.entries(message.figures)) peerbayes.draw(name, spec);
    model = message.model;
    entries = message.lines || [];
    words();
  }

  function grow(message) {
    state = { ...state, ...message };
    if (message.patch) peerbayes.patch(message.patch);
    for (const [name, spec] of Object.entries(message.replaced || {})) peerbayes.draw(name, spec);
    if (message.model !== model) models(message.model);
    entries = [...entries, ...(message.lines || [])].slice(-LINES);
    words();
  }

  // Create a card for every figure, in sections, and remove cards without a figure.
  function arrange(sections) {
    const container = $("sections");
    const all = sections.flatMap(([, figures]) => figures.map(([name]) => name));
    for (const card of container.querySelectorAll("figure")) if (!all.includes(card.dataset.name)) card.remove();
    sections.forEach(([heading, figures], number) => {
      let section = [...container.children].find((child) => child.dataset.heading === heading);
      if (!section) {
        section = create("section", { "data-heading": heading, "aria-label": heading });
        section.append(create("h2", {}, heading), create("div", { class: "grid" }));
      }
      if (container.children[number] !== section) container.insertBefore(section, container.children[number] || null);
      const grid = section.querySelector(".grid");
      if (number === 0) section.insertBefore(chooser, grid);
      figures.forEach((figure, at) => grid.children[at]?.dataset.name === figure[0] || grid.insertBefore(card(figure), grid.children[at] || null));
    });
    while (container.children.length > sections.length) container.lastChild.remove();
  }

  function card([name, title, caption, classes]) {
    const existing = document.querySelector(`figure[data-name="${name}"]`);
    if (existing) return existing;
    const figure = create("figure", { class: `card ${classes}`, "data-name": name });
    figure.append(create("h3", {}, title), create("div", { class: "plot", id: `figure-${name}` }), create("figcaption", {}, caption));
    return figure;
  }

  async function models(modelVersion) {
    const fresh = model === 0;
    model = modelVersion;
    if (fresh) return load(); // there are no cards for them yet
    try {
      const message = await (await fetch("model")).json();
      for (const [name, spec] of Object.entries(message.figures)) peerbayes.draw(name, spec);
    } catch {
      model = -1; // the next update tries again
    }
  }

  // Texts.

  function words() {
    const { kind, facts } = state;
    $("name").textContent = facts.name;
    notice(kind === "nothing" ? facts.told : kind === "peer" ? problems(facts.verdict) : "");
    if (kind === "nothing") {
      $("about").textContent = "Nothing to show yet; this page keeps checking.";
      for (const id of ["round", "speed"]) $(id).textContent = "";
      $("progress").hidden = true;
    } else {
      const peers = `${count(facts.peers)} ${kind === "peer" ? "members" : "peers"}`;
      $("about").textContent = kind === "runs"
        ? `Simulations side by side: ${facts.runs.map((run) => run.name).join(", ")}`
        : kind === "peer"
        ? `A peer in ${facts.network}: ${peers}, ${facts.run > 1 ? `run ${facts.run}, ` : ""}strategy ${facts.strategy}`
        : `A simulation: ${peers}, strategy ${facts.strategy}`;
      $("round").textContent = `round ${count(facts.round)} of ${count(facts.rounds)}`;
      $("speed").textContent = facts.finished || !facts.speed ? "" : `${speed(facts.speed)}${remaining(facts)}`;
      Object.assign($("progress"), { max: facts.rounds, value: facts.round, hidden: false });
    }
    if (kind === "run") summary(state.summary || {}, facts);
    if (kind === "runs") several(facts.runs);
    if (kind === "peer") peer(facts);
    status();
  }

  // The problems of a finished run; empty where there are none.
  function problems(verdict) {
    return verdict && !verdict.good ? `The run finished with problems: ${verdict.sentences.slice(0, verdict.problems).join("; ")}.` : "";
  }

  // Summary over all peers: mean and range.
  function summary(levels, facts) {
    const reference = Object.entries(facts.references || {}).filter(([name]) => REFERENCE_TITLES[name])
      .map(([name, value]) => fact(REFERENCE_TITLES[name], short(value), "on the pooled rows, which no peer has"));
    if (facts.awaits_references) reference.push(fact("RC and ML", "–", "are computed after the last round"));
    const form = (name) => (name === "bytes" ? size : short);
    $("facts").replaceChildren(...[...Object.entries(levels)
      .filter(([, values]) => values.some((value) => value !== null))
      .map(([name, [mean, least, most]]) => fact(SUMMARY_TITLES[name], form(name)(mean), `${form(name)(least)} to ${form(name)(most)} across peers`)), ...reference]);
  }

  // Several runs: one box for each.
  function several(runs) {
    $("facts").replaceChildren(...runs.map((run) => fact(run.name, short(run.error), run.finished
      ? `finished: ${count(run.rounds)} rounds`
      : age(run.at) > STOPPED ? `round ${count(run.round)} of ${count(run.rounds)}; seems to have stopped`
        : `round ${count(run.round)} of ${count(run.rounds)}${remaining(run)}`)));
  }

  function peer(facts) {
    const judged = facts.judged || {};
    const last = entries[entries.length - 1];
    const up = facts.neighbours.filter((neighbour) => neighbour.state === "up").length;
    const hidden = facts.figures === "hidden" ? "exact value: shown only on the peer's machine" : null;
    const noise = facts.figures === "exact" ? ", exact value: do not share" : "";
    $("facts").replaceChildren(
      fact("Error on held-out rows", short(judged.test_error), hidden || (judged.test_error == null ? "no rows are held out" : `round ${judged.round}${noise}`)),
      fact("Error on training rows", short(judged.train_error), hidden || (judged.round ? `round ${judged.round}${noise}` : "")),
      fact("Disagreement", short(judged.disagreement), hidden || "with its neighbours"),
      fact("Neighbours up", facts.running ? `${up} of ${facts.neighbours.length}` : "–", facts.running ? "" : "this peer is not running"),
      fact("Last message sent", last ? clock(last.at) : "none yet", last ? `${last.what} to ${last.to}, ${size(last.bytes)}` : ""),
    );
    $("neighbours-rows").replaceChildren(...facts.neighbours.map((neighbour) => {
      const tableRow = row(neighbour.name, "", neighbour.link || "–", ago(neighbour.seen), count(neighbour.done), count(neighbour.missed), neighbour.note || "");
      tableRow.children[1].append(create("span", { class: "state", "data-state": neighbour.state }, NEIGHBOUR_STATES[neighbour.state] || neighbour.state));
      if (neighbour.seen) tableRow.children[3].dataset.at = neighbour.seen;
      tableRow.dataset.name = neighbour.name;
      return tableRow;
    }));
    $("runs").hidden = facts.runs.length < 2; // of a network that has had one run, this page is about that
    $("runs-rows").replaceChildren(...facts.runs.map((run) => {
      const approved = run.proposer ? `${run.approved.length} of ${run.participants}` : "–";
      const tableRow = row(String(run.number), "", run.proposer || "the founder", approved, run.round ? count(run.round) : "–",
        run.verdict === null ? "–" : run.verdict ? "good" : "problems", run.sentence);
      tableRow.children[1].append(create("span", { class: "state", "data-state": RUN_STATES[run.state] || "lost" }, run.state));
      tableRow.children[3].title = run.waiting.length ? `waits for ${run.waiting.join(", ")}` : "";
      tableRow.dataset.number = run.number;
      return tableRow;
    }));
    $("refusals").hidden = !facts.refusals.length;
    $("refusals-rows").replaceChildren(...facts.refusals.map((refusal) =>
      row(refusal.who, refusal.reason, count(refusal.count), clock(refusal.last * 1000), refusal.detail || "")));
    $("audit-told").textContent = facts.sent.problem
      || `${count(facts.sent.messages)} messages, ${size(facts.sent.bytes)} in total; the hash chain is intact. `
        + `The last ${Math.min(LINES, facts.sent.messages)}, newest first:`;
    $("audit-told").classList.toggle("notice", Boolean(facts.sent.problem));
    audit();
  }

  // The log does not move while the pointer or the focus is in it.
  function audit() {
    const region = $("audit-region");
    if (region.matches(":hover, :focus, :focus-within") && $("audit-rows").children.length) return;
    const rows = $("audit-rows");
    const newest = rows.firstChild ? Number(rows.firstChild.dataset.number) : 0;
    if (entries.length && newest > entries[entries.length - 1].number) rows.replaceChildren();
    for (const entry of entries) {
      if (rows.firstChild && entry.number <= newest) continue;
      const added = row(clock(entry.at), entry.to, entry.what, count(entry.bytes), "");
      added.dataset.number = entry.number;
      added.children[4].append(create("code", { title: entry.digest }, `${entry.digest.slice(0, 16)}…`));
      rows.prepend(added);
    }
    while (rows.children.length > LINES) rows.lastChild.remove();
  }
  for (const name of ["pointerleave", "focusout"]) $("audit-region").addEventListener(name, () => setTimeout(() => state && state.kind === "peer" && audit()));

  // Status: the strip, and announcements to screen readers.
  function status() {
    const [kind, description] = currentStatus();
    const strip = $("state");
    if (strip.textContent !== description) strip.textContent = description;
    strip.dataset.state = kind;
    const at = state && state.facts.at;
    $("heard").textContent = at && state.kind !== "nothing" ? `${["run", "runs"].includes(state.kind) && state.facts.finished ? "saved" : "last message"} ${ago(at)}` : "";
    for (const cell of document.querySelectorAll("td[data-at]")) cell.textContent = ago(Number(cell.dataset.at));
    const round = state && state.kind !== "nothing" ? `, round ${state.facts.round} of ${state.facts.rounds}` : "";
    document.title = state ? `${state.facts.name}${round} · ${description}` : "peerbayes";
    const text = `${description}${round}`;
    const changed = announced.description !== description;
    if (text !== announced.text && (changed || Date.now() - announced.at >= ANNOUNCE_EVERY)) {
      announced = { text, description, at: Date.now() };
      $("announced").textContent = text;
    }
  }

  function currentStatus() {
    if (!connected) return ["lost", state ? "not connected, retrying" : "connecting"];
    if (!state) return ["waiting", "loading"];
    const { kind, facts } = state;
    if (kind === "nothing") return ["waiting", "waiting"];
    if (kind === "peer") {
      if (facts.revoked) return ["lost", "revoked"];
      if (facts.verdict && !facts.verdict.good) return ["lost", "finished with problems"];
      if (!facts.running) return facts.finished ? ["done", facts.verdict ? "done" : facts.figures === "hidden" ? "all rounds done" : "all rounds done, not evaluated yet"] : ["lost", "not running"];
      if (!facts.closed) return ["waiting", "waiting for the network to be closed"];
      if (!facts.agreed) return ["waiting", "agreeing with the other peers"];
      return facts.finished ? ["done", facts.verdict ? "done, still serving its neighbours" : facts.figures === "hidden" ? "all rounds done, still serving its neighbours" : "all rounds done, evaluating the run"] : ["going", "running"];
    }
    if (facts.finished) return ["done", kind === "runs" ? "all finished" : "finished"];
    if (age(facts.at) > STOPPED) return ["lost", facts.round < facts.rounds ? "seems to have stopped" : "all rounds done, not saved yet"];
    return facts.round < facts.rounds ? ["going", "running"] : ["going", "all rounds done, computing references"];
  }

  function notice(text) {
    $("notice").hidden = !text;
    if ($("notice").textContent !== text) $("notice").textContent = text;
  }

  // Helpers.

  function create(kind, attributes, text = "") {
    const element = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  }

  function row(name, ...cells) {
    const tableRow = document.createElement("tr");
    tableRow.append(create("th", { scope: "row" }, name), ...cells.map((cell) => create("td", {}, cell)));
    return tableRow;
  }

  function fact(name, value, note) {
    const box = create("div", {});
    box.append(create("dt", {}, name), create("dd", {}, value));
    box.lastChild.append(create("small", {}, note));
    return box;
  }

  const count = (value) => Number(value).toLocaleString("en");
  const age = (at) => Date.now() / 1000 + ahead - at;

  function short(value) {
    if (value === null || value === undefined) return "–";
    return Math.abs(value) >= 0.001 || value === 0 ? value.toFixed(4) : value.toExponential(1);
  }

  function size(value) {
    if (value === null || value === undefined) return "–";
    const units = ["B", "kB", "MB", "GB", "TB"];
    let power = 0;
    for (; value >= 1000 && power < units.length - 1; power++) value /= 1000;
    return `${power ? value.toPrecision(3) : Math.round(value)} ${units[power]}`;
  }

  function speed(value) {
    return value >= 1 ? `${value.toPrecision(3)} rounds per second` : `${(1 / value).toPrecision(2)} s per round`;
  }

  // The time until the last round, at the pace of the recent ones.
  function remaining(facts) {
    if (!facts.speed || facts.round >= facts.rounds) return "";
    const seconds = (facts.rounds - facts.round) / facts.speed;
    const text = seconds < 100 ? `${Math.max(1, Math.round(seconds))} s`
      : seconds < 6000 ? `${Math.round(seconds / 60)} min`
        : seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
    return `, about ${text} left`;
  }

  function ago(at) {
    if (!at) return "never";
    const seconds = Math.max(0, age(at));
    if (seconds < 10) return `${seconds.toFixed(seconds < 2 ? 1 : 0)} s ago`;
    if (seconds < 100) return `${Math.round(seconds)} s ago`;
    if (seconds < 6000) return `${Math.round(seconds / 60)} min ago`;
    return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
  }

  function clock(at) {
    const day = new Date(at);
    const time = day.toLocaleTimeString("en", { hour12: false });
    return Date.now() - day < 43_200_000 ? time : `${day.toISOString().slice(0, 10)} ${time}`;
  }

  // One peer's curve, requested at intervals: there may be ten rounds per second.
  let requested = { peer: null, at: 0 };
  peerbayes.curve = async (number) => {
    if (state && state.kind === "runs") throw new Error("open the run alone to see one peer");
    if (requested.peer === number) await new Promise((resolve) => setTimeout(resolve, Math.max(0, requested.at + CURVE_EVERY - Date.now())));
    requested = { peer: number, at: Date.now() };
    const response = await fetch(`peers/${number}`);
    if (!response.ok) throw new Error((await response.text()).trim());
    return response.json();
  };

  setInterval(() => {
    if (stream && Date.now() - lastMessage > SILENCE) lost();
    status();
  }, 1000);
  connect();
})();
