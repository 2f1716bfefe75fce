// Two rollouts of a group beside each other.
function chooseBeside(rollout) {
  const place = beside.indexOf(rollout);
  if (place >= 0) beside.splice(place, 1);
  else beside.push(rollout);
  if (beside.length === 2 && beside[0].group !== beside[1].group) beside.shift();
  document.querySelectorAll("button.beside").forEach((button) => {
    const card = button.closest("article");
    if (card) button.setAttribute("aria-pressed", beside.includes(rollouts[card.dataset.rollout]));
  });
  if (beside.length === 2) openBeside(...beside.splice(0));
}

function openBeside(one, other) {
  closeBeside();
  const shared = sharedPrefix(one, other);
  const side = (rollout) => {
    const box = el("div", { class: "rollout", "data-rollout": rollout.index }, cardHead(rollout));
    box.querySelector("button").remove();
    box.append(tokensOf(rollout, rollout.begin + shared, rollout.end));
    return box;
  };
  const close = el("button", { type: "button", id: "close" }, "Close (Esc)");
  const head = el("div", { class: "head" }, el("h2", {}, `#${one.row} beside #${other.row}`), close);
  const common = el("div", { class: "rollout common", "data-rollout": one.index });
  common.append(el("p", { class: "soft" }, shared ? `In common: ${shared} token${shared > 1 ? "s" : ""}, in the colours of #${one.row}` : "No token in common"));
  common.append(tokensOf(one, one.begin, one.begin + shared));
  const both = el("div", { class: "both" }, side(one), side(other));
  const box = el("section", { id: "beside", tabindex: "-1", "aria-label": "Side by side" }, head, common, both);
  $("list").before(box);
  $("list").hidden = true;
  close.addEventListener("click", closeBeside);
  scrollTo(0, $("frame").offsetTop - 8);
  box.focus({ preventScroll: true });
  box.origin = one;
}

function closeBeside() {
  const open = $("beside");
  if (!open) return false;
  open.remove();
  $("list").hidden = false;
  redraw();
  goTo(open.origin);
  document.querySelectorAll("button.beside").forEach((b) => b.setAttribute("aria-pressed", "false"));
  return true;
}
