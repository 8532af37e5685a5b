// The page of a run that goes on: asks every few seconds whether anything was stored, and only
// then fetches itself; what is shown is what a reload would show. What a reader has open or
// focused stays as it is.

const EVERY = 5_000;  // ms between two looks
const SELDOM = 60_000; // at most, where the page takes the server long

const page = document.querySelector("[data-follow]");
const note = document.querySelector("[data-following]");
let busy = false;
let wait = EVERY;

function said(text) {
  if (note) note.textContent = text;
}

// The element of the fresh part that has the place of the focused one; a link is found by where
// it leads, since others may have come before it.
function sameAs(focused, mine, copy) {
  if (focused.href) return [...copy.querySelectorAll("a")].find((each) => each.href === focused.href);
  const places = "summary, [tabindex]";
  return copy.querySelectorAll(places)[[...mine.querySelectorAll(places)].indexOf(focused)];
}

function swap(mine, fresh) {
  const focused = mine.contains(document.activeElement) ? document.activeElement : null;
  const open = [...mine.querySelectorAll("details")].map((each) => each.open);
  const places = [...mine.querySelectorAll(".wrap")].map((each) => [each.scrollLeft, each.scrollTop]);
  const copy = document.importNode(fresh, true);
  copy.querySelectorAll("details").forEach((each, at) => { each.open = open[at] ?? each.open; });
  if (copy.isEqualNode(mine)) return;
  const next = focused && sameAs(focused, mine, copy);
  if (focused && !next) return;
  mine.replaceWith(copy);
  next?.focus({ preventScroll: true });
  copy.querySelectorAll(".wrap").forEach((each, at) => { [each.scrollLeft, each.scrollTop] = places[at] ?? [0, 0]; });
}

async function look() {
  if (busy || document.hidden) return;
  busy = true;
  const begun = performance.now();
  try {
    const address = new URL(location.href);
    address.hash = "";
    address.searchParams.set("since", page.dataset.follow);
    const reply = await fetch(address, { headers: { Accept: "text/html" } });
    if (reply.status === 204) { said(`looks for news every ${wait / 1000} s`); return; }
    if (!reply.ok) { said("not connected, trying again"); return; }
    const text = await reply.text();
    // A large run costs its server something: a tenth of the time, whoever looks.
    wait = Math.round(Math.min(SELDOM, Math.max(EVERY, 10 * (performance.now() - begun))) / 1000) * 1000;
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const mine of document.querySelectorAll("[data-swap]")) {
      const other = fresh.querySelector(`[data-swap="${mine.dataset.swap}"]`);
      if (other) swap(mine, other);
    }
    const next = fresh.querySelector("[data-follow]");
    page.dataset.follow = next?.dataset.follow ?? page.dataset.follow;
    document.documentElement.dataset.refreshed = String(1 + Number(document.documentElement.dataset.refreshed ?? 0));
    said(`looks for news every ${wait / 1000} s`);
  } catch {
    said("not connected, trying again");
  } finally {
    busy = false;
  }
}

async function again() {
  await look();
  setTimeout(again, wait);
}

if (page) {
  setTimeout(again, wait);
  document.addEventListener("visibilitychange", look);
}
