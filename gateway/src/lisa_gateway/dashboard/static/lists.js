// Tables that are sorted by a click on a heading, and a box that selects all rows. All else works without this file.
"use strict";
(function () {
  function key(row, at) {
    const cell = row.cells[at];
    const given = cell.dataset.sort;
    return given === undefined ? cell.textContent.trim() : Number(given);
  }

  function compare(a, b) {
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  function sort(table, heading) {
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const each of heading.parentElement.cells) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(key(a, heading.cellIndex), key(b, heading.cellIndex)) * (down ? -1 : 1));
    table.tBodies[0].append(...rows);
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    for (const heading of table.tHead.rows[0].cells) {
      if (heading.tagName !== "TH") continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, heading));
      heading.append(button);
    }
    const corner = table.tHead.rows[0].querySelector("td.pick");
    if (corner) {
      const all = document.createElement("input");
      all.type = "checkbox";
      all.setAttribute("aria-label", "Select all rows");
      all.addEventListener("change", () => {
        for (const box of table.tBodies[0].querySelectorAll("td.pick input")) box.checked = all.checked;
      });
      corner.append(all);
    }
  }
})();
