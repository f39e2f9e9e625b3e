// Sets the theme before the first paint. A classic script, because modules run after it.
"use strict";
(() => {
  const names = ["auto", "light", "dark"];
  const system = matchMedia("(prefers-color-scheme: dark)");
  let current = "auto";
  // Storage throws if the browser blocks it. The theme then lasts until the page is reloaded.
  try {
    current = localStorage.getItem("sluicegate.theme") ?? "auto";
  } catch {}

  function apply(name) {
    current = names.includes(name) ? name : "auto";
    const isDark = current === "dark" || (current === "auto" && system.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    try {
      localStorage.setItem("sluicegate.theme", current);
    } catch {}
    document.dispatchEvent(new Event("theme"));
  }

  function showName(button) {
    button.lastElementChild.textContent = current;
  }

  apply(current);
  system.addEventListener("change", () => apply(current));
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    showName(button);
    button.addEventListener("click", () => {
      apply(names[(names.indexOf(current) + 1) % names.length]);
      showName(button);
    });
  });
})();
