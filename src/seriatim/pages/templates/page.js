"use strict";
// Each component adds a selector and the function that starts each element that it finds.
const components = [];
// The theme is the one chosen before, else that of the system. A file may have no access to the storage.
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const remembered = () => { try { return localStorage.getItem("seriatim-theme"); } catch { return null; } };
const remember = (theme) => { try { localStorage.setItem("seriatim-theme", theme); } catch { /* for this visit only */ } };
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
if (["dark", "light"].includes(remembered())) root.dataset.theme = remembered();

function themes() {
  const button = document.getElementById("theme");
  const tell = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    remember(root.dataset.theme);
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}

function copies() {
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
        button.textContent = "Copied";
      } catch { button.textContent = "Copying is not allowed"; }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
}

// What several parts of a page use: numbers, new elements, boxes beside what they explain, files, and lists that one tab
// stop reaches and arrow keys move through.
const percent = (p) => (p >= 0.0005 ? `${(100 * p).toFixed(1)}\u00a0%` : p > 0 ? "under 0.1\u00a0%" : "0\u00a0%");
const make = (name, text = "", properties = {}) => Object.assign(document.createElement(name), { textContent: text }, properties);
const drawn = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);

function placed(box, at) {
  box.hidden = false;
  const left = Math.min(at.left, root.clientWidth - box.offsetWidth - 16);
  const below = at.bottom + 8 + box.offsetHeight < root.clientHeight;
  box.style.left = `${Math.max(8, left) + scrollX}px`;
  box.style.top = `${(below ? at.bottom + 8 : at.top - box.offsetHeight - 8) + scrollY}px`;
}

function download(name, text, type) {
  const link = make("a", "", { download: name, href: URL.createObjectURL(text instanceof Blob ? text : new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

const csv = (rows) => rows.map((row) => row.map((cell) => {
  const text = String(cell ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}).join(",") + "\r\n").join("");
const fileName = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "seriatim";

function oneTabStop(items) {
  items.forEach((item, i) => {
    item.setAttribute("tabindex", i ? -1 : 0);
    item.addEventListener("keydown", (event) => {
      const to = { ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1 }[event.key];
      const next = items[(to + items.length) % items.length];
      if (!next) return;
      event.preventDefault();
      for (const each of items) each.setAttribute("tabindex", each === next ? 0 : -1);
      next.focus();
    });
  });
}

// The token that a key leads to from one of the tokens of a text, in the direction in which the text is written.
function tokenReached(key, group, now, tokens) {
  const forwards = getComputedStyle(group).direction === "rtl" ? -1 : 1;
  const steps = { ArrowRight: forwards, ArrowLeft: -forwards, ArrowDown: 1, ArrowUp: -1 };
  return tokens[{ Home: 0, End: tokens.length - 1 }[key] ?? now + (steps[key] ?? NaN)];
}

document.addEventListener("DOMContentLoaded", () => {
  themes();
  copies();
  for (const [selector, start] of components) document.querySelectorAll(selector).forEach(start);
});
