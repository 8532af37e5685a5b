// Keys of lists: j and k move over rows, Enter opens, x chooses, / goes to the text box.
// The rows' own links and boxes take the focus, so everything else is the browser's.

const root = document.documentElement;
const rows = [...document.querySelectorAll("tr[data-row]")];
const link = (row) => row.querySelector("th[scope=row] a, td a");
const box = (row) => row.querySelector("td.pick input");
const find = document.querySelector("[data-find]");

// One tab stop for the rows: Tab goes in where the reader was, and on to what follows.
let at = -1;
function rove(place) {
  if (!rows.length) return;
  at = Math.max(0, Math.min(rows.length - 1, place));
  for (const [index, row] of rows.entries()) {
    for (const element of row.querySelectorAll("a, input")) {
      if (index === at) element.removeAttribute("tabindex"); else element.tabIndex = -1;
    }
  }
}
function move(step) {
  if (!rows.length) return false;
  const focused = rows.indexOf(document.activeElement?.closest("tr[data-row]"));
  rove(focused >= 0 ? focused + step : at < 0 ? 0 : at + step);
  link(rows[at]).focus();
  rows[at].scrollIntoView({ block: "nearest" });
}
rove(0);
at = -1;
for (const [index, row] of rows.entries()) row.addEventListener("focusin", () => { if (index !== at) rove(index); });

const compare = document.querySelector("[data-compare]");
function count() {
  if (!compare) return;
  const n = document.querySelectorAll("td.pick input:checked").length;
  compare.disabled = n < 2 || n > 4;
  compare.firstElementChild.textContent = n === 0 ? "2–4 rows" : n > 4 ? `${n} chosen, at most 4` : `${n} chosen`;
}
document.addEventListener("change", (event) => { if (event.target.closest("td.pick")) count(); });
addEventListener("pageshow", count);
count();

// The label's fields stand in the same form; they are no part of what is compared.
document.getElementById("compare")?.addEventListener("submit", (event) => {
  if (!event.submitter?.hasAttribute("data-compare")) return;
  const fields = [...event.target.elements].filter((field) => field.name && field.name !== "id");
  for (const field of fields) field.disabled = true;
  setTimeout(() => { for (const field of fields) field.disabled = false; });
});

const shortcuts = {
  j: () => move(1),
  k: () => move(-1),
  Enter: () => {
    // A focused link or button opens itself.
    const row = document.activeElement?.closest("tr[data-row]");
    if (!row || document.activeElement.matches("a, button")) return false;
    link(row).click();
  },
  x: () => {
    const row = document.activeElement?.closest("tr[data-row]");
    const chosen = row && box(row);
    if (!chosen) return false;
    chosen.click();
  },
  "/": () => { if (!find) return false; find.focus(); find.select(); },
};
root.dataset.keys = [...new Set([...(root.dataset.keys ?? "").split(" "), ...Object.keys(shortcuts)])]
  .filter(Boolean).sort().join(" ");

// Before the keys of every page, which leave what is handled here alone.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest("input:not([type=checkbox]), select, textarea, dialog[open]")) return;
  const action = shortcuts[event.key];
  if (action && action() !== false) event.preventDefault();
}, true);

root.dataset.lists = "";
