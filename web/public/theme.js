// Runs before the first paint, so that no page flashes in the wrong theme.
(() => {
  const chosen = localStorage.getItem("sandyard.theme");
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
