// Leases over time: a lane per device, a bar per lease; below, reservations and the starts that the queue
// expects. Bars are placed through the style object: the content policy allows no style attribute.
import {count, el, redraw, soft} from "./dom.js";
import {ownerMark} from "./owners.js";

const MINUTE = 60000, STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880].map((each) => each * MINUTE);
const PLANNED_PX = 20, TALL_NODES = 4, LANE_PX = 9, LOW_LANE_PX = 4;
const time = (text) => new Date(text).getTime();

// Whole local hours and days: the offset of the time zone is taken off before rounding.
function ticks(from, to) {
  const step = STEPS.find((each) => (to - from) / each <= 8) || STEPS.at(-1), off = new Date(from).getTimezoneOffset() * MINUTE;
  const found = [];
  for (let at = Math.ceil((from - off) / step) * step + off; at <= to; at += step) found.push(at);
  return found;
}

function label(at) {
  const day = new Date(at), midnight = day.getHours() === 0 && day.getMinutes() === 0;
  return midnight ? day.toLocaleDateString(undefined, {weekday: "short", day: "numeric", month: "short"})
    : day.toLocaleTimeString(undefined, {hour: "numeric", minute: "2-digit"});
}

const stamp = (text) => new Date(text).toLocaleString(undefined, {dateStyle: "medium", timeStyle: "short"});

export class Gantt {
  constructor() {
    this.root = el("div", {class: "gantt"});
    this.notes = el("p", {class: "soft"});
  }

  show(data) {
    const from = time(data.since), to = time(data.until), now = time(data.now);
    const part = (at) => (Math.min(Math.max(at, from), to) - from) / (to - from) * 100;
    const place = (made, start, end) => {
      made.style.left = `${part(start)}%`;
      made.style.width = `${Math.max(0.15, part(end) - part(start))}%`;
      return made;
    };
    const lanes = (px, ...children) => {
      const line = el("span", {class: "gantt-now", "aria-hidden": "true"});
      line.style.left = `${part(now)}%`;
      const made = el("div", {class: "gantt-lanes"}, ticks(from, to).map((at) => {
        const mark = el("span", {class: "gantt-tick", "aria-hidden": "true"});
        mark.style.left = `${part(at)}%`;
        return mark;
      }), children, line);
      made.style.height = `${px}px`;
      return made;
    };
    const row = (name, ...content) => el("div", {class: "gantt-row"}, el("div", {class: "gantt-name"}, name), ...content);

    const axis = el("div", {class: "gantt-axis", "aria-hidden": "true"}, ticks(from, to).map((at) => {
      const mark = el("span", null, label(at));
      mark.style.left = `${part(at)}%`;
      return mark;
    }));
    const byNode = new Map(data.nodes.map((node) => [node.node, []]));
    for (const lease of data.leases) for (const slot of lease.slots) byNode.get(slot.node)?.push([slot.device, lease]);
    const tallest = data.nodes.length > TALL_NODES ? LOW_LANE_PX : LANE_PX;
    const nodes = data.nodes.map((node) => {
      const lane = Math.max(3, Math.min(tallest, Math.floor(96 / Math.max(1, node.devices))));
      const bars = this.merge(byNode.get(node.node)).flatMap(([first, size, lease]) => this.bars(node.node, first, size, lane, lease, now, to, place));
      return row(node.node, lanes(node.devices * lane, bars));
    });
    const later = [...data.reservations, ...data.forecast].filter((each) => time(each.start) >= to).length, shown = (rows) => rows.filter((each) => time(each.start) < to);
    const planned = (name, rows, kind, words) => rows.length ? [row(name, lanes(rows.length * PLANNED_PX, rows.map((each, at) => {
      const start = Math.max(time(each.start), from), end = each.end ? time(each.end) : to;
      const made = place(el("a", {class: `span ${kind} ${ownerMark(each.owner).colour}`, href: `/runs/${encodeURIComponent(each.run)}`, title: words(each), "aria-label": words(each)},
        el("span", {"aria-hidden": "true"}, each.run)), start, end);
      made.style.top = `${at * PLANNED_PX + 1}px`;
      made.style.height = `${PLANNED_PX - 3}px`;
      return made;
    })))] : [];
    redraw(this.root, () => this.root.replaceChildren(row("", axis), ...nodes,
      ...planned("Reserved", shown(data.reservations), "reserved", (each) => `Reservation ${each.reservation}: run ${each.run} of ${each.owner}, ${each.gpus} ${each.flavor}, from ${stamp(each.start)}; ${each.state}, ${each.reason}`),
      ...planned("Expected", shown(data.forecast), "expected", (each) => `Expected: run ${each.run} of ${each.owner}, ${each.gpus} ${each.flavor}, not before ${stamp(each.start)}; it lacks ${each.lacks}`)));
    const notes = [later && `${count(later, "planned start")} later than shown: choose a longer range.`, data.left_out && `${count(data.left_out, "older lease is", "older leases are")} left out.`,
      data.known_since && `Leases that ended before ${stamp(data.known_since)} are not kept by name.`,
      data.next && `${count(data.nodes.length, "node is", "nodes are")} shown: filter the nodes above to see others.`].filter(Boolean);
    this.notes.replaceChildren(notes.join(" "));
  }

  // Neighbouring devices of one lease are one bar: [first lane, lanes, lease].
  merge(slots) {
    const found = [], open = new Map();
    for (const [device, lease] of slots.sort((a, b) => a[0] - b[0])) {
      const last = open.get(lease.lease);
      if (last && last[0] + last[1] === device) last[1] += 1;
      else { const made = [device, 1, lease]; open.set(lease.lease, made); found.push(made); }
    }
    return found;
  }

  bars(node, first, size, lane, lease, now, to, place) {
    const mark = ownerMark(lease.owner), end = lease.end ? time(lease.end) : now;
    const until = lease.end ? `to ${stamp(lease.end)}, ${lease.reason}` : lease.expected_end ? `expected to end ${stamp(lease.expected_end)}` : "without an expected end";
    const words = `Run ${lease.run} of ${lease.owner} on ${node}, ${count(size, "device")} from ${first}: from ${stamp(lease.start)} ${until}${lease.borrowed ? ", borrowed" : ""}`;
    const shape = {class: `span ${mark.colour}${lease.end ? " over" : ""}${lease.borrowed ? " borrowed" : ""}`, title: words, "aria-label": words};
    const name = () => el("span", {"aria-hidden": "true"}, size * lane >= 14 ? `${mark.letters} ${lease.run}` : "");
    const rest = !lease.end && lease.expected_end && time(lease.expected_end) > now;
    const text = rest && (now - time(lease.start)) * 2 < time(lease.expected_end) - now ? null : name();
    const bar = lease.there ? el("a", {...shape, href: `/runs/${encodeURIComponent(lease.run)}`, tabindex: lease.end ? "-1" : null}, text) : el("span", {...shape, role: "img"}, text);
    const made = [place(bar, time(lease.start), end)];
    if (rest)
      made.push(place(el("span", {class: `span rest ${mark.colour}`, "aria-hidden": "true"}, text ? null : name()), now, Math.min(time(lease.expected_end), to)));
    for (const each of made) {
      each.style.top = `${first * lane}px`;
      each.style.height = `${size * lane - 1}px`;
    }
    return made;
  }
}

export const ganttKey = () => el("p", {class: "legend"}, ...[["own-0", "lease"], ["own-0 rest", "until its expected end"], ["reserved", "reserved"], ["expected", "expected start"]]
  .map(([kind, words]) => el("span", {class: "owner"}, el("span", {class: `swatch bar-key ${kind}`, "aria-hidden": "true"}), words)), soft("The upright line is now."));
