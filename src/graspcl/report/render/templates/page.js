"use strict";
// Draws the figures with plotly, and makes tables sortable. The page already holds everything it shows.
(() => {
  const figures = JSON.parse(document.getElementById("report-data").textContent).figures;
  const root = document.documentElement;
  const content = document.getElementById("content");
  const CONFIG = { displaylogo: false, plotlyServerURL: "", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };

  // -- figures --------------------------------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function axis(own) {
    const lines = { gridcolor: colour("--grid"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
    return { automargin: true, ...lines, ...own, title: { ...own?.title, standoff: 8 } };
  }

  const pen = document.createElement("canvas").getContext("2d");

  // Width of the longest line of a text; names are escaped for plotly.
  function wide(text) {
    const lines = String(text).split("<br>").map((line) => line.replace(/&lt;|&gt;|&amp;/g, "<"));
    return Math.max(...lines.map((line) => pen.measureText(line).width));
  }

  // Number of lines of a legend below a chart of this width: each holds as many entries as fit.
  function legendLines(data, width, font) {
    const names = data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name);
    if (names.length < 2) return 0;
    pen.font = `${font.size}px ${font.family}`;
    const ticks = data.flatMap((trace) => (trace.y ?? []).filter((y) => typeof y === "string"));
    const room = width - 16 - Math.max(52, ...ticks.map((tick) => wide(tick) + 30));
    let lines = 1, used = 0;
    for (const name of names) {
      const each = wide(name) + 48; // with the symbol before it
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

  // Which view: by the choice of the card, or of the experiment; -1 if the figure has no view for it.
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
    const texts = [card.querySelector("h3"), card.querySelector(".about")].map((line) => line.textContent);
    box.setAttribute("aria-label", [texts[0], texts[1], view.label === "all" ? "" : view.label, view.note].filter(Boolean).join(". "));
    const tag = card.querySelector(".tag");
    if (tag) tag.textContent = view.label === "all" ? "" : view.label;
    box.style.minHeight = "0";
    return Plotly.react(box, view.data, layout(figure, view, box.clientWidth), CONFIG);
  }

  // Draws cards, then stores the screen they are drawn for in data-drawn.
  async function drawCards(cards) {
    delete root.dataset.drawn;
    const screen = `${innerWidth} ${dark.matches ? "dark" : "light"} ${root.dataset.print ?? "screen"}`;
    await Promise.all([...cards].map(draw));
    root.dataset.drawn = screen;
  }

  const drawAll = () => drawCards(content.querySelectorAll("figure.card"));

  content.addEventListener("change", (event) => {
    const select = event.target;
    if (select.id === "experiment") showExperiment(select.value);
    else if (select.closest("figure")) drawCards([select.closest("figure")]);
    else drawAll();
  });

  function showExperiment(id) {
    for (const article of content.querySelectorAll("article")) article.hidden = article.id !== id;
    drawAll();
  }

  let waiting;
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width || root.dataset.print) return; // the bars of a phone appear and vanish
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  dark.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { root.dataset.print = "print"; drawAll(); });
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
      if (!a || !b) return !a - !b; // missing values last
      if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // numbers, then words
      return (up ? 1 : -1) * (Number.isNaN(x) ? a.localeCompare(b) : x - y);
    });
    body.append(...rows.map(([, , row]) => row));
  }
  content.addEventListener("click", (event) => {
    const head = event.target.closest("th[data-place]");
    if (head) sort(head);
  });

  // -- a running run -------------------------------------------------------------------------------------------
  // The page is loaded again when the run has new results. What the reader chose is kept over that.

  const KEPT = "graspcl-choices";
  const FOCUS = "button, summary, select, a";
  const part = (name) => content.querySelector(`[data-part="${name}"]`);
  const partName = (element) => element.closest("[data-part]")?.dataset.part;
  const selects = () => [...content.querySelectorAll("select")].map((select) =>
    [select.id || partName(select) || `${select.closest("article").id}-${select.dataset.choice}`, select]);

  function chartChoices(card) {
    const box = card.querySelector(".chart"), ranges = {};
    const hidden = (box.data ?? []).filter((trace) => trace.visible === "legendonly").map((trace) => trace.name);
    for (const name of ["xaxis", "yaxis"]) {
      if (box.layout?.[name]?.autorange === false) ranges[`${name}.range`] = box.layout[name].range;
    }
    return [card.id, hidden, ranges];
  }

  function keepChoices() {
    const focus = document.activeElement, home = partName(focus);
    const sorted = [...content.querySelectorAll("th[aria-sort]")];
    sessionStorage.setItem(KEPT, JSON.stringify({
      scroll: scrollY,
      open: [...content.querySelectorAll("details[open]")].map(partName),
      sorted: sorted.map((head) => [partName(head), head.dataset.place, head.getAttribute("aria-sort")]),
      chosen: selects().map(([name, select]) => [name, select.value]),
      charts: [...content.querySelectorAll("figure.card")].map(chartChoices),
      focus: home ? [home, [...part(home).querySelectorAll(FOCUS)].indexOf(focus)] : null,
    }));
  }

  function restoreChoices(kept) {
    for (const name of kept.open) if (part(name)) part(name).open = true;
    for (const [name, place, order] of kept.sorted) {
      const head = part(name)?.querySelector(`th[data-place="${place}"]`);
      if (!head) continue;
      head.setAttribute("aria-sort", order === "ascending" ? "descending" : "ascending");
      sort(head); // reverses the order
    }
    const values = new Map(kept.chosen);
    for (const [name, select] of selects()) {
      if ([...select.options].some((option) => option.value === values.get(name))) select.value = values.get(name);
    }
    const experiment = document.getElementById("experiment");
    if (experiment) showExperiment(experiment.value);
  }

  function restoreView(kept) {
    for (const [id, hidden, ranges] of kept.charts) {
      const box = document.getElementById(id)?.querySelector(".chart");
      if (!box?.data) continue;
      const places = box.data.flatMap((trace, place) => hidden.includes(trace.name) ? [place] : []);
      if (places.length) Plotly.restyle(box, { visible: "legendonly" }, places);
      if (Object.keys(ranges).length) Plotly.relayout(box, ranges);
    }
    if (kept.focus) part(kept.focus[0])?.querySelectorAll(FOCUS)[kept.focus[1]]?.focus({ preventScroll: true });
    scrollTo(0, kept.scroll);
  }

  let shown;
  async function follow() {
    const lost = (yes) => content.querySelectorAll("[data-lost]").forEach((line) => { line.hidden = !yes; });
    try {
      const answer = await fetch("progress.json", { cache: "no-store" });
      const news = await answer.json();
      if (news.version !== document.body.dataset.version) {
        keepChoices();
        location.reload();
        return;
      }
      if (news.progress !== shown) part("progress").outerHTML = news.progress;
      shown = news.progress;
      lost(false);
    } catch {
      lost(true);
    }
    setTimeout(follow, 1000 * Number(document.body.dataset.refresh));
  }

  let kept = null;
  if (document.body.dataset.version) {
    kept = JSON.parse(sessionStorage.getItem(KEPT));
    sessionStorage.removeItem(KEPT);
  }
  if (kept) restoreChoices(kept);
  drawAll().then(() => { if (kept) restoreView(kept); });
  if (document.body.dataset.refresh) setTimeout(follow, 1000 * Number(document.body.dataset.refresh));
})();
