// What a hand does: pointing, clicking, keys.
function goTo(rollout) {
  const made = cards.get(rollout);
  if (!made) return;
  draw(made);
  made.scrollIntoView({ block: "nearest" });
  made.focus({ preventScroll: true });
}

function focused() {
  const made = document.activeElement && document.activeElement.closest("[data-rollout]");
  return made ? rollouts[made.dataset.rollout] : null;
}

function move(by) {
  const shown = [...cards.keys()];
  const now = shown.indexOf(focused() || (current && current.rollout));
  goTo(shown[Math.max(0, Math.min(shown.length - 1, now < 0 ? 0 : now + by))]);
}

function moveGroup(by) {
  const shown = [...cards.keys()];
  const order = [...new Set(shown.map((r) => r.group))];
  const rollout = focused() || (current && current.rollout);
  const now = rollout ? order.indexOf(rollout.group) : -1;
  goToGroup(order[Math.max(0, Math.min(order.length - 1, now + by))]);
}

function goToGroup(index) {
  closeBeside();
  const head = $(`group-${index}`);
  if (!head) return;
  goTo([...cards.keys()].find((r) => r.group === index));
  head.scrollIntoView({ block: "start" });
}

function pick(span, focus) {
  const rollout = rollouts[span.closest("[data-rollout]").dataset.rollout];
  document.querySelectorAll(".t.now").forEach((each) => each.classList.remove("now"));
  span.classList.add("now");
  showToken(rollout, Number(span.dataset.t));
  if (focus) {
    span.tabIndex = -1;
    span.focus({ preventScroll: true });
    span.scrollIntoView({ block: "nearest" });
  }
}

function moveToken(by) {
  const box = document.activeElement && document.activeElement.closest("[data-rollout]");
  const rollout = focused();
  if (!rollout) return false;
  const inside = current && current.rollout === rollout ? current.t + by : rollout.begin;
  const t = Math.max(rollout.begin, Math.min(rollout.end - 1, inside));
  const span = box.querySelector(`[data-t="${t}"]`);
  if (span) pick(span, true);
  return Boolean(span);
}

function setMark(name) {
  chosen.mark = chosen.mark === name ? "" : name;
  document.querySelectorAll("#marks button").forEach((button) => {
    button.setAttribute("aria-pressed", button.dataset.mark === chosen.mark);
  });
  closeBeside();
  drawList();
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  n: () => moveGroup(1),
  p: () => moveGroup(-1),
  c: () => marks.clipped && setMark("clipped"),
  o: () => marks.conflicting && setMark("conflicting"),
  h: () => marks["high-entropy"] && setMark("high-entropy"),
  s: () => focused() && chooseBeside(focused()),
  "/": () => $("search").focus(),
  "?": () => $("keys").showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  if (event.key === "Escape") {
    if (event.target === $("search")) $("search").blur();
    else closeBeside();
    return;
  }
  if (["INPUT", "SELECT"].includes(event.target.tagName)) return;
  const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (way ? moveToken(way * (event.shiftKey ? 10 : 1)) : KEYS[event.key]) {
    event.preventDefault();
    if (!way) KEYS[event.key]();
  } else if (event.key === "Enter" && event.target.dataset && event.target.dataset.goto) {
    goTo(rollouts[event.target.dataset.goto]);
  }
}

function onClick(event) {
  const near = (query) => event.target.closest(query);
  if (near(".t")) pick(near(".t"), true);
  else if (near("button.beside")) chooseBeside(rollouts[near("article").dataset.rollout]);
  else if (near("[data-group]")) goToGroup(Number(near("[data-group]").dataset.group));
  else if (near("[data-goto]")) goTo(rollouts[near("[data-goto]").dataset.goto]);
  else if (near("[data-mark]")) setMark(near("[data-mark]").dataset.mark);
  else if (near("#help")) $("keys").showModal();
}

function fillHead() {
  $("title").textContent = `${data.run}, step ${data.step}`;
  $("facts").textContent = data.facts.map(([name, value]) => `${name} ${value}`).join(" · ");
  $("step").append(...data.steps.map((n) => el("option", { value: n }, String(n))));
  $("step").value = data.step;
  $("step").disabled = data.steps.length < 2;
  const names = Object.keys(marks);
  $("marks").append(...names.map((n) => el("button", { type: "button", "data-mark": n, "aria-pressed": "false" }, n)));
  if (matchMedia("(max-width: 860px)").matches) $("side").open = false;
}

function listen() {
  let waiting = 0;
  $("step").addEventListener("change", (event) => (location.search = `?step=${event.target.value}`));
  $("shade").addEventListener("change", (event) => {
    chooseShade(event.target.value);
    redraw();
    document.querySelectorAll("#beside .t").forEach((span) => (span.style.background = colourOf(Number(span.dataset.t))));
  });
  $("search").addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      chosen.text = event.target.value.toLowerCase();
      drawList();
    }, 150);
  });
  document.addEventListener("click", onClick);
  document.addEventListener("keydown", onKey);
  document.addEventListener("mouseover", (event) => {
    const span = event.target.closest && event.target.closest(".t");
    if (span) pick(span, false);
  });
}

load().then(() => {
  fillHead();
  fillShades();
  drawGroups();
  drawList();
  listen();
  document.body.dataset.ready = "1";
});
