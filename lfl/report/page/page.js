"use strict";
const root = document.documentElement;
const redraw = [];

/* The page is light or dark as the system is, until the button is pressed. */
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  redraw.forEach((draw) => draw());
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw.forEach((draw) => draw()));

/* A click on a heading sorts, the best or the largest first; another one turns it around. */
const summary = document.getElementById("summary");
const heads = [...summary.tHead.rows[1].cells];
heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
  const first = column && head.dataset.direction !== "-1" ? "descending" : "ascending";
  const second = first === "ascending" ? "descending" : "ascending";
  const order = head.getAttribute("aria-sort") === first ? second : first;
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const key = (row) => column ? row.cells[column].dataset.value : row.dataset.group;
  const compare = (a, b) => {
    const [left, right] = [key(a), key(b)];
    if (!column) return sign * left.localeCompare(right, undefined, { numeric: true });
    if (left === "" || right === "") return (left === "") - (right === "");
    return sign * (Number(left) - Number(right));
  };
  summary.tBodies[0].append(...[...summary.tBodies[0].rows].sort(compare));
}));
