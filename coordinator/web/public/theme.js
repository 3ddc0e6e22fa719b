// Runs before the first paint, so that a chosen theme does not flash the other one.
(() => {
  try {
    const theme = localStorage.getItem('gyre.theme');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  } catch {
    // A browser that keeps nothing uses the system's theme.
  }
})();
