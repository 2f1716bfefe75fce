// The panel of one token: from the reward to the weight, part by part.
let current = null; // {rollout, t}

function bar(value, most) {
  const width = most > 0 && Number.isFinite(value) ? Math.min(1, Math.abs(value) / most) * 50 : 0;
  const fill = el("i", { class: value < 0 ? "down" : "up" });
  fill.style.width = `${width}%`;
  fill.style[value < 0 ? "right" : "left"] = "50%";
  return el("span", { class: "bar-of", "aria-hidden": "true" }, fill);
}

function line(name, value, most, note = "") {
  const cells = [el("th", { scope: "row" }, name.replace(/_/g, "_\u200b")), el("td", {}, show(value, 4))];
  const last = most === undefined ? note : bar(value, most);
  return el("tr", {}, ...cells, el("td", { class: "wide" }, last));
}

function table(title, rows) {
  return rows.length ? [el("h3", {}, title), el("table", {}, el("tbody", {}, ...rows))] : [];
}

function showToken(rollout, t) {
  current = { rollout, t };
  const at = (name) => (columns[name] ? columns[name][t] : undefined);
  const head = el("p", { class: "token-head" }, el("code", {}, visible(textOf(t)) || "·"));
  const where = `token ${t - rollout.begin + 1} of ${rollout.end - rollout.begin}, rollout ${rollout.row}`;
  const many = rollout.turns.length > 1 ? `, turn ${at("turn_T") + 1}` : "";
  const parts = [head, el("p", { class: "soft" }, where + many)];
  if (at("mask_T")) parts.push(...waterfall(rollout, at));
  else parts.push(el("p", {}, "The policy was given this token: it gets no weight."));
  $("panel").replaceChildren(...parts, details(t));
}

function waterfall(rollout, at) {
  const steps = Object.keys(columns).filter((name) => name.startsWith("advantage/"));
  const values = [rollout.reward, ...steps.map(at), at("advantage_T")];
  const most = Math.max(...values.map((v) => Math.abs(v) || 0));
  const rows = [line("reward", rollout.reward, most)];
  for (const name of steps) rows.push(line(partOf(name), at(name), most));
  const chosen = Object.keys(columns)
    .filter((name) => name.startsWith("selection/"))
    .map((name) => line(partOf(name), at(name) ? "keeps it" : "no gradient"));
  const terms = Object.keys(columns).filter((name) => name.startsWith("weight/"));
  const largest = Math.max(Math.abs(at("weight_T")) || 0, ...terms.map((n) => Math.abs(at(n)) || 0));
  return [
    ...table("Advantage, part by part", rows),
    ...table("Selection", chosen),
    ...table("Weight in the first update", product(at)),
    ...table("Weight by term", terms.map((name) => line(partOf(name), at(name), largest))),
    ...table("Log-probabilities", logps(at)),
  ];
}

// The product is of the term with the ratio; a loss of several terms adds their weights to its own.
function product(at) {
  if (Number.isNaN(at("weight_T")) || at("weight_T") === undefined) {
    return [line("weight", 0, undefined, "in no update: nothing pushes its rollout")];
  }
  const held = at("clipped_T");
  const gate = at("gate_T") === 0 ? "held by the bound" : at("gate_T") === 1 ? "free" : "";
  const coef = at("coef_T") ?? 1;
  const ratio = Math.exp(at("log_ratio_T"));
  const own = at("advantage_T") * ratio * at("gate_T") * at("share_T") * coef;
  const several = Object.keys(columns).some((name) => name.startsWith("weight/"));
  const summed = several && !Number.isNaN(own);
  const rest = at("weight_T") - own;
  const others = Math.abs(rest) > 1e-5 * Math.abs(own) ? rest : 0; // else it is rounding
  return [
    line("advantage", at("advantage_T")),
    line("× ratio", ratio),
    line("× gate", at("gate_T"), undefined, gate),
    line("× share", at("share_T"), undefined, "average and correction"),
    ...(coef === 1 ? [] : [line("× coefficient", coef)]),
    ...(summed ? [line("= weight of its term", own), line("+ other terms", others)] : []),
    line(several && !summed ? "weight of all terms" : "= weight", at("weight_T"), undefined, at("weight_T") > 0 ? "pushed up" : at("weight_T") < 0 ? "pushed down" : ""),
    line("updates", at("updates_T"), undefined, held ? `clipped in ${held}` : "never clipped"),
    line("last ratio", Math.exp(at("last_log_ratio_T"))),
  ];
}

function logps(at) {
  const names = [
    ["engine, as drawn", "logp_behavior_T"],
    ["engine's model", "logp_sampler_T"],
    ["step's start", "logp_old_T"],
    ["first update", "logp_T"],
    ["reference", "logp_ref_T"],
    ["entropy", "entropy_old_T"],
  ];
  return names.filter(([, name]) => columns[name]).map(([said, name]) => line(said, at(name)));
}

const partOf = (name) => name.replace(/^\w+\/(\d+ )?/, "");

function details(t) {
  const rows = Object.keys(columns)
    .filter((name) => name !== "text_T")
    .map((name) => line(name, columns[name][t]));
  return el("details", {}, el("summary", {}, "Every column"), el("table", {}, el("tbody", {}, ...rows)));
}
