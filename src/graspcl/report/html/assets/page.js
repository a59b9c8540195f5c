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

  // How many lines a legend takes below a chart of this width.
  function legendLines(data, width) {
    const names = data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name);
    if (names.length < 2) return 0;
    const each = Math.max(...names.map((name) => Math.min(name.length, 60))) * 6 + 46;
    return Math.ceil(names.length / Math.max(1, Math.floor(width / each)));
  }

  function layout(figure, view, width) {
    const own = { ...figure.layout, ...view.layout };
    const ink = colour("--ink"), soft = colour("--soft");
    const legend = legendLines(view.data, width);
    const inner = Math.max(150, own.meta?.height ?? (width < 500 ? 230 : 290));
    return {
      ...own,
      height: inner + 74 + legend * 20, width, uirevision: view.label,
      margin: { l: 52, r: 16, t: 28, b: 46 + legend * 20 },
      font: { family: getComputedStyle(document.body).fontFamily, size: width < 500 ? 11 : 12, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      xaxis: axis({ ...figure.layout.xaxis, ...view.layout.xaxis }),
      yaxis: axis({ ...figure.layout.yaxis, ...view.layout.yaxis }),
      showlegend: legend > 0,
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, font: { color: ink } },
      hoverlabel: { namelength: -1, bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: colour("--accent") },
      annotations: (own.annotations ?? []).map((a) => ({ font: { color: ink }, arrowcolor: ink, bgcolor: colour("--card"), ...a })),
      shapes: (own.shapes ?? []).map((shape) => ({ line: { color: colour("--line"), width: 1 }, ...shape })),
    };
  }

  // Which view: by the card's own choice, or by the experiment's, if the figure has such a view.
  function chosen(card, figure) {
    const select = card.querySelector("select");
    if (select) return select.selectedIndex;
    const condition = card.closest("article").querySelector("select[data-choice=condition]")?.value;
    return Math.max(0, figure.views.findIndex((view) => view.label === condition));
  }

  function draw(card) {
    const figure = figures[card.id];
    const box = card.querySelector(".chart");
    if (!figure || !box.clientWidth) return;
    const view = figure.views[chosen(card, figure)];
    const error = { color: colour("--soft") };
    for (const trace of view.data) {
      for (const name of ["error_x", "error_y"]) if (trace[name]) Object.assign(trace[name], error);
    }
    card.querySelector(".note").textContent = view.note;
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
    const rows = [...body.rows].map((row) => [key(row), Number.parseFloat(key(row)), row]);
    const numeric = rows.some(([text, value]) => text !== "" && String(value) === text) || head.classList.contains("number");
    rows.sort(([a, x], [b, y]) => {
      if (!numeric) return (up ? 1 : -1) * a.localeCompare(b);
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // what is missing comes last
      return (up ? 1 : -1) * (x - y);
    });
    body.append(...rows.map(([, , row]) => row));
  }
  content.addEventListener("click", (event) => {
    const head = event.target.closest("th[data-place]");
    if (head) sort(head);
  });

  // -- a run under way ------------------------------------------------------------------------------------------

  const cards = (element) => [...element.querySelectorAll("[data-part]")].map((part) => part.dataset.part).join();

  function renew(fresh) {
    figures = fresh.figures;
    const built = document.createElement("div");
    built.innerHTML = fresh.body;
    if (cards(built) !== cards(content)) {
      content.replaceChildren(...built.childNodes);
    } else {
      // Figures stay, with zoom and what was hidden; all else is replaced.
      for (const part of built.querySelectorAll("[data-part]:not(figure)")) {
        content.querySelector(`[data-part="${part.dataset.part}"]`).replaceWith(part);
      }
    }
    drawAll();
  }

  async function follow() {
    try {
      const answer = await fetch("data.json", { cache: "no-store" });
      const fresh = await answer.json();
      renew(fresh);
      if (fresh.finished) return;
    } catch {
      const line = content.querySelector("[data-lost]");
      if (line) line.hidden = false;
    }
    setTimeout(follow, 1000 * Number(document.body.dataset.live));
  }

  drawAll();
  if (document.body.dataset.live) setTimeout(follow, 1000 * Number(document.body.dataset.live));
})();
