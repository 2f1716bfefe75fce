// The step: its columns unpacked, what follows from them, which tokens are marked.
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const rollouts = data.rollouts;
const columns = {};
const marks = {}; // name -> Uint8Array over all tokens
const groups = data.prompts.map((prompt, index) => ({ index, prompt, members: [] }));
const HIGH = 0.1; // the share of tokens of the highest entropy

async function unpack(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Float32Array(await new Response(stream).arrayBuffer());
}

async function load() {
  const names = Object.keys(data.columns);
  const found = await Promise.all(names.map((name) => unpack(data.columns[name])));
  names.forEach((name, i) => (columns[name] = found[i]));
  data.columns = null;
  let start = 0;
  rollouts.forEach((rollout, index) => {
    Object.assign(rollout, { index, start, end: start + rollout.size });
    start = rollout.end;
    groups[rollout.group].members.push(rollout);
  });
  groups.forEach((group) => (findAnswers(group), findEdges(group)));
  derive();
  markTokens();
}

// An answer begins behind the prompt: what all of a group were given before the first own token.
function findAnswers(group) {
  for (const rollout of group.members) {
    rollout.own = rollout.start; // the first token that the policy generated
    while (rollout.own < rollout.end && !columns.mask_T[rollout.own]) rollout.own++;
  }
  const prompt = Math.min(...group.members.map((r) => r.own - r.start));
  for (const rollout of group.members) rollout.begin = rollout.start + prompt;
}

// Rollouts that are edges of a tree, each with the text above it as its context: below which they hang.
function findEdges(group) {
  if (group.members.every((r) => r.own === r.begin)) return;
  const ids = (rollout, to) => columns.id_T.subarray(rollout.begin, to).join();
  const ends = new Map();
  for (const rollout of group.members) if (!ends.has(ids(rollout, rollout.end))) ends.set(ids(rollout, rollout.end), rollout);
  for (const rollout of group.members) {
    if (rollout.own === rollout.begin || rollout.parent >= 0) continue;
    const above = ends.get(ids(rollout, rollout.own));
    rollout.fork = rollout.own - rollout.begin;
    if (above && above !== rollout) rollout.parent = above.index;
  }
}

const textOf = (t) => data.texts[columns.text_T[t]];

// What can be shown beside what was written: probabilities, and the gap between engine and trainer.
function derive() {
  const { logp_old_T: old, logp_sampler_T: sampler, logp_behavior_T: drawn } = columns;
  if (old) columns.probability = old.map(Math.exp);
  const told = sampler && sampler.some((v) => !Number.isNaN(v)) ? sampler : drawn;
  if (old && told) columns.mismatch = old.map((v, t) => v - told[t]);
}

function markTokens() {
  const size = columns.mask_T.length;
  const { clipped_T: clipped, entropy_old_T: entropy } = columns;
  if (clipped) marks.clipped = Uint8Array.from(clipped, (v) => (v > 0 ? 1 : 0));
  if (columns.advantage_T) marks.conflicting = conflicts(size);
  if (entropy) {
    const known = entropy.filter((v) => !Number.isNaN(v)).sort();
    const least = known.length ? known[Math.floor(known.length * (1 - HIGH))] : Infinity;
    marks["high-entropy"] = Uint8Array.from(entropy, (v) => (v >= least && v > 0 ? 1 : 0));
  }
}

// Tokens that, after the same answer so far, one rollout of the group is praised for and one blamed.
function conflicts(size) {
  const found = new Uint8Array(size);
  const { advantage_T: advantage, id_T: ids } = columns;
  for (const group of groups) {
    let level = [group.members];
    for (let place = 0; level.length; place++) {
      const next = [];
      for (const same of level) {
        const byToken = new Map();
        for (const rollout of same) {
          const t = rollout.begin + place;
          if (t >= rollout.end) continue;
          if (!byToken.has(ids[t])) byToken.set(ids[t], []);
          byToken.get(ids[t]).push(rollout);
        }
        for (const those of byToken.values()) {
          if (those.length < 2) continue;
          const signs = new Set(those.map((r) => Math.sign(advantage[r.begin + place])));
          if (signs.has(1) && signs.has(-1)) for (const r of those) found[r.begin + place] = 1;
          next.push(those);
        }
      }
      level = next;
    }
  }
  return found;
}

// How many tokens the answers of two rollouts share at their beginning.
function sharedPrefix(one, other) {
  const most = Math.min(one.end - one.begin, other.end - other.begin);
  let n = 0;
  while (n < most && columns.id_T[one.begin + n] === columns.id_T[other.begin + n]) n++;
  return n;
}

// Mean of a column over the policy's own tokens from one place to another.
function meanOf(column, from, to) {
  let [sum, n] = [0, 0];
  for (let t = from; t < to; t++) if (columns.mask_T[t] && Number.isFinite(column[t])) [sum, n] = [sum + column[t], n + 1];
  return n ? sum / n : 0;
}

function show(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  const plain = Number.isInteger(value) || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5);
  const text = plain ? String(Number.isInteger(value) ? value : Number(value.toPrecision(digits))) : value.toExponential(digits - 1);
  return text.replace(/^-/, "−");
}

// An element with attributes and children; text is never read as markup.
function el(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "circle", "text", "g", "title"].includes(name);
  const made = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
