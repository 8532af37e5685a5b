// Runs before the first paint: what the page must know so that nothing jumps.
document.documentElement.dataset.js = "";
