const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const isNarrow = () => innerWidth < 700;

/* plotly.js is in the page, compressed. */
async function inflate() {
  const packed = Uint8Array.from(atob(by("library").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

function layout(x, y, more = {}) {
  const axis = (title, rest) => ({
    title: { text: title, font: { size: 13 }, standoff: 8 }, gridcolor: colour("--grid"), linecolor: colour("--line"),
    zeroline: false, ticks: "outside", tickcolor: colour("--line"), automargin: true, ...rest,
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--dim") },
    margin: { l: 8, r: 8, t: 8, b: 8, pad: 2 },
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--text"), size: 12 } },
    dragmode: isNarrow() ? false : "zoom",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--dim"), activecolor: colour("--text") },
    ...more, xaxis: axis(x, more.xaxis), yaxis: axis(y, more.yaxis),
  };
}

function plot(place, traces, drawn) {
  const options = {
    responsive: true, displaylogo: false, displayModeBar: isNarrow() ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg", filename: "lfl" },
  };
  place.querySelector("p.note")?.remove();
  return Plotly.react(place, traces, drawn, options);
}

const rows = () => new Map([...summary.tBodies[0].rows].map((row) => [row.dataset.group, row.querySelector("input")]));
const drawnGroups = () => { const boxes = rows(); return data.groups.filter((group) => boxes.get(group.label).checked); };
const faded = (hex) => hex + "2e";

/* What is on, over every figure: the samples are those of the table. */
function drawLegends() {
  const drawn = new Set(drawnGroups().map((group) => group.label));
  const kept = [...summary.tBodies[0].rows].filter((row) => drawn.has(row.dataset.group));
  for (const legend of document.querySelectorAll(".legend")) {
    legend.replaceChildren(...kept.map((row) => {
      const item = document.createElement("li");
      item.append(row.querySelector(".sample").cloneNode(true), row.dataset.group);
      return item;
    }));
  }
}

function drawCurves() {
  const metric = by("metric").value, axis = by("axis").value, traces = [];
  for (const group of drawnGroups()) {
    const curve = data.curves[metric][group.label];
    const x = curve?.axes[axis];
    if (!x) continue;
    if (curve.low && by("bands").checked) {
      traces.push({
        x: [...x, ...[...x].reverse()], y: [...curve.high, ...[...curve.low].reverse()], fill: "toself",
        fillcolor: faded(group.colour), line: { width: 0 }, hoverinfo: "skip", mode: "lines",
      });
    }
    traces.push({
      x, y: curve.mean, name: group.label, mode: x.length === 1 ? "markers" : "lines",
      line: { color: group.colour, dash: group.dash, width: 2 }, marker: { color: group.colour },
      customdata: curve.axes.round, connectgaps: false,
      hovertemplate: `<b>%{fullData.name}</b><br>${metric} %{y:.4~g}<br>${data.titles[axis]} %{x:,.4~g}` +
        (axis === "round" ? "" : "<br>round %{customdata}") + "<extra></extra>",
    });
  }
  const kind = (id) => ({ type: by(id).checked ? "log" : "linear" });
  const bounds = by("logx").checked || axis !== "round" ? {} : { rangemode: "tozero" };
  plot(by("curves"), traces, layout(data.titles[axis], metric, { xaxis: { ...kind("logx"), ...bounds }, yaxis: kind("logy") }));
}

/* A box, or points, for each group at each target. */
function drawCosts() {
  if (!by("costs")) return;
  const axis = by("costaxis").value, traces = [];
  for (const group of drawnGroups()) {
    const of = data.costs[axis][group.label];
    const few = Math.max(...of.map((values) => values.length)) < data.fewest;
    traces.push({
      type: "box", name: group.label, x: of.flatMap((values, number) => values.map(() => data.targets[number])), y: of.flat(),
      boxpoints: few ? "all" : "outliers", pointpos: 0, jitter: 0.2, marker: { color: group.colour, size: few ? 7 : 4 },
      line: { color: few ? "rgba(0,0,0,0)" : group.colour, width: 1.5 }, fillcolor: few ? "rgba(0,0,0,0)" : faded(group.colour),
      hovertemplate: `<b>%{fullData.name}</b><br>${data.titles[axis]} %{y:,.4~g}<extra></extra>`,
    });
  }
  const order = { type: "category", categoryorder: "array", categoryarray: data.targets };
  const scale = data.decades.includes(axis) ? { type: "log" } : { rangemode: "tozero" };
  plot(by("costs"), traces, layout("", `${data.titles[axis]} until then`, { boxmode: "group", xaxis: order, yaxis: scale }));
}

function drawClients() {
  for (const place of document.querySelectorAll(".histogram")) {
    const found = data.clients.scopes[place.dataset.scope], traces = [];
    for (const group of drawnGroups()) {
      const shares = found.shares[group.label];
      if (!shares) continue;
      /* Steps: each share from the left to the right edge of its bin. */
      const x = found.edges.flatMap((edge) => [edge, edge]), y = [0, ...shares.flatMap((share) => [share, share]), 0];
      traces.push({
        x, y, name: group.label, mode: "lines", line: { color: group.colour, dash: group.dash, width: 1.8 },
        fill: "tozeroy", fillcolor: group.colour + "14",
        hovertemplate: `<b>%{fullData.name}</b><br>${data.clients.metric} %{x:.3~g}<br>%{y:.1%} of clients` +
          `<br>mean over clients ${found.means[group.label]}<extra></extra>`,
      });
    }
    plot(place, traces, layout(`${data.clients.metric} of a client`, "share of clients", { yaxis: { tickformat: ".0%", rangemode: "tozero" } }));
  }
}

function drawPartitions() {
  for (const place of document.querySelectorAll(".partition")) {
    const { counts } = data.partitions[place.dataset.number];
    const bar = { thickness: 10, outlinewidth: 0, title: { text: "examples", side: "right", font: { size: 12 } } };
    const trace = {
      z: counts, type: "heatmap", colorscale: [[0, colour("--empty")], [1, colour("--full")]], colorbar: bar,
      xgap: counts[0].length < 60 ? 1 : 0, ygap: counts.length < 40 ? 1 : 0,
      hovertemplate: "client %{x}<br>class %{y}<br>%{z} examples<extra></extra>",
    };
    const step = (count) => count <= 20 && !isNarrow() ? { dtick: 1 } : {};
    plot(place, [trace], layout("client", "class", { xaxis: { showgrid: false, ...step(counts[0].length) }, yaxis: { showgrid: false, ...step(counts.length) } }));
  }
}

function fill(id, entries, chosen) {
  for (const [value, text] of entries) by(id).add(new Option(text, value, value === chosen, value === chosen));
  by(id).closest("label").hidden = entries.length < 2;
}

async function start() {
  const curves = Object.values(data.curves).flatMap(Object.values);
  fill("metric", data.metrics.map((metric) => [metric, metric]), data.metrics[0]);
  fill("axis", Object.entries(data.titles).filter(([axis]) => curves.some((curve) => axis in curve.axes)), data.axis);
  if (by("costs")) {
    const axes = Object.keys(data.costs);
    fill("costaxis", axes.map((axis) => [axis, data.titles[axis]]), axes.includes(data.axis) ? data.axis : axes[0]);
    by("costaxis").addEventListener("change", drawCosts);
  }
  by("bandbox").hidden = !curves.some((curve) => curve.low);
  await inflate();
  for (const id of ["metric", "axis", "logx", "logy", "bands"]) by(id).addEventListener("change", drawCurves);
  const drawGroups = () => { drawLegends(); drawCurves(); drawCosts(); drawClients(); };
  rows().forEach((box) => box.addEventListener("change", drawGroups));
  for (const id of ["all", "none"]) {
    by(id).addEventListener("click", () => { rows().forEach((box) => { box.checked = id === "all"; }); drawGroups(); });
  }
  redraw.push(drawGroups, drawPartitions);
  redraw.forEach((draw) => draw());
  root.dataset.drawn = "true";
}

start().catch((error) => {
  by("curves").textContent = `The figures cannot be drawn in this browser (${error.message}); figures/ has them as pictures.`;
  root.dataset.drawn = "false";
});
