// The page of a run that goes on: asks every few seconds whether anything was stored, and only
// then fetches itself; what is shown is what a reload would show. What a reader has open or
// focused stays as it is.

const EVERY = 5_000;     // ms between two looks
const HEAVY = 2_000_000; // bytes of a page that is looked at less often

const page = document.querySelector("[data-follow]");
const note = document.querySelector("[data-following]");
let busy = false;
let wait = EVERY;

function said(text) {
  if (note) note.textContent = text;
}

function swap(mine, fresh) {
  if (mine.contains(document.activeElement)) return;
  const open = [...mine.querySelectorAll("details")].map((each) => each.open);
  const places = [...mine.querySelectorAll(".wrap")].map((each) => [each.scrollLeft, each.scrollTop]);
  const copy = document.importNode(fresh, true);
  copy.querySelectorAll("details").forEach((each, at) => { each.open = open[at] ?? each.open; });
  if (copy.isEqualNode(mine)) return;
  mine.replaceWith(copy);
  copy.querySelectorAll(".wrap").forEach((each, at) => { [each.scrollLeft, each.scrollTop] = places[at] ?? [0, 0]; });
}

async function look() {
  if (busy || document.hidden) return;
  busy = true;
  try {
    const address = new URL(location.href);
    address.hash = "";
    address.searchParams.set("since", page.dataset.follow);
    const reply = await fetch(address, { headers: { Accept: "text/html" } });
    if (reply.status === 204) { said(`looks for news every ${wait / 1000} s`); return; }
    if (!reply.ok) { said("not connected, trying again"); return; }
    const text = await reply.text();
    wait = text.length > HEAVY ? 6 * EVERY : EVERY;
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
