// A rollout that is still running: what is new comes in below, and what is being read
// stays where it is. The stream only says that something happened; what is shown comes from
// this page's own address, so that it is what a reload would show.

const root = document.documentElement;
const top = document.querySelector("[data-live]");
const HEAVY = 3_000_000; // bytes of a page that is not fetched again by itself
const PAUSE = 1200;      // ms between two fetches

const pill = document.createElement("button");
pill.type = "button";
pill.className = "newpill";
pill.hidden = true;
document.body.append(pill);

const unseen = new Set();
const tail = { source: null, last: "", timer: 0, busy: false, again: false, heavy: false, at: 0, told: 0, elsewhere: false, ended: false };

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    unseen.delete(entry.target);
  }
  showPill();
});

function showPill() {
  const waiting = unseen.size || (tail.heavy ? tail.told : 0);
  pill.hidden = !waiting && !tail.elsewhere;
  pill.textContent = tail.heavy ? `${waiting} new · reload` : waiting ? `${waiting} new ↓` : "new on another branch";
  root.dataset.unseen = String(waiting);
}

pill.addEventListener("click", () => {
  if (tail.heavy) { location.reload(); return; }
  if (!unseen.size) {
    const address = new URL(location.href);
    for (const name of ["branch", "t"]) address.searchParams.delete(name);
    address.hash = "";
    location.assign(address);
    return;
  }
  const first = [...unseen].sort((a, b) => (a.compareDocumentPosition(b) & 4 ? -1 : 1))[0];
  first?.scrollIntoView();
});

// The first thing in view, and where it stands: it must stand there afterwards, too.
function anchor() {
  const line = top.classList.contains("stick") ? top.getBoundingClientRect().bottom : 0;
  for (const element of document.querySelectorAll("[data-live-append] [data-key] > *, [data-live-append] > [data-key]")) {
    const box = element.getBoundingClientRect();
    if (box.bottom > line + 1) return { element, top: box.top };
  }
  return null;
}

function hold(before) {
  if (!before?.element.isConnected) return;
  const moved = before.element.getBoundingClientRect().top - before.top;
  if (Math.abs(moved) > 0.5) scrollBy({ top: moved, behavior: "instant" });
}

const METRIC = /\b(?:b[0-7n]|m[trqp]|v[0-5x]|c)\b/g;
const plainClass = (token) => token.className.replace(METRIC, "").replace(/\s+/g, " ").trim();

// What a reader would see differ, but for the colours of the metric and the cursor.
function signature(element) {
  const tokens = element.querySelectorAll(".k > i");
  if (!tokens.length) return element.textContent.replace(/\s+/g, " ");
  return element.className + element.querySelector(".rail")?.textContent + [...tokens].map(plainClass).join("|") + tokens.length;
}

function append(mine, fresh) {
  const here = new Map([...mine.children].filter((c) => c.dataset.key).map((c) => [c.dataset.key, c]));
  let changed = false;
  for (const child of [...fresh.children]) {
    const key = child.dataset.key;
    if (!key) continue;
    const old = here.get(key);
    if (!old) {
      const last = [...mine.children].findLast((c) => c.dataset.key);
      const copy = document.importNode(child, true);
      if (last) last.after(copy); else mine.append(copy);
      mine.querySelectorAll(":scope > .empty").forEach((empty) => empty.remove());
      unseen.add(copy);
      seen.observe(copy);
      changed = true;
    } else if (!old.contains(document.activeElement) && !old.querySelector("details[open]") && signature(old) !== signature(child)) {
      old.replaceWith(document.importNode(child, true));
      changed = true;
    }
  }
  for (const name of ["total", "branch"]) if (fresh.dataset[name]) mine.dataset[name] = fresh.dataset[name];
  return changed;
}

function swap(mine, fresh) {
  if (mine.contains(document.activeElement) || mine.outerHTML === fresh.outerHTML) return;
  const [x, y] = [mine.closest(".side")?.scrollLeft, mine.closest(".side")?.scrollTop];
  const copy = document.importNode(fresh, true);
  mine.replaceWith(copy);
  const side = copy.closest(".side");
  if (side) [side.scrollLeft, side.scrollTop] = [x, y];
}

async function refresh() {
  if (tail.busy) { tail.again = true; return; }
  tail.busy = true;
  tail.at = Date.now();
  try {
    // The branch that is being read, wherever it leads now; a new fork does not replace it.
    const address = new URL(location.href);
    const branch = document.querySelector("[data-live-append][data-branch]")?.dataset.branch;
    if (branch) address.searchParams.set("branch", branch);
    address.hash = "";
    const reply = await fetch(address, { headers: { Accept: "text/html" } });
    if (!reply.ok) return;
    const text = await reply.text();
    tail.heavy = text.length > HEAVY;
    const page = new DOMParser().parseFromString(text, "text/html");
    const before = anchor();
    const fresh = [...page.querySelectorAll("[data-live-append]")];
    let changed = false;
    document.querySelectorAll("[data-live-append]").forEach((mine, place) => {
      if (fresh[place]) changed = append(mine, fresh[place]) || changed;
    });
    for (const mine of document.querySelectorAll("[data-live-swap]")) {
      const other = page.querySelector(`[data-live-swap="${mine.dataset.liveSwap}"]`);
      if (other) swap(mine, other); else if (mine.dataset.liveSwap === "live") mine.remove();
    }
    if (!document.querySelector("[data-live-append] [data-key]") && page.querySelector("[data-live-append] [data-key]")) location.reload();
    if (changed) document.dispatchEvent(new CustomEvent("explorer:grown"));
    document.dispatchEvent(new CustomEvent("explorer:swapped"));
    hold(before);
    tail.elsewhere ||= Boolean(branch) && tail.told > 0 && !changed;
    tail.told = 0;
    showPill();
    root.dataset.refreshed = String(1 + Number(root.dataset.refreshed ?? 0));
  } finally {
    tail.busy = false;
    if (tail.again) { tail.again = false; soon(); }
  }
}

function soon() {
  clearTimeout(tail.timer);
  if (tail.heavy) { showPill(); return; }
  tail.timer = setTimeout(refresh, Math.max(150, PAUSE - (Date.now() - tail.at)));
}

function follow() {
  const address = new URL(top.dataset.live, location.href);
  if (tail.last) address.searchParams.set("since", tail.last);
  const source = new EventSource(address);
  tail.source = source;
  const note = (event) => { if (event.lastEventId) tail.last = event.lastEventId; };
  source.addEventListener("open", () => { root.dataset.tail = "open"; });
  source.addEventListener("call", (event) => { note(event); tail.told += 1; soon(); });
  source.addEventListener("event", (event) => { note(event); soon(); });
  source.addEventListener("state", () => { if (root.dataset.tail === "open") { root.dataset.tail = "on"; return; } soon(); });
  source.addEventListener("end", () => { source.close(); tail.ended = true; root.dataset.tail = "ended"; soon(); });
  source.addEventListener("error", () => {
    root.dataset.tail = "lost";
    // A refused stream is not tried again by the browser.
    if (source.readyState === EventSource.CLOSED && !tail.ended) setTimeout(follow, 4000);
  });
}

addEventListener("pagehide", () => tail.source?.close());
if (top) follow();
