// The whole of our browser code: theme, shortcuts, and the token pane's cursor and colours.
// Reading works without it. Nothing here builds HTML from trace text: it sets classes,
// attributes and addresses, and shows fragments that the server escaped.

const root = document.documentElement;
const $ = (selector, from = document) => from.querySelector(selector);
const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
const narrow = () => matchMedia("(max-width: 860px)").matches;
const toast = (text) => {
  const box = $(".toast");
  box.textContent = text;
  setTimeout(() => { if (box.textContent === text) box.textContent = ""; }, 2200);
};

/* ---- every page --------------------------------------------------------------------- */

for (const element of $$(".jsonly")) element.hidden = false;
if (narrow()) for (const element of $$("details[data-fold]")) element.open = false;

$(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

function toggleTheme() {
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("copied");
  } catch {
    toast("the browser did not allow copying");
  }
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-theme-toggle],[data-copy],[data-help],[data-close],[data-link]");
  if (!target) return;
  if ("themeToggle" in target.dataset) toggleTheme();
  else if ("copy" in target.dataset) copy($("pre", target.parentElement).textContent);
  else if ("link" in target.dataset) copy(location.href);
  else if ("close" in target.dataset) closeSheet();
  else if ("help" in target.dataset) { event.preventDefault(); showHelp(); }
});

function showHelp() {
  const box = $("#keys");
  if (!box.open) box.showModal();
}

// Sticky parts stand below the sticky header. A sheet with a few rules, not a property on
// the root: that would compute the style of every token again.
const header = $(".top.stick");
if (header) {
  const sheet = new CSSStyleSheet();
  let before = -1;
  const measure = () => {
    const height = narrow() ? 0 : Math.floor(header.getBoundingClientRect().height);
    if (height === before) return;
    before = height;
    sheet.replaceSync(`html { scroll-padding-top: ${height + 34}px } .rail { top: ${height}px }
      @media (min-width: 861px) { .side { top: ${height}px; max-height: calc(100vh - ${height}px);
      min-height: calc(100vh - ${height}px) } }`);
  };
  measure();
  document.adoptedStyleSheets.push(sheet);
  new ResizeObserver(measure).observe(header);
}

/* ---- the token pane ------------------------------------------------------------------- */

const pane = $(".pane[data-base]");
const METRICS = ["logprob", "rank", "entropy", "version", "mask", "delta", "ratio"];
const METRIC_CLASS = /\b(?:b[0-7n]|m[trqp]|v[0-5x]|d[0-6])\b ?/;
const OUTLIER = 7; // index of the first bin from 4 nats on
const codes = {
  logprob: ["", "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "bn"],
  mask: ["", "mt", "mr", "mq", "mp"],
};
codes.rank = codes.entropy = codes.logprob;
codes.delta = codes.ratio = ["", "d0", "d1", "d2", "d3", "d4", "d5", "d6", "bn", "bn"];
codes.version = ["", "v0", "v1", "v2", "v3", "v4", "v5", "vx", "bn", "bn"];

const view = { blocks: [], starts: [], visible: new Set(), columns: new Map(), at: null, cursor: null };
let inspectTimer = 0;
let inspectTurn = 0;

const address = (path, query = {}) => {
  const found = new URL(pane.dataset.base + path, location.href);
  found.searchParams.set("branch", pane.dataset.branch);
  for (const [name, value] of Object.entries(query)) found.searchParams.set(name, value);
  return found;
};

function column(name) {
  if (!view.columns.has(name)) {
    const loading = fetch(address(`/columns/${name}`)).then(async (reply) => {
      if (!reply.ok) throw new Error(`column ${name}: ${reply.status}`);
      const bytes = await reply.arrayBuffer();
      return name === "ids" ? new Int32Array(bytes) : new Uint8Array(bytes);
    });
    // A failed fetch is forgotten, so that the next attempt asks again.
    loading.catch(() => { view.columns.delete(name); toast("the colours could not be loaded"); });
    view.columns.set(name, loading);
  }
  return view.columns.get(name);
}

function offMetric() { return root.dataset.m === "delta" || root.dataset.m === "ratio"; }

function collectBlocks() {
  view.blocks = $$(".k", pane);
  view.starts = view.blocks.map((block) => Number(block.dataset.s));
  for (const block of view.blocks) {
    if (!block.dataset.m) { block.dataset.m = root.dataset.m; observer.observe(block); }
  }
}

function blockOf(t) {
  let low = 0;
  let high = view.starts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (view.starts[middle] <= t) low = middle + 1; else high = middle;
  }
  return view.blocks[low - 1];
}

function tokenAt(t) {
  const block = blockOf(t);
  return block ? block.children[t - Number(block.dataset.s)] : undefined;
}

function indexOf(token) {
  const block = token.parentElement;
  return Number(block.dataset.s) + Array.prototype.indexOf.call(block.children, token);
}

function paint(block, bytes, metric) {
  const names = codes[metric];
  let t = Number(block.dataset.s);
  for (const token of block.children) {
    const name = names[bytes[t++]];
    const rest = token.className.replace(METRIC_CLASS, "");
    const wanted = name && rest ? `${name} ${rest}` : name || rest;
    if (token.className !== wanted) token.className = wanted;
  }
  block.dataset.m = metric;
}

async function paintVisible() {
  const metric = root.dataset.m;
  const stale = [...view.visible].filter((block) => block.dataset.m !== metric);
  if (!stale.length) return;
  const bytes = await column(metric);
  if (root.dataset.m !== metric) return;
  for (const block of stale) paint(block, bytes, metric);
}

async function number(blocks) {
  const fresh = blocks.filter((block) => !block.dataset.ids);
  if (!fresh.length) return;
  const ids = await column("ids");
  for (const block of fresh) {
    block.dataset.ids = "1";
    let t = Number(block.dataset.s);
    for (const token of block.children) token.dataset.i = ids[t++];
  }
}

const observer = pane && new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) view.visible.add(entry.target); else view.visible.delete(entry.target);
  }
  paintVisible();
  if (root.dataset.ids === "1") number([...view.visible]);
  drawWindow();
}, { rootMargin: "400px 0px" });

function drawWindow() {
  const rect = $(".minimap .view");
  if (!rect) return;
  const total = Number(pane.dataset.total) || 1;
  let first = total;
  let last = 0;
  for (const block of view.visible) {
    const box = block.getBoundingClientRect();
    const start = Number(block.dataset.s);
    const count = block.children.length;
    const top = Math.max(0, -box.top / (box.height || 1));
    const bottom = Math.min(1, (innerHeight - box.top) / (box.height || 1));
    if (bottom <= 0 || top >= 1) continue;
    first = Math.min(first, start + top * count);
    last = Math.max(last, start + bottom * count);
  }
  if (last <= first) return;
  rect.setAttribute("x", (1000 * first / total).toFixed(1));
  rect.setAttribute("width", Math.max(2, 1000 * (last - first) / total).toFixed(1));
}

/* -- cursor and inspector -- */

function openSheet() { $(".side.right").dataset.open = ""; }
function closeSheet() { delete $(".side.right")?.dataset.open; }

async function inspect(t) {
  const turn = ++inspectTurn;
  const reply = await fetch(address("/tokens/inspect", { t }), { headers: { "HX-Request": "true" } });
  const text = await reply.text();
  if (turn !== inspectTurn) return;
  $("#inspect").innerHTML = text; // escaped by the server, and the policy runs no script
}

function select(t, { scroll = true, show = true, delay = 70 } = {}) {
  const token = tokenAt(t);
  if (!token) {
    if (Number(pane.dataset.total) > t && t >= 0) location.assign(address("/tokens", { t }) + `#t${t}`);
    return;
  }
  view.cursor?.classList.remove("c");
  view.cursor = token;
  view.at = t;
  token.classList.add("c");
  if (!token.id) token.id = `t${t}`;
  pane.setAttribute("aria-activedescendant", token.id);
  if (scroll) reveal(token);
  const here = new URL(location.href);
  here.hash = `t${t}`;
  here.searchParams.delete("t");
  history.replaceState(history.state, "", here);
  markTurn(t);
  clearTimeout(inspectTimer);
  inspectTimer = setTimeout(() => inspect(t), delay);
  if (show && narrow()) openSheet();
}

function reveal(token) {
  const box = token.getBoundingClientRect();
  const above = (header && !narrow() ? header.offsetHeight : 0) + 40;
  if (box.top < above || box.bottom > innerHeight - 30) {
    token.scrollIntoView({ block: "center" });
    // Blocks get their true height only when they are shown, so look again.
    requestAnimationFrame(() => {
      const again = token.getBoundingClientRect();
      if (again.top < above || again.bottom > innerHeight - 30) token.scrollIntoView({ block: "center" });
    });
  }
}

function markTurn(t) {
  const turns = turnStarts();
  let current = turns[0];
  for (const turn of turns) if (Number(turn.dataset.s) <= t) current = turn;
  for (const link of $$(".tree a[aria-current=true]")) link.removeAttribute("aria-current");
  const link = current && $(`.tree a[data-node="${CSS.escape(current.dataset.node)}"]`);
  link?.setAttribute("aria-current", "true");
  const side = link?.closest(".side");
  if (side && side.scrollHeight > side.clientHeight) {
    const [box, frame] = [link.getBoundingClientRect(), side.getBoundingClientRect()];
    if (box.top < frame.top || box.bottom > frame.bottom) {
      side.scrollTop += box.top - frame.top - side.clientHeight / 2;
    }
  }
}

const turnStarts = () => $$(".turn[data-s]", pane || document);

function stepTurn(step) {
  if (!pane) {
    const turns = $$("[data-turn]");
    const line = (header?.offsetHeight || 0) + 8;
    const tops = turns.map((turn) => turn.getBoundingClientRect().top - line);
    const next = step > 0 ? tops.findIndex((top) => top > 4) : tops.findLastIndex((top) => top < -4);
    turns[next]?.scrollIntoView();
    return;
  }
  const starts = turnStarts().map((turn) => Number(turn.dataset.s));
  const at = view.at ?? firstVisible();
  const next = step > 0 ? starts.find((s) => s > at) : starts.findLast((s) => s < at);
  if (next !== undefined) {
    select(next, { scroll: false, show: false });
    $(`.turn[data-s="${next}"]`).scrollIntoView();
  }
}

function firstVisible() {
  const line = (header?.offsetHeight || 0) + 26;
  for (const block of view.blocks) {
    if (block.getBoundingClientRect().bottom > line) return Number(block.dataset.s);
  }
  return 0;
}

function stepToken(step) {
  if (!pane) return false;
  select(view.at === null ? firstVisible() : view.at + step, { show: false });
  return true;
}

async function stepOutlier(step) {
  if (!pane) return;
  // Coloured by δ or the ratio, an outlier is what the trainer and the engine disagree about.
  const off = offMetric();
  const bytes = await column(off ? "delta" : "logprob");
  const bin = (t) => (off ? bytes[t] === 1 || bytes[t] === 7 : bytes[t] >= OUTLIER && bytes[t] < 9);
  for (let t = (view.at ?? firstVisible() - 1) + step; t >= 0 && t < bytes.length; t += step) {
    if (bin(t)) { select(t, { show: false }); return; }
  }
  toast(step > 0 ? "no outlier after this token" : "no outlier before this token");
}

function stepBranch(step) {
  const links = $$("[data-branch-link]");
  const now = links.findIndex((link) => link.dataset.branchLink === "current");
  const next = links[now + step];
  if (next) location.assign(next.href); else toast(step > 0 ? "this is the last branch" : "this is the first branch");
}

/* -- view state: lives in the address, so reload, Back and a copied link restore it -- */

function readState() {
  const query = new URLSearchParams(location.search);
  const last = (name, fallback) => query.getAll(name).at(-1) ?? fallback;
  return {
    m: METRICS.includes(last("m")) ? last("m") : "logprob",
    mask: last("mask", "1"), ws: last("ws", "1"), ids: last("ids", "0"),
  };
}

function showState(state) {
  for (const name of ["m", "mask", "ws", "ids"]) root.dataset[name] = state[name];
  const form = $("form.controls");
  form.elements.m.value = state.m;
  for (const name of ["mask", "ws", "ids"]) $(`input[type=checkbox][name=${name}]`, form).checked = state[name] === "1";
  if (state.ids === "1") number([...view.visible]);
  return paintVisible();
}

function setState(change) {
  const next = new URL(location.href);
  for (const [name, value] of Object.entries(change)) next.searchParams.set(name, value);
  history.pushState(null, "", next);
  return showState(readState());
}

function openHash() {
  const found = /^#t(\d+)$/.exec(location.hash);
  if (found) select(Number(found[1]), { delay: 0 });
}

if (pane) {
  collectBlocks();
  if (root.dataset.ids === "1") for (const block of view.blocks) if (block.firstElementChild?.dataset.i) block.dataset.ids = "1";
  showState(readState());
  openHash();
  // The other columns are a few kilobytes: have them before they are asked for.
  const ahead = self.requestIdleCallback ?? ((task) => setTimeout(task, 200));
  ahead(() => { column("logprob").then(() => column("mask")).catch(() => {}); });
  addEventListener("popstate", () => { showState(readState()); openHash(); });
  addEventListener("hashchange", openHash);
  document.addEventListener("htmx:after:swap", () => { collectBlocks(); });
  document.addEventListener("explorer:swapped", () => { requestAnimationFrame(drawWindow); });
  // A running rollout has grown: columns are longer, and sections may be new ones.
  document.addEventListener("explorer:grown", () => {
    view.columns.clear();
    for (const block of view.visible) if (!block.isConnected) view.visible.delete(block);
    collectBlocks();
    showState(readState());
    if (view.at !== null && !view.cursor?.isConnected) {
      view.cursor = tokenAt(view.at) ?? null;
      view.cursor?.classList.add("c");
    }
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-worst]");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); select(Number(link.dataset.worst), { show: false }); }
  });
  const chart = $("details[data-chart]");
  const draw = async () => {
    const place = offMetric() ? $(".plot.off", chart) : $(".plot", chart);
    if (!chart.open || !place || place.dataset.drawn) return;
    place.dataset.drawn = "1";
    place.hidden = false;
    const drawing = await import(chart.dataset.script);
    const go = (t) => select(t, { show: false });
    if (offMetric()) await drawing.deltas(chart, place, address("/columns/delta-values"), address("/columns/mask"), go);
    else await drawing.tokens(chart, address("/columns/logprob-values"), address("/columns/entropy-values"), address("/columns/mask"), go);
  };
  chart?.addEventListener("toggle", draw);
  if (chart) new MutationObserver(draw).observe(root, { attributeFilter: ["data-m"] });
  const form = $("form.controls");
  form.addEventListener("change", (event) => {
    const field = event.target;
    setState({ [field.name]: field.type === "checkbox" ? (field.checked ? "1" : "0") : field.value });
  });
  pane.addEventListener("click", (event) => {
    const token = event.target.closest(".k > i");
    if (token && getSelection().isCollapsed) select(indexOf(token), { scroll: false });
  });
  pane.addEventListener("focus", () => { if (view.at === null) select(firstVisible(), { scroll: false, show: false }); });
  $(".minimap")?.addEventListener("click", (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const total = Number(pane.dataset.total);
    select(Math.min(total - 1, Math.floor(total * (event.clientX - box.left) / box.width)), { show: false });
  });
  let queued = false;
  addEventListener("scroll", () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; drawWindow(); });
  }, { passive: true });
  addEventListener("beforeprint", async () => {
    const bytes = await column(root.dataset.m);
    for (const block of view.blocks) if (block.dataset.m !== root.dataset.m) paint(block, bytes, root.dataset.m);
  });
}

/* ---- shortcuts: the same keys as `explorer/web/keys.py`, which prints them -------------- */

const onPane = (action) => () => (pane ? action() : false);
const shortcuts = {
  j: () => stepTurn(1),
  k: () => stepTurn(-1),
  ArrowRight: () => stepToken(1),
  ArrowLeft: () => stepToken(-1),
  n: onPane(() => { stepOutlier(1); }),
  N: onPane(() => { stepOutlier(-1); }),
  "]": () => stepBranch(1),
  "[": () => stepBranch(-1),
  m: onPane(() => { setState({ mask: root.dataset.mask === "1" ? "0" : "1" }); }),
  1: onPane(() => { setState({ m: "logprob" }); }),
  2: onPane(() => { setState({ m: "rank" }); }),
  3: onPane(() => { setState({ m: "entropy" }); }),
  4: onPane(() => { setState({ m: "version" }); }),
  5: onPane(() => { setState({ m: "mask" }); }),
  6: onPane(() => { setState({ m: "delta" }); }),
  7: onPane(() => { setState({ m: "ratio" }); }),
  w: onPane(() => {
    if (offMetric()) {
      const furthest = $(".worst.delta [data-worst]");
      if (furthest) select(Number(furthest.dataset.worst), { show: false }); else toast("no token of this branch has a δ");
      return;
    }
    const elsewhere = $("[data-elsewhere]");
    if (elsewhere) { location.assign(elsewhere.href); return; }
    const worst = $("[data-worst]");
    if (worst) select(Number(worst.dataset.worst), { show: false }); else toast("nothing was sampled on this branch");
  }),
  g: () => { const link = $("[data-group-link]"); if (link) location.assign(link.href); },
  c: () => {
    // Of the focused line, else of the turn at the cursor, else the first of the tree.
    const line = document.activeElement?.closest(".tree li") ?? $(".tree a[aria-current=true]")?.closest(".tree li");
    const link = (line && $("a.cmp", line)) ?? $(".tree a.cmp");
    if (link) location.assign(link.href); else return false;
  },
  "/": () => {
    // A page's own search box stands before the one in the header.
    const box = $("[data-find]") ?? $("[data-finder]");
    if (!box) return false;
    box.focus();
    box.select();
  },
  "?": showHelp,
  Escape: () => {
    closeSheet();
    for (const menu of $$("details.menu[open]")) {
      menu.open = false;
      // What had the focus is gone with its menu.
      if (document.activeElement === document.body || menu.contains(document.activeElement)) $("summary", menu).focus();
    }
    return false;
  },
};
root.dataset.keys = Object.keys(shortcuts).sort().join(" ");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  // A dialog that has just closed may still hold the focus for a moment: keys are ours again.
  const menu = event.key === "Escape" && event.target.closest("details.menu");
  if (!menu && event.target.closest("input:not([type=checkbox]), select, textarea, dialog[open]")) return;
  const action = shortcuts[event.key];
  if (action && action() !== false) event.preventDefault();
});

root.dataset.ready = "";
