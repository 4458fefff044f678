// Sets the theme before the first paint: the chosen one, or that of the system.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("theme");
  } catch {}
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
