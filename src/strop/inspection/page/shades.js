// What tokens are shaded by: a colour for a number, and the legend.
const ORIGINS = ["policy", "environment", "demonstration", "hint", "replay"];
const PLUS = "31,111,235"; // pushed up
const MINUS = "217,95,2"; // pushed down
const ONE = "124,77,189"; // no sign
const KINDS = ["92,107,120", "31,111,235", "217,95,2", "27,158,119", "200,60,140", "150,120,20"];

const NAMED = {
  weight_T: ["token weight", "signed"],
  advantage_T: ["advantage", "signed"],
  log_ratio_T: ["log-ratio, first update", "signed"],
  last_log_ratio_T: ["log-ratio, last update", "signed"],
  gate_T: ["gate of the bound", "size"],
  entropy_old_T: ["entropy", "size"],
  probability: ["probability", "size"],
  mismatch: ["log-probability, trainer − engine", "signed"],
  clipped_T: ["clipped", "kind"],
  gradient_T: ["has a gradient", "kind"],
  origin_T: ["origin", "kind"],
  version_T: ["version of the policy", "kind"],
  turn_T: ["turn", "kind"],
};
const HIDDEN = ["text_T", "id_T", "mask_T"];
const shade = { name: "", scale: 1, kind: "signed", values: [] };

function chooseShade(name) {
  const column = columns[name];
  shade.name = name;
  shade.kind = (NAMED[name] || [name, guess(column)])[1];
  const own = column.filter((v, t) => columns.mask_T[t] && Number.isFinite(v));
  if (shade.kind === "kind") {
    const counts = new Map();
    for (const v of own) counts.set(v, (counts.get(v) || 0) + 1);
    shade.values = [...counts].sort((a, b) => a[0] - b[0]);
  } else {
    const sizes = own.map(Math.abs).sort(); // the largest hundredth would hide all others
    shade.scale = sizes[Math.floor(sizes.length * 0.99)] || sizes[sizes.length - 1] || 1;
  }
  drawLegend();
}

// A column that is not known here: flags are kinds, the rest has a sign or has none.
function guess(column) {
  const known = column.filter((v, t) => columns.mask_T[t] && Number.isFinite(v));
  if (known.every((v) => v === 0 || v === 1)) return "kind";
  return known.some((v) => v < 0) ? "signed" : "size";
}

function colourOf(t) {
  const value = columns[shade.name][t];
  if (!columns.mask_T[t] || !Number.isFinite(value)) return "";
  if (shade.kind === "kind") {
    const place = shade.values.findIndex(([v]) => v === value);
    return place <= 0 && value === 0 ? "" : `rgba(${kindColour(place)},.32)`;
  }
  const strength = Math.min(1, Math.abs(value) / shade.scale) * 0.62;
  const base = shade.kind === "size" ? ONE : value >= 0 ? PLUS : MINUS;
  return strength < 0.01 ? "" : `rgba(${base},${strength.toFixed(2)})`;
}

const kindColour = (place) => KINDS[Math.max(0, place) % KINDS.length];

function kindName(value) {
  if (shade.name === "origin_T") return ORIGINS[value] || show(value);
  if (shade.name === "gradient_T" || shade.name.startsWith("selection/")) return value ? "yes" : "no";
  if (shade.name === "clipped_T") return value ? `in ${value} update${value > 1 ? "s" : ""}` : "never";
  return show(value);
}

function drawLegend() {
  const legend = $("legend");
  legend.replaceChildren();
  if (shade.kind === "kind") {
    shade.values.slice(0, 8).forEach(([value, count], place) => {
      const swatch = el("i", { class: "swatch" });
      if (value !== 0 || place > 0) swatch.style.background = `rgba(${kindColour(place)},.32)`;
      legend.append(el("span", { class: "kind" }, swatch, `${kindName(value)} (${count})`));
    });
    if (shade.values.length > 8) legend.append(`and ${shade.values.length - 8} more`);
  } else {
    const scale = el("i", { class: "scale" });
    const end = `rgba(${shade.kind === "size" ? ONE : PLUS},.62)`;
    const begin = shade.kind === "size" ? "transparent" : `rgba(${MINUS},.62)`;
    const middle = shade.kind === "size" ? "" : "transparent,";
    scale.style.background = `linear-gradient(90deg,${begin},${middle}${end})`;
    legend.append(shade.kind === "size" ? "0" : `−${show(shade.scale)}`, scale, show(shade.scale));
  }
  const said = [...legend.childNodes].map((node) => node.textContent).join(" ");
  legend.setAttribute("aria-label", `Legend: ${labelOf(shade.name)} ${said}`);
}

const labelOf = (name) => (NAMED[name] ? NAMED[name][0] : name.replace(/_T$/, ""));

function fillShades() {
  const known = Object.keys(NAMED).filter((name) => columns[name]);
  const others = Object.keys(columns).filter((name) => !NAMED[name] && !HIDDEN.includes(name));
  const option = (name) => el("option", { value: name }, labelOf(name));
  $("shade").append(...known.map(option), el("hr"), ...others.sort().map(option));
  $("shade").value = known[0];
  chooseShade(known[0]);
}
