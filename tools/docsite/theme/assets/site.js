// Equations: a line of text becomes what KaTeX makes of its TeX.
for (const line of document.querySelectorAll(".equation [data-tex]"))
  katex.render(line.dataset.tex, line, {throwOnError: false});

// What is wider than its place is scrolled from the keyboard too. The theme puts tables into places
// that scroll once the page is read.
const reach = () => {
  for (const place of document.querySelectorAll(
    ".md-typeset pre > code, .md-typeset__scrollwrap, .output, .equation"))
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
    else place.removeAttribute("tabindex");
};
for (const kind of ["load", "resize"]) addEventListener(kind, reach);

// The map: a stage chosen dims the methods that leave it as their parent has it.
for (const map of document.querySelectorAll(".map:has(.chips)")) {
  const buttons = [...map.querySelectorAll(".chips button")];
  const rows = [...map.querySelectorAll("a[data-stages]")];
  const said = map.querySelector(".chosen");
  const choose = (stage) => {
    let kept = 0;
    for (const row of rows) {
      const stays = !stage || row.dataset.stages.split(" ").includes(stage);
      row.classList.toggle("dim", !stays);
      kept += stays;
    }
    for (const button of buttons)
      button.setAttribute("aria-pressed", button.dataset.stage === stage);
    for (const head of map.querySelectorAll(".head"))
      head.classList.toggle("lit", head.dataset.stage === stage);
    said.hidden = !stage;
    said.textContent = `${kept} of ${rows.length} methods are other than their parent there.`;
  };
  for (const button of buttons)
    button.addEventListener("click", () => {
      const chosen = button.getAttribute("aria-pressed") === "true" ? "" : button.dataset.stage;
      history.replaceState(null, "", chosen ? `#${chosen}` : location.pathname);
      choose(chosen);
    });
  const asked = decodeURIComponent(location.hash.slice(1));
  if (buttons.some((button) => button.dataset.stage === asked)) choose(asked);
}

// The house: the arrows of the room that is pointed at, with their numbers.
for (const room of document.querySelectorAll(".house .room")) {
  const house = room.closest(".house");
  const light = (lit) => {
    house.classList.toggle("pointed", lit);
    for (const arrow of house.querySelectorAll(".arrow"))
      arrow.classList.toggle("lit", lit && arrow.dataset.rooms.split(" ").includes(room.dataset.room));
  };
  room.addEventListener("pointerenter", () => light(true));
  room.addEventListener("pointerleave", () => light(false));
}

// A sortable table: a heading sorts by its column (numbers by their first one), and a list above
// keeps the rows of one stage.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const text = (row, n) => row.cells[n].textContent.trim();
  const number = (said) => parseFloat(said.replace("\u2212", "-"));
  heads.forEach((head, n) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const order = (a, b) => {
        const [x, y] = [text(a, n), text(b, n)], [p, q] = [number(x), number(y)];
        if (isNaN(p) || isNaN(q)) return isNaN(p) - isNaN(q) || sign * x.localeCompare(y);
        return sign * (p - q);
      };
      body.append(...[...body.rows].sort(order));
    });
  });
  const at = heads.findIndex((head) => head.textContent === "stages");
  if (at < 0) continue;
  const of = (row) => text(row, at).split(", ").filter(Boolean);
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "Stage");
  for (const stage of ["", ...new Set([...body.rows].flatMap(of))].sort())
    choice.add(new Option(stage || "all stages", stage));
  choice.addEventListener("change", () => {
    for (const row of body.rows) row.hidden = !!choice.value && !of(row).includes(choice.value);
  });
  table.before(choice);
}
