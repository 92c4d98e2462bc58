// Light, dark, or the system's theme. Loaded before the page is drawn, so that it does not flash.
"use strict";

const THEMES = ["auto", "light", "dark"];

function currentTheme() {
  const kept = localStorage.getItem("theme");
  return THEMES.includes(kept) ? kept : "auto";
}

function showTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

showTheme(currentTheme());

document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const label = () => {
    button.textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[currentTheme()];
    button.setAttribute("aria-label", `Theme: ${currentTheme()}. Press to change.`);
  };
  button.addEventListener("click", () => {
    localStorage.setItem("theme", THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length]);
    showTheme(currentTheme());
    label();
  });
  label();
});
