// The tree of a group that forks: a line a rollout, from where it left another to its end.
const LETTER = 6.7; // pixels of a letter on a branch
const ROW = 26;

function tree(group) {
  const order = below(group, -1);
  const most = Math.max(1, ...order.map((r) => r.end - r.begin));
  const width = Math.min(760, Math.max(280, $("list").clientWidth));
  const x = (n) => 6 + (n / most) * (width - 62);
  const y = (r) => 20 + order.indexOf(r) * ROW;
  const height = order.length * ROW + 6;
  const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "tree", role: "group", "aria-label": "Tree of the group" });
  const roots = order.filter((r) => r.parent < 0 && fromOf(r) === 0);
  const last = roots[roots.length - 1];
  if (last) svg.append(el("path", { class: "rise", d: `M${x(0)} ${y(order[0])}V${y(last)}` }));
  for (const rollout of order) {
    const above = rollouts[rollout.parent];
    if (above) svg.append(el("path", { class: "rise", d: `M${x(fromOf(rollout))} ${y(above)}V${y(rollout)}` }));
  }
  for (const rollout of order) svg.append(branch(group, rollout, x, y(rollout)));
  return svg;
}

const fromOf = (rollout) => Math.max(rollout.fork, 0);

// Rollouts in the order in which their lines lie: under each those that left it, the latest first.
function below(group, index) {
  const here = group.members.filter((r) => r.parent === index);
  here.sort((a, b) => fromOf(b) - fromOf(a) || a.index - b.index);
  return here.flatMap((r) => [r, ...below(group, r.index)]);
}

// A rollout's line, cut where others leave it; each piece has its text, and its credit as colour.
function branch(group, rollout, x, height) {
  const node = el("g", { class: "branch", tabindex: "0", role: "link", "data-goto": rollout.index });
  node.setAttribute("aria-label", `Rollout ${rollout.row}, reward ${show(rollout.reward)}`);
  const [from, to] = [fromOf(rollout), rollout.end - rollout.begin];
  const forks = group.members.filter((r) => r.parent === rollout.index).map(fromOf);
  const cuts = [...new Set([from, ...forks.filter((n) => n > from && n < to), to])].sort((a, b) => a - b);
  cuts.slice(1).forEach((end, i) => node.append(piece(rollout, cuts[i], end, x, height)));
  node.append(el("circle", { cx: x(to), cy: height, r: 4, class: rollout.outcome >= best ? "right" : "" }));
  node.append(el("text", { x: x(to) + 9, y: height + 4 }, `#${rollout.row}`));
  return node;
}

function piece(rollout, from, to, x, height) {
  const mean = meanOf(columns.advantage_T, rollout.begin + from, rollout.begin + to);
  const made = el("g", { class: mean > 0 ? "up" : mean < 0 ? "down" : "zero" });
  const where = to > from + 1 ? `tokens ${from + 1} to ${to}` : `token ${to}`;
  made.append(el("title", {}, `#${rollout.row}, ${where}: mean advantage ${show(mean)}, reward ${show(rollout.reward)}`));
  made.append(el("path", { d: `M${x(from)} ${height}H${x(to)}` }));
  const room = Math.floor((x(to) - x(from) - 6) / LETTER);
  let text = "";
  for (let t = rollout.begin + from; t < rollout.begin + to && text.length <= room; t++) text += textOf(t);
  text = text.replace(/\s+/g, " ");
  if (text.length > room) text = room > 1 ? `${text.slice(0, room - 1)}…` : "";
  made.append(el("text", { x: x(from) + 5, y: height - 5 }, text));
  return made;
}
