// The list: groups, and in each its rollouts; a rollout's tokens are drawn while it is near the view.
const chosen = { text: "", mark: "" };
const cards = new Map(); // rollout -> its card
const beside = []; // rollouts chosen for side by side
const visible = (text) => text.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥\t");
const best = Math.max(1, ...rollouts.map((r) => r.outcome ?? -Infinity));
const NEAR = 900; // pixels above and below the view
const drawer = new IntersectionObserver(
  (seen) => seen.forEach((entry) => (entry.isIntersecting ? draw : clear)(entry.target)),
  { rootMargin: `${NEAR}px 0px` },
);

const answerOf = (rollout) => {
  let text = "";
  for (let t = rollout.begin; t < rollout.end; t++) text += textOf(t);
  return text;
};

function matches(rollout) {
  if (chosen.mark && !count(rollout, marks[chosen.mark])) return false;
  return !chosen.text || answerOf(rollout).toLowerCase().includes(chosen.text);
}

function count(rollout, flags) {
  let n = 0;
  for (let t = rollout.begin; t < rollout.end; t++) n += flags[t];
  return n;
}

function drawList() {
  drawer.disconnect();
  cards.clear();
  const parts = [];
  let tokens = 0;
  for (const group of groups) {
    const found = group.members.filter(matches);
    if (!found.length) continue;
    parts.push(groupHead(group));
    for (const rollout of found) {
      if (chosen.mark) tokens += count(rollout, marks[chosen.mark]);
      cards.set(rollout, card(rollout));
      parts.push(cards.get(rollout));
    }
  }
  if (!parts.length) parts.push(el("p", { class: "soft" }, "No rollout has such a token."));
  $("list").replaceChildren(...parts);
  for (const each of cards.values()) drawer.observe(each);
  drawNear();
  const marked = chosen.mark ? `, ${tokens} tokens ${chosen.mark}` : "";
  $("count").textContent = `${cards.size} of ${rollouts.length} rollouts${marked}`;
}

function groupHead(group) {
  const head = el("section", { class: "group", id: `group-${group.index}` });
  head.append(el("h2", {}, `Group ${group.index + 1}`), el("p", { class: "soft" }, summary(group)));
  head.append(el("pre", { class: "prompt" }, group.prompt));
  if (group.members.some((r) => r.parent >= 0)) head.append(tree(group));
  return head;
}

function summary(group) {
  const scores = group.members.map((r) => r.outcome).filter((r) => r !== null);
  const mean = scores.reduce((a, b) => a + b, 0) / (scores.length || 1);
  const right = scores.filter((r) => r >= best).length;
  return `${group.members.length} rollouts, mean score ${show(mean)}, ${right} of ${scores.length} right`;
}

function card(rollout) {
  const made = el("article", { class: "rollout", tabindex: "0", "data-rollout": rollout.index });
  const letters = rollout.end - rollout.begin;
  made.style.minHeight = `${58 + Math.ceil((letters * 4) / 90) * 21}px`; // until it has been drawn
  made.setAttribute("aria-label", `Rollout ${rollout.row}, reward ${show(rollout.reward)}`);
  return made;
}

function draw(made) {
  if (made.dataset.drawn) return;
  const rollout = rollouts[made.dataset.rollout];
  made.replaceChildren(cardHead(rollout), tokensOf(rollout, rollout.begin, rollout.end));
  made.style.minHeight = "";
  made.dataset.drawn = "1";
}

function clear(made) {
  if (!made.dataset.drawn || made.contains(document.activeElement)) return;
  made.style.minHeight = `${made.offsetHeight}px`;
  made.replaceChildren();
  delete made.dataset.drawn;
}

function cardHead(rollout) {
  const told = [`advantage ${show(meanOf(columns.advantage_T, rollout.begin, rollout.end))}`, `${count(rollout, columns.mask_T)} tokens`];
  if (rollout.truncated) told.push("cut off");
  if (!rollout.scored) told.push("not scored");
  if (!rollout.gradient) told.push("no gradient");
  if (rollout.parent >= 0) told.push(`from #${rollouts[rollout.parent].row} at token ${rollout.fork + 1}`);
  for (const [name, value] of Object.entries(rollout.more)) {
    if (typeof value !== "object" && show(value).length < 80) told.push(`${name.replace(/^reward\//, "")} ${show(value)}`);
  }
  const button = el("button", { type: "button", class: "beside", "aria-pressed": beside.includes(rollout) }, "Side by side");
  const head = el("div", { class: "head card" }, dot(rollout), el("b", {}, `#${rollout.row} reward ${show(rollout.reward)}`));
  head.append(el("span", { class: "soft" }, told.join(" · ")), button);
  return head;
}

function dot(rollout) {
  const made = el("i", { class: "dot", title: `score ${show(rollout.outcome)}` });
  made.style.setProperty("--share", Math.max(0, Math.min(1, (rollout.outcome ?? 0) / best)));
  if (rollout.outcome === null) made.classList.add("none");
  return made;
}

// Tokens from one place to another; turns of an environment stand apart, as a conversation.
function tokensOf(rollout, from, to) {
  const box = el("div", { class: "tokens" });
  let block = null;
  for (let t = from; t < to; t++) {
    const own = columns.mask_T[t] ? 1 : 0;
    const turn = columns.turn_T[t];
    if (!block || block.own !== own || block.turn !== turn) {
      const talk = rollout.turns.length > 1;
      block = { own, turn, box: el("div") };
      const whole = el("div", { class: `${talk ? "talk" : "flow"} ${own ? "said" : "given"}` });
      if (talk) whole.append(turnHead(rollout, t, own));
      whole.append(block.box);
      box.append(whole);
    }
    block.box.append(token(t));
  }
  return box;
}

// Whether nothing that the rollout holds before this token was seen by those from it on.
function opensContext(rollout, t) {
  const context = columns.sequence_T;
  return Boolean(context) && t > rollout.begin && context[t] !== context[t - 1];
}

function turnHead(rollout, t, own) {
  const turn = columns.turn_T[t];
  const facts = rollout.turns[turn] || {};
  const told = [own ? `turn ${turn + 1}` : opensContext(rollout, t) ? "a new context" : "environment"];
  if (own && facts.reward !== undefined && facts.reward !== null) told.push(`reward ${show(facts.reward)}`);
  if (own && facts.role) told.push(`role ${facts.role}`);
  if (own && facts.failed) told.push(...facts.failed);
  else if (own && facts.valid === false) told.push("not understood");
  if (own) told.push(`advantage ${show(meanOfTurn(rollout, t))}`);
  return el("small", { class: "soft" }, told.join(" · "));
}

function meanOfTurn(rollout, t) {
  let end = t;
  while (end < rollout.end && columns.turn_T[end] === columns.turn_T[t]) end++;
  return meanOf(columns.advantage_T, t, end);
}

function token(t) {
  const text = textOf(t);
  const made = el("span", { class: "t", "data-t": t }, visible(text) || "·");
  const colour = colourOf(t);
  if (colour) made.style.background = colour;
  if (chosen.mark) made.classList.add(marks[chosen.mark][t] ? "hit" : "miss");
  if (!columns.mask_T[t]) made.classList.add("other");
  return made;
}

function drawGroups() {
  const items = groups.map((group) => {
    const dots = el("span", { class: "dots" }, ...group.members.map(dot));
    const name = el("span", { class: "name" }, `${group.index + 1}. ${group.prompt.slice(-120)}`);
    const made = el("button", { type: "button", "data-group": group.index }, name, dots);
    made.append(el("small", { class: "soft" }, summary(group).replace(/^\d+ rollouts, /, "")));
    return made;
  });
  $("groups").replaceChildren(...items);
}

// What is near the view, at once: the observer only hears of what scrolls.
function drawNear() {
  for (const made of cards.values()) {
    const box = made.getBoundingClientRect();
    if (box.top > innerHeight + NEAR) return;
    if (box.bottom > -NEAR) draw(made);
  }
}

function redraw() {
  for (const made of cards.values()) {
    if (made.dataset.drawn) made.style.minHeight = `${made.offsetHeight}px`;
    delete made.dataset.drawn;
    made.replaceChildren();
  }
  drawNear();
}
