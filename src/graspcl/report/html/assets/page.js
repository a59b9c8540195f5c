"use strict";
// Draws the figures with plotly, and makes tables sortable. Everything shown is in the page already.
(() => {
  let figures = JSON.parse(document.getElementById("report-data").textContent).figures;
  const root = document.documentElement;
  const content = document.getElementById("content");
  const CONFIG = { displaylogo: false, plotlyServerURL: "", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };

  // -- figures --------------------------------------------------------------------------------------------------

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function axis(own) {
    const lines = { gridcolor: colour("--grid"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
    return { automargin: true, ...lines, ...own, title: { ...own?.title, standoff: 8 } };
  }

  const pen = document.createElement("canvas").getContext("2d");

  // How wide the longest line of a text is drawn; names are escaped for plotly.
  function wide(text) {
    const lines = String(text).split("<br>").map((line) => line.replace(/&lt;|&gt;|&amp;/g, "<"));
    return Math.max(...lines.map((line) => pen.measureText(line).width));
  }

  // How many lines a legend takes below a chart of this width: as many entries in each as there is room for.
  function legendLines(data, width, font) {
    const names = data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name);
    if (names.length < 2) return 0;
    pen.font = `${font.size}px ${font.family}`;
    const ticks = data.flatMap((trace) => (trace.y ?? []).filter((y) => typeof y === "string"));
    const room = width - 16 - Math.max(52, ...ticks.map((tick) => wide(tick) + 30));
    let lines = 1, used = 0;
    for (const name of names) {
      const each = wide(name) + 48; // with the sign before it
      if (used && used + each > room) [lines, used] = [lines + 1, 0];
      used += each;
    }
    return lines;
  }

  function layout(figure, view, width) {
    const own = { ...figure.layout, ...view.layout };
    const ink = colour("--ink"), soft = colour("--soft");
    const font = { family: getComputedStyle(document.body).fontFamily, size: width < 500 ? 11 : 12, color: ink };
    const legend = legendLines(view.data, width, font);
    const inner = Math.max(150, own.meta?.height ?? (width < 500 ? 230 : 290));
    return {
      ...own,
      height: inner + 74 + legend * 20, width, uirevision: view.label,
      margin: { l: 52, r: 16, t: 28, b: 46 + legend * 20 },
      font,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      xaxis: axis({ ...figure.layout.xaxis, ...view.layout.xaxis }),
      yaxis: axis({ ...figure.layout.yaxis, ...view.layout.yaxis }),
      showlegend: legend > 0,
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, tracegroupgap: 0, maxheight: 1, font: { color: ink } },
      hoverlabel: { namelength: -1, bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: colour("--accent") },
      annotations: (own.annotations ?? []).map((a) => ({ font: { color: ink }, arrowcolor: ink, bgcolor: colour("--card"), ...a })),
      shapes: (own.shapes ?? []).map((shape) => ({ line: { color: colour("--line"), width: 1 }, ...shape })),
    };
  }

  // Which view: by the card's own choice, or by the experiment's; -1 if the figure has none for that.
  function chosen(card, figure) {
    const select = card.querySelector("select");
    if (select) return select.selectedIndex;
    if (figure.choice !== "condition") return 0;
    const condition = card.closest("article").querySelector("select[data-choice=condition]")?.value;
    return condition === undefined ? 0 : figure.views.findIndex((view) => view.label === condition);
  }

  function draw(card) {
    const figure = figures[card.id];
    const box = card.querySelector(".chart");
    if (!figure || !box.clientWidth) return;
    const view = figure.views[chosen(card, figure)];
    if (!view) {
      Plotly.purge(box);
      box.textContent = "Nothing to draw for this choice.";
      return;
    }
    if (!box.classList.contains("js-plotly-plot")) box.textContent = "";
    const error = { color: colour("--soft") };
    for (const trace of view.data) {
      for (const name of ["error_x", "error_y"]) if (trace[name]) Object.assign(trace[name], error);
    }
    card.querySelector(".note").textContent = view.note;
    const said = [card.querySelector("h3"), card.querySelector(".about")].map((line) => line.textContent);
    box.setAttribute("aria-label", [said[0], said[1], view.label === "all" ? "" : view.label, view.note].filter(Boolean).join(". "));
    const tag = card.querySelector(".tag");
    if (tag) tag.textContent = view.label === "all" ? "" : view.label;
    box.style.minHeight = "0";
    Plotly.react(box, view.data, layout(figure, view, box.clientWidth), CONFIG);
    box.dataset.drawn = view.label;
  }

  const drawAll = () => content.querySelectorAll("figure.card").forEach(draw);

  content.addEventListener("change", (event) => {
    const select = event.target;
    if (select.id === "experiment") showExperiment(select.value);
    else if (select.closest("figure")) draw(select.closest("figure"));
    else drawAll();
  });

  function showExperiment(id) {
    for (const article of content.querySelectorAll("article")) article.hidden = article.id !== id;
    drawAll();
  }

  let waiting;
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width || root.dataset.print) return; // a phone's bars come and go
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { root.dataset.print = "yes"; drawAll(); });
  addEventListener("afterprint", () => { delete root.dataset.print; drawAll(); });

  // -- tables ---------------------------------------------------------------------------------------------------

  function sort(head) {
    const body = head.closest("table").tBodies[0];
    const place = Number(head.dataset.place);
    const up = head.getAttribute("aria-sort") === "descending" || (!head.hasAttribute("aria-sort") && !head.classList.contains("number"));
    for (const other of head.closest("thead").querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[place].dataset.value ?? row.cells[place].textContent;
    const rows = [...body.rows].map((row) => [key(row), key(row) ? Number(key(row)) : NaN, row]);
    rows.sort(([a, x], [b, y]) => {
      if (!a || !b) return !a - !b; // what is missing comes last
      if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // numbers, then words
      return (up ? 1 : -1) * (Number.isNaN(x) ? a.localeCompare(b) : x - y);
    });
    body.append(...rows.map(([, , row]) => row));
  }
  content.addEventListener("click", (event) => {
    const head = event.target.closest("th[data-place]");
    if (head) sort(head);
  });

  // -- a run under way ------------------------------------------------------------------------------------------

  const FOCUS = "button, summary, select, a";
  const parts = (element) => [...element.querySelectorAll("[data-part]")];
  const cards = (element) => parts(element).map((part) => part.dataset.part).join();
  const called = (name) => content.querySelector(`[data-part="${name}"]`);
  // As the server sent them: a reader opens, closes and sorts.
  const sent = new Map(parts(content).map((part) => [part.dataset.part, part.outerHTML]));
  let version, drawn = JSON.stringify(figures);

  // What the reader did to a part is done to the one that comes in its place.
  function carry(old, part) {
    if (old.open) part.open = true;
    const sorted = old.querySelector("th[aria-sort]");
    const head = sorted && part.querySelector(`th[data-place="${sorted.dataset.place}"]`);
    if (!head) return;
    head.setAttribute("aria-sort", sorted.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending");
    sort(head); // which turns it round
  }

  function renew(fresh) {
    const built = document.createElement("div");
    built.innerHTML = fresh.body;
    const whole = cards(built) !== cards(content);
    const focus = document.activeElement, home = focus.closest("[data-part]");
    const place = home ? [...home.querySelectorAll(FOCUS)].indexOf(focus) : -1;
    for (const part of parts(built)) {
      const name = part.dataset.part, old = called(name), html = part.outerHTML;
      const same = part.matches("figure") || sent.get(name) === html; // figures keep zoom and what was hidden
      sent.set(name, html);
      if (old && !same) carry(old, part);
      if (old && same && whole) part.replaceWith(old);
      if (old && !same && !whole) old.replaceWith(part);
    }
    if (whole) content.replaceChildren(...built.childNodes);
    if (place >= 0 && document.activeElement !== focus) {
      called(home.dataset.part)?.querySelectorAll(FOCUS)[place]?.focus({ preventScroll: true });
    }
    figures = fresh.figures;
    const data = JSON.stringify(figures);
    if (whole || data !== drawn) drawAll();
    drawn = data;
  }

  async function follow() {
    const lost = (yes) => content.querySelectorAll("[data-lost]").forEach((line) => { line.hidden = !yes; });
    try {
      const answer = await fetch("data.json", { cache: "no-store" });
      const fresh = await answer.json();
      if (fresh.version !== version) renew(fresh);
      version = fresh.version;
      lost(false);
      if (fresh.finished || fresh.stopped) return;
    } catch {
      lost(true);
    }
    setTimeout(follow, 1000 * Number(document.body.dataset.live));
  }

  drawAll();
  if (document.body.dataset.live) setTimeout(follow, 1000 * Number(document.body.dataset.live));
})();
