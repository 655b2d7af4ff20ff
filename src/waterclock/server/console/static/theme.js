// Before the first paint: the theme that was chosen, else that of the system.
(() => {
  const chosen = localStorage.getItem("waterclock.theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
