// A report: the page itself contains its figures and its peers' curves.
"use strict";

(() => {
  const content = JSON.parse(document.getElementById("report-content").textContent);
  const { numbers } = peerbayes;

  const runs = content.runs.map((run) => ({
    ...run,
    peers: numbers(run.peers),
    rounds: Array.from(numbers(run.rounds)),
    sizes: numbers(run.sizes),
    curves: { error: numbers(run.error), disagreement: numbers(run.disagreement) },
    last: { error: numbers(run.last.error), disagreement: numbers(run.last.disagreement) },
  }));

  // plotly takes NaN as a gap; texts take null.
  const plain = (array) => Array.from(array, (value) => (Number.isNaN(value) ? null : value));

  peerbayes.curve = async (peer, number) => {
    const run = runs[number];
    const index = run.peers.indexOf(peer);
    const whole = index >= 0;
    const length = run.rounds.length;
    const values = (kind) =>
      whole ? run.curves[kind].slice(index * length, (index + 1) * length) : run.last[kind].slice(peer, peer + 1);
    return {
      peer,
      name: run.names ? run.names[peer] : `peer ${peer}`,
      rows: run.sizes[peer],
      kind: run.kind,
      whole,
      rounds: whole ? run.rounds : run.rounds.slice(-1),
      error: plain(values("error")),
      disagreement: plain(values("disagreement")),
    };
  };

  peerbayes.chooser(runs.map(({ title, count, names, seconds }) => ({ title, count, names, seconds })));
  for (const [name, spec] of Object.entries(content.figures)) peerbayes.draw(name, spec);

  for (const select of document.querySelectorAll("select[data-feature]")) {
    const name = select.dataset.feature;
    const show = () => peerbayes.draw(name, content.features[name][Number(select.value)]);
    select.addEventListener("change", show);
    show();
  }
})();
