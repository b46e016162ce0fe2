"use strict";
(() => {
  const evidence = JSON.parse(document.getElementById("evidence").textContent);
  const find = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const views = {};
  const state = {}; // chart -> parameter -> value, kept when charts are drawn anew

  // Charts

  function color(name) {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  function themed(spec) {
    const text = JSON.stringify(spec);
    const made = JSON.parse(text.replace(/var\((--[a-z0-9]+)\)/g, (_, name) => color(name)));
    made.config.font = getComputedStyle(document.body).fontFamily;
    made.datasets = {};
    for (const [, name] of text.matchAll(/"data":{"name":"([a-z]+)"}/g)) made.datasets[name] = rows(name);
    return made;
  }

  function rows(name) {
    if (name === "cosines") return cosines();
    const columns = evidence.tables[name];
    const names = Object.keys(columns);
    return columns[names[0]].map((_, place) => Object.fromEntries(names.map((name) => [name, columns[name][place]])));
  }

  async function draw(name) {
    const spec = themed(evidence.specs[name]);
    for (const param of spec.params ?? []) {
      if (state[name]?.[param.name] !== undefined) param.value = state[name][param.name];
    }
    const place = find(`#${name}`);
    if (name === "matrix") spec.height = Math.min(place.clientWidth, 430) - 60; // about square
    const actions = { export: true, source: false, compiled: false, editor: false };
    views[name]?.finalize();
    const { view } = await vegaEmbed(place, spec, { renderer: "svg", ast: true, actions });
    views[name] = view;
    place.querySelector("summary").setAttribute("aria-label", "Save this chart");
    if (name === "conflicts" || name === "choices") {
      view.addEventListener("click", (_, item) => {
        if (item?.datum?.layer) show(item.datum.layer, item.datum.round);
      });
    }
  }

  async function set(chart, param, value) {
    (state[chart] ??= {})[param] = value;
    if (views[chart]) await views[chart].signal(param, value).runAsync();
  }

  // Controls

  for (const select of all("select[data-signals]")) {
    select.addEventListener("change", () => choose(select));
  }

  function choose(select) {
    for (const target of select.dataset.signals.split(" ")) {
      const [chart, param] = target.split(".");
      if (chart in evidence.specs) set(chart, param, select.value);
      for (const part of all(`[data-if="${target}"]`)) part.hidden = part.dataset.is !== select.value;
    }
    if (select.dataset.signals.includes("conflicts.run")) open(select.value);
    if (select.dataset.signals === "gains.method") tell(select.value);
  }

  function tell(method) {
    const columns = ["client", "seed", "points", "accuracy", "alone", "examples"];
    const shown = rows("gains").filter((row) => row.method === method);
    find("#each").replaceChildren(
      ...shown.map((row) => {
        const line = document.createElement("tr");
        for (const name of columns) {
          const cell = line.appendChild(document.createElement(name === "client" ? "th" : "td"));
          cell.textContent = ["points", "accuracy", "alone"].includes(name) ? number(row[name], 1) : row[name];
        }
        return line;
      }),
    );
  }

  function number(value, digits) {
    return value.toFixed(digits).replace("-", "−");
  }

  for (const legend of all(".legend")) {
    legend.addEventListener("change", () => {
      const shown = [...legend.querySelectorAll("input:checked")].map((box) => box.value);
      set(legend.dataset.chart, "shown", shown);
    });
  }

  const themes = ["system", "light", "dark"];
  find("#theme").addEventListener("click", (event) => {
    const root = document.documentElement;
    const next = themes[(themes.indexOf(root.dataset.theme ?? "system") + 1) % themes.length];
    root.dataset.theme = next;
    event.target.textContent = `Theme: ${next}`;
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());

  // Client by client

  let run = Object.keys(evidence.xi)[0];
  let seen = { layer: "", round: 0 };
  const recorded = () => evidence.matrices[run] ?? [];
  const rounds = () => [...new Set(recorded().map((one) => one.round))];

  function open(name) {
    run = name;
    if (!find("#layer")) return;
    const layers = [...new Set(recorded().map((one) => one.layer))];
    find("#layer").replaceChildren(...layers.map((layer) => new Option(layer)));
    find("#round").max = Math.max(rounds().length - 1, 0);
    const last = recorded().filter((one) => one.round === rounds().at(-1));
    const most = last.reduce((a, b) => (b.share > a.share ? b : a), last[0]);
    if (most) show(layers.includes(seen.layer) ? seen.layer : most.layer, seen.round || most.round);
  }

  function show(layer, round) {
    if (!find("#layer") || !recorded().some((one) => one.layer === layer)) return;
    const near = rounds().reduce((a, b) => (Math.abs(b - round) < Math.abs(a - round) ? b : a));
    seen = { layer, round: near };
    find("#layer").value = layer;
    find("#round").value = rounds().indexOf(near);
    find("#round").setAttribute("aria-valuetext", `round ${near}`);
    find("#told").textContent = near;
    find("#reading").textContent = reading();
    set("conflicts", "layer", layer);
    set("conflicts", "round", near);
    if (views.matrix) views.matrix.data("cosines", cosines()).runAsync();
  }

  function matrix() {
    const one = recorded().find((one) => one.layer === seen.layer && one.round === seen.round);
    if (!one) return { clients: [], at: () => 0 };
    const bytes = Int8Array.from(atob(one.cosines), (letter) => letter.charCodeAt(0));
    const size = one.clients.length;
    const at = (a, b) => {
      const [low, high] = a < b ? [a, b] : [b, a];
      return bytes[low * size - (low * (low + 1)) / 2 + high - low - 1] / 127;
    };
    return { ...one, at };
  }

  function cosines() {
    const { clients, at } = matrix();
    const order = clients.map((_, place) => place);
    if (!find("#alike").checked) order.sort((a, b) => clients[a] - clients[b]);
    return order.flatMap((a, row) =>
      order.map((b, column) => ({ row, column, one: clients[b], other: clients[a], cosine: a === b ? null : at(a, b) })),
    ); // a client's cosine with itself says nothing, so it is left blank
  }

  function reading() {
    const { clients, at, ...found } = matrix();
    const both = clients.flatMap((one, a) => clients.slice(a + 1).map((other, b) => [at(a, a + 1 + b), one, other]));
    const apart = both.sort((a, b) => a[0] - b[0]).slice(0, 3).filter(([cosine]) => cosine < 0);
    const xi = evidence.xi[run] ? ` (cosine below ${number(evidence.xi[run], 2)})` : "";
    const name = ([cosine, a, b]) => `clients ${Math.min(a, b)} and ${Math.max(a, b)} (${number(cosine, 2)})`;
    return (
      `Layer ${found.layer}, round ${found.round}: ${found.conflicts} of ${found.pairs} pairs conflict${xi}, ` +
      `mean cosine ${number(found.cosine, 2)}; ${found.personal ? "personal from then on" : "shared"}.` +
      (apart.length ? ` Most opposed: ${apart.map(name).join(", ")}.` : "")
    );
  }

  if (find("#layer")) {
    find("#layer").addEventListener("change", (event) => show(event.target.value, seen.round));
    find("#round").addEventListener("input", (event) => show(seen.layer, rounds()[event.target.value]));
    find("#alike").addEventListener("change", () => draw("matrix"));
  }

  async function redraw() {
    for (const name of Object.keys(evidence.specs)) await draw(name);
    document.documentElement.dataset.drawn = "yes";
  }

  open(run);
  if (find("#each")) tell(evidence.tables.gains.method[0]);
  redraw();
})();
