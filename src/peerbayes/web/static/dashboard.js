// A live page: it gets everything once, and then, by server-sent events, what is new.
"use strict";

(() => {
  const FIRST_PAUSE = 500, LONGEST_PAUSE = 8000; // milliseconds between attempts to connect
  const SILENCE = 15000; // milliseconds without a message after which a connection is taken for dead
  const STOPPED = 10; // seconds after which a simulation that is silent seems to have stopped
  const SAY_EVERY = 10000; // milliseconds between two announcements of the round
  const LOAD_EVERY = 1000; // milliseconds between two loads of everything
  const CURVE_EVERY = 2000; // milliseconds between two questions for the chosen peer's curve
  const LINES = 200;

  const OF_ALL = { test_error: "Test error", train_error: "Training error", disagreement: "Disagreement", bytes: "Sent by each peer" };

  const $ = (id) => document.getElementById(id);
  const chooser = made("div", { class: "chooser", id: "chooser" });
  let known = -1; // the version of what is shown
  let now = null; // the last state: {kind, facts, …}
  let ahead = 0; // seconds that the server's clock is ahead of this one's
  let stream = null;
  let pause = FIRST_PAUSE;
  let heard = 0; // when the last message came
  let connected = false;
  let loading = false;
  let loaded = 0;
  let early = []; // updates that came while everything was being loaded
  let model = -1;
  let lines = [];
  let said = { text: "", at: 0 };

  // Connecting.

  function connect() {
    if (stream) stream.close();
    const mine = (stream = new EventSource("events"));
    heard = Date.now();
    const on = (name, what) => mine.addEventListener(name, (event) => {
      if (mine !== stream) return;
      heard = Date.now();
      pause = FIRST_PAUSE;
      connected = true;
      const told = JSON.parse(event.data);
      ahead = told.now - Date.now() / 1000;
      what(told);
      status();
    });
    on("beat", (told) => {
      if (now && told.at !== undefined) Object.assign(now.facts, { at: told.at }, told.running === undefined ? {} : { running: told.running });
      if (told.version !== known) load();
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

  // A browser has few connections to one host: a page that nobody sees gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && stream) lost();
    else if (!document.hidden && !stream) connect();
  });

  async function load() {
    if (loading) return;
    loading = true;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, loaded + LOAD_EVERY - Date.now())));
    let more = false;
    try {
      const answer = await fetch("figures");
      if (!answer.ok) throw new Error(await answer.text());
      const told = await answer.json();
      known = told.version;
      show(told);
    } catch (error) {
      notice(connected ? `The figures could not be loaded: ${error.message}` : "");
      more = connected;
    }
    loading = false;
    loaded = Date.now();
    const waiting = early;
    early = [];
    if (more) return load();
    for (const told of waiting) update(told);
  }

  function update(told) {
    if (loading) {
      early.push(told);
      if (early.length > 1000) early.shift();
    } else if (told.since === known) {
      known = told.version;
      grow(told);
    } else if (told.version > known) load();
  }

  // Showing.

  function show(told) {
    now = told;
    ahead = told.now - Date.now() / 1000;
    const peer = told.kind === "peer";
    $("facts").hidden = told.kind === "nothing";
    for (const id of ["peer", "audit"]) $(id).hidden = !peer;
    if (!peer) $("refusals").hidden = true;
    chooser.hidden = peer;
    arrange(told.sections);
    if (told.kind === "run" && chooser.dataset.nodes !== String(told.facts.peers)) {
      chooser.dataset.nodes = told.facts.peers;
      peerbayes.chooser([{ title: told.facts.name, nodes: told.facts.peers, names: null }]);
    }
    for (const [name, spec] of Object.entries(told.figures)) peerbayes.draw(name, spec);
    model = told.model;
    lines = told.lines || [];
    words();
  }

  function grow(told) {
    now = { ...now, ...told };
    if (told.patch) peerbayes.patch(told.patch);
    for (const [name, spec] of Object.entries(told.replaced || {})) peerbayes.draw(name, spec);
    if (told.model !== model) models(told.model);
    lines = [...lines, ...(told.lines || [])].slice(-LINES);
    words();
  }

  // A card for every figure, in sections; what is gone is taken away.
  function arrange(sections) {
    const place = $("sections");
    const all = sections.flatMap(([, figures]) => figures.map(([name]) => name));
    for (const card of place.querySelectorAll("figure")) if (!all.includes(card.dataset.name)) card.remove();
    sections.forEach(([heading, figures], number) => {
      let section = [...place.children].find((each) => each.dataset.heading === heading);
      if (!section) {
        section = made("section", { "data-heading": heading, "aria-label": heading });
        section.append(made("h2", {}, heading), made("div", { class: "grid" }));
      }
      if (place.children[number] !== section) place.insertBefore(section, place.children[number] || null);
      const grid = section.querySelector(".grid");
      if (number === 0) section.insertBefore(chooser, grid);
      figures.forEach((figure, at) => grid.children[at]?.dataset.name === figure[0] || grid.insertBefore(card(figure), grid.children[at] || null));
    });
    while (place.children.length > sections.length) place.lastChild.remove();
  }

  function card([name, title, caption, classes]) {
    const found = document.querySelector(`figure[data-name="${name}"]`);
    if (found) return found;
    const figure = made("figure", { class: `card ${classes}`, "data-name": name });
    figure.append(made("h3", {}, title), made("div", { class: "plot", id: `figure-${name}` }), made("figcaption", {}, caption));
    return figure;
  }

  async function models(version) {
    const fresh = model === 0;
    model = version;
    if (fresh) return load(); // there is no place for them yet
    try {
      const told = await (await fetch("model")).json();
      for (const [name, spec] of Object.entries(told.figures)) peerbayes.draw(name, spec);
    } catch {
      model = -1; // the next update asks again
    }
  }

  // In words.

  function words() {
    const { kind, facts } = now;
    $("name").textContent = facts.name;
    notice(kind === "nothing" ? facts.told : kind === "peer" ? badly(facts.verdict) : "");
    if (kind === "nothing") {
      $("about").textContent = "Nothing to see yet; this page goes on looking.";
      for (const id of ["round", "speed"]) $(id).textContent = "";
      $("progress").hidden = true;
    } else {
      const peers = `${count(facts.peers)} ${kind === "peer" ? "members" : "peers"}`;
      $("about").textContent = kind === "peer"
        ? `A peer in ${facts.network}: ${peers}, strategy ${facts.strategy}`
        : `A simulation: ${peers}, strategy ${facts.strategy}`;
      $("round").textContent = `round ${count(facts.round)} of ${count(facts.rounds)}`;
      $("speed").textContent = facts.finished || !facts.speed ? "" : `${speed(facts.speed)}`;
      Object.assign($("progress"), { max: facts.rounds, value: facts.round, hidden: false });
    }
    if (kind === "run") summary(now.summary || {});
    if (kind === "peer") peer(facts);
    status();
  }

  // What is wrong with a run that has come to its end; nothing where all is well.
  function badly(verdict) {
    return verdict && !verdict.good ? `The run ended, but not well: ${verdict.sentences.slice(0, verdict.problems).join("; ")}.` : "";
  }

  // All peers together: the mean, and between what they are.
  function summary(told) {
    const form = (name) => (name === "bytes" ? size : short);
    $("facts").replaceChildren(...Object.entries(told)
      .filter(([, values]) => values.some((value) => value !== null))
      .map(([name, [mean, least, most]]) => fact(OF_ALL[name], form(name)(mean), `${form(name)(least)} to ${form(name)(most)} over peers`)));
  }

  function peer(facts) {
    const judged = facts.judged || {};
    const last = lines[lines.length - 1];
    const up = facts.neighbours.filter((each) => each.state === "up").length;
    const hidden = facts.figures === "hidden" ? "without noise: on the peer's machine only" : null;
    const noise = facts.figures === "exact" ? ", without noise: not for others" : "";
    $("facts").replaceChildren(
      fact("Error on held-out rows", short(judged.test_error), hidden || (judged.test_error == null ? "none are held out" : `round ${judged.round}${noise}`)),
      fact("Error on its own rows", short(judged.train_error), hidden || (judged.round ? `round ${judged.round}${noise}` : "")),
      fact("Disagreement", short(judged.disagreement), hidden || "with its neighbours"),
      fact("Neighbours up", facts.running ? `${up} of ${facts.neighbours.length}` : "–", facts.running ? "" : "it does not run"),
      fact("Last message", last ? clock(last.at) : "none yet", last ? `${last.what} to ${last.to}, ${size(last.bytes)}` : ""),
    );
    $("neighbours-rows").replaceChildren(...facts.neighbours.map((each) => {
      const line = row(each.name, "", ago(each.seen), count(each.done), count(each.missed), each.note || "");
      line.children[1].append(made("span", { class: "state", "data-state": each.state }, each.state));
      if (each.seen) line.children[2].dataset.at = each.seen;
      line.dataset.name = each.name;
      return line;
    }));
    $("refusals").hidden = !facts.refusals.length;
    $("refusals-rows").replaceChildren(...facts.refusals.map((each) =>
      row(each.who, each.reason, count(each.count), clock(each.last * 1000), each.detail || "")));
    $("audit-told").textContent = facts.sent.problem
      || `${count(facts.sent.messages)} messages, ${size(facts.sent.bytes)} in all; every line fits to the one before. `
        + `The last ${Math.min(LINES, facts.sent.messages)}, newest first:`;
    $("audit-told").classList.toggle("notice", Boolean(facts.sent.problem));
    audit();
  }

  // The log stands still while somebody reads in it.
  function audit() {
    const region = $("audit-region");
    if (region.matches(":hover, :focus, :focus-within") && $("audit-rows").children.length) return;
    const rows = $("audit-rows");
    const newest = rows.firstChild ? Number(rows.firstChild.dataset.number) : 0;
    if (lines.length && newest > lines[lines.length - 1].number) rows.replaceChildren();
    for (const line of lines) {
      if (rows.firstChild && line.number <= newest) continue;
      const added = row(clock(line.at), line.to, line.what, count(line.bytes), "");
      added.dataset.number = line.number;
      added.children[4].append(made("code", { title: line.digest }, `${line.digest.slice(0, 16)}…`));
      rows.prepend(added);
    }
    while (rows.children.length > LINES) rows.lastChild.remove();
  }
  for (const name of ["pointerleave", "focusout"]) $("audit-region").addEventListener(name, () => setTimeout(() => now && now.kind === "peer" && audit()));

  // How things stand: the strip, and an announcement now and then.
  function status() {
    const [word, what] = standing();
    const strip = $("state");
    if (strip.textContent !== what) strip.textContent = what;
    strip.dataset.state = word;
    const at = now && now.facts.at;
    $("heard").textContent = at && now.kind !== "nothing" ? `${now.kind === "run" && now.facts.finished ? "saved" : "last heard of"} ${ago(at)}` : "";
    for (const cell of document.querySelectorAll("td[data-at]")) cell.textContent = ago(Number(cell.dataset.at));
    const round = now && now.kind !== "nothing" ? `, round ${now.facts.round} of ${now.facts.rounds}` : "";
    document.title = now ? `${now.facts.name}${round} · ${what}` : "peerbayes";
    const text = `${what}${round}`;
    const changed = said.what !== what;
    if (text !== said.text && (changed || Date.now() - said.at >= SAY_EVERY)) {
      said = { text, what, at: Date.now() };
      $("announced").textContent = text;
    }
  }

  function standing() {
    if (!connected) return ["lost", now ? "not connected, trying again" : "connecting"];
    if (!now) return ["waiting", "loading"];
    const { kind, facts } = now;
    if (kind === "nothing") return ["waiting", "waiting"];
    if (kind === "peer") {
      if (facts.revoked) return ["lost", "revoked"];
      if (facts.verdict && !facts.verdict.good) return ["lost", "ended, but not well"];
      if (!facts.running) return facts.finished ? ["done", facts.verdict ? "done" : facts.figures === "hidden" ? "at its end" : "at its end, not judged yet"] : ["lost", "not running"];
      if (!facts.closed) return ["waiting", "waiting for the network to be closed"];
      if (!facts.agreed) return ["waiting", "agreeing with the others"];
      return facts.finished ? ["done", facts.verdict ? "done, staying for its neighbours" : facts.figures === "hidden" ? "at its end, staying for its neighbours" : "all rounds done, judging the run"] : ["going", "running"];
    }
    if (facts.finished) return ["done", "finished"];
    if (age(facts.at) > STOPPED) return ["lost", facts.round < facts.rounds ? "seems to have stopped" : "all rounds done, not saved yet"];
    return facts.round < facts.rounds ? ["going", "running"] : ["going", "all rounds done, computing references"];
  }

  function notice(text) {
    $("notice").hidden = !text;
    if ($("notice").textContent !== text) $("notice").textContent = text;
  }

  // Small things.

  function made(kind, attributes, text = "") {
    const element = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  }

  function row(name, ...cells) {
    const line = document.createElement("tr");
    line.append(made("th", { scope: "row" }, name), ...cells.map((cell) => made("td", {}, cell)));
    return line;
  }

  function fact(name, value, note) {
    const box = made("div", {});
    box.append(made("dt", {}, name), made("dd", {}, value));
    box.lastChild.append(made("small", {}, note));
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
    let place = 0;
    for (; value >= 1000 && place < units.length - 1; place++) value /= 1000;
    return `${place ? value.toPrecision(3) : Math.round(value)} ${units[place]}`;
  }

  function speed(value) {
    return value >= 1 ? `${value.toPrecision(3)} rounds a second` : `a round in ${(1 / value).toPrecision(2)} s`;
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

  // One peer's curve, asked for now and then: a new round may come ten times a second.
  let asked = { peer: null, at: 0 };
  peerbayes.curve = async (number) => {
    if (asked.peer === number) await new Promise((resolve) => setTimeout(resolve, Math.max(0, asked.at + CURVE_EVERY - Date.now())));
    asked = { peer: number, at: Date.now() };
    const answer = await fetch(`peers/${number}`);
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return answer.json();
  };

  setInterval(() => {
    if (stream && Date.now() - heard > SILENCE) lost();
    status();
  }, 1000);
  connect();
})();
