// The two charts that need zoom and a crosshair: a metric against position, and numbers of
// a table over its rows. Each stands beside a table with the same numbers.

// `light-dark()` only resolves where it is used: ask an element that uses it.
function colour(name) {
  const probe = document.createElement("i");
  probe.className = `probe-${name}`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

let loading;
function load(box) {
  loading ??= new Promise((done, failed) => {
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = box.dataset.style;
    const script = document.createElement("script");
    script.src = box.dataset.plot;
    script.onload = () => done(globalThis.uPlot);
    script.onerror = failed;
    document.head.append(sheet, script);
  });
  return loading;
}

const drawn = [];
function redraw() { for (const each of drawn) each(); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });

function keep(place, make) {
  let plot = null;
  const again = () => { plot?.destroy(); plot = make(place.clientWidth || 800); };
  drawn.push(again);
  let width = 0;
  new ResizeObserver(() => {
    if (place.clientWidth && place.clientWidth !== width) {
      width = place.clientWidth;
      if (plot) plot.setSize({ width, height: 200 }); else again();
    }
  }).observe(place);
  again();
}

const axis = (label, side = 3, scale = "y") => ({
  label, side, scale, stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 },
  ticks: { stroke: colour("line"), width: 1 }, labelSize: 18, size: side === 3 || side === 1 ? 52 : 34,
  font: "11px sans-serif", labelFont: "11px sans-serif",
});
const dots = (size) => ({ show: true, size, width: 0 });

async function floats(address) {
  const reply = await fetch(address);
  if (!reply.ok) throw new Error(String(reply.status));
  return new Float32Array(await reply.arrayBuffer());
}

// −logp of every sampled token (trained and masked apart) and, where recorded, entropy.
export async function tokens(box, logprobs, entropies, mask, go) {
  const place = box.querySelector(".plot");
  place.hidden = false;
  let data;
  let names;
  try {
    const [UPlot, values, entropy, bytes] = await Promise.all([
      load(box), floats(logprobs), floats(entropies),
      fetch(mask).then((reply) => reply.arrayBuffer()).then((buffer) => new Uint8Array(buffer)),
    ]);
    const at = [];
    const trained = [];
    const masked = [];
    const weighed = [];
    for (let t = 0; t < values.length; t += 1) {
      if (!bytes[t]) continue; // not sampled: there is no number
      const cost = Number.isNaN(values[t]) ? null : -values[t];
      at.push(t);
      trained.push(bytes[t] === 1 ? cost : null);
      masked.push(bytes[t] === 1 ? null : cost);
      weighed.push(Number.isNaN(entropy[t]) ? null : entropy[t]);
    }
    data = [at, trained, masked];
    names = ["−logp, trained", "−logp, masked"];
    if (weighed.some((value) => value !== null)) { data.push(weighed); names.push("entropy"); }
    const colours = ["accent", "muted", "warn"];
    keep(place, (width) => new UPlot({
      width, height: 200, legend: { live: true }, cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(1, high)] } },
      axes: [axis("token", 2, "x"), axis("nats")],
      series: [{ label: "token" }, ...names.map((label, n) => ({
        label, stroke: colour(colours[n]), fill: undefined, paths: () => null,
        points: { ...dots(n === 2 ? 3 : 4), fill: colour(colours[n]), stroke: colour(colours[n]) },
        value: (_, value) => (value === null || value === undefined ? "–" : value.toFixed(3)),
      }))],
      hooks: {
        ready: [(plot) => {
          plot.over.addEventListener("click", () => {
            const index = plot.cursor.idx;
            if (index !== null && index !== undefined && plot.select.width < 2) go(data[0][index]);
          });
          box.dataset.ready = String(data[0].length);
        }],
      },
    }, data, place));
  } catch (error) {
    place.textContent = `The chart could not be drawn (${error.message}); the table has the numbers.`;
  }
}

// δ of every token that has one, trained and masked apart.
export async function deltas(box, place, values, mask, go) {
  try {
    const [UPlot, off, bytes] = await Promise.all([
      load(box), floats(values), fetch(mask).then((reply) => reply.arrayBuffer()).then((buffer) => new Uint8Array(buffer)),
    ]);
    const at = [];
    const trained = [];
    const masked = [];
    for (let t = 0; t < off.length; t += 1) {
      if (Number.isNaN(off[t])) continue;
      at.push(t);
      trained.push(bytes[t] === 1 ? off[t] : null);
      masked.push(bytes[t] === 1 ? null : off[t]);
    }
    const data = [at, trained, masked];
    const colours = ["accent", "muted"];
    keep(place, (width) => new UPlot({
      width, height: 200, legend: { live: true }, cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(-0.3, low), Math.max(0.3, high)] } },
      axes: [axis("token", 2, "x"), axis("δ, nats")],
      series: [{ label: "token" }, ...["δ, trained", "δ, masked"].map((label, n) => ({
        label, stroke: colour(colours[n]), paths: () => null,
        points: { ...dots(4), fill: colour(colours[n]), stroke: colour(colours[n]) },
        value: (_, value) => (value === null || value === undefined ? "–" : value.toFixed(4)),
      }))],
      hooks: { ready: [(plot) => {
        plot.over.addEventListener("click", () => {
          const index = plot.cursor.idx;
          if (index !== null && index !== undefined && plot.select.width < 2) go(data[0][index]);
        });
        box.dataset.off = String(data[0].length);
      }] },
    }, data, place));
  } catch (error) {
    place.textContent = `The chart could not be drawn (${error.message}); the Trainer δ tab has the numbers.`;
  }
}

// Numbers of a table over its rows: `data-x` on the table says which cell names a row,
// `data-series` which columns are drawn, as "column:scale".
export async function table(box) {
  const place = box.querySelector(".plot");
  const source = document.getElementById(box.dataset.table);
  place.hidden = false;
  try {
    const UPlot = await load(box);
    const rows = [...source.tBodies[0].rows];
    if (source.hasAttribute("data-newest-first")) rows.reverse();
    const heads = [...source.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    const wanted = box.dataset.series.split(" ").map((item) => item.split(":"));
    const number = (row, column) => {
      const text = (row.cells[column].querySelector("data")?.value ?? row.cells[column].textContent).trim().replace("−", "-").replaceAll(",", "");
      return text === "" || Number.isNaN(Number(text)) ? null : Number(text);
    };
    const data = [rows.map((_, n) => n + 1), ...wanted.map(([column]) => rows.map((row) => number(row, Number(column))))];
    const colours = ["accent", "warn", "muted"];
    keep(place, (width) => new UPlot({
      width, height: 200, cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false } },
      axes: [axis(box.dataset.x, 2, "x"), ...wanted.map(([column, scale], n) => axis(heads[Number(column)], n ? 1 : 3, scale))],
      series: [{ label: box.dataset.x }, ...wanted.map(([column, scale], n) => ({
        label: heads[Number(column)], scale, stroke: colour(colours[n]), width: 1.5,
        points: { ...dots(6), fill: colour(colours[n]) }, spanGaps: false,
      }))],
      hooks: { ready: [() => { box.dataset.ready = String(rows.length); }] },
    }, data, place));
  } catch (error) {
    place.textContent = `The chart could not be drawn (${error.message}); the table has the numbers.`;
  }
}

for (const box of document.querySelectorAll("[data-table][data-series]")) {
  const start = () => { if (!box.dataset.drawn) { box.dataset.drawn = ""; table(box); } };
  if (box.matches("details")) box.addEventListener("toggle", () => { if (box.open) start(); }); else start();
  if (box.open) start();
}
