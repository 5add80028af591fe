// A slider over moments: drag, or use the arrow keys, to look at one of them; at the end it follows the newest.
import {readdress} from "./address.js";
import {el, number} from "./dom.js";

// `pick(point or null)` is called when another moment is looked at; null: the newest. `asked`: the time of the
// moment to begin with, as the address has it.
export class Scrubber {
  constructor(label, pick, asked) {
    Object.assign(this, {pick, points: [], time: asked ? Number(asked) : null});
    this.slider = el("input", {type: "range", min: 0, max: 0, step: 1, value: 0, id: "moment", "aria-label": label, input: () => this.move(Number(this.slider.value))});
    this.words = el("output", {for: "moment", class: "moment"});
    this.back = el("button", {type: "button", click: () => this.move(this.index - 1)}, "‹ Before");
    this.next = el("button", {type: "button", click: () => this.move(this.index + 1)}, "Next ›");
    this.newest = el("button", {type: "button", click: () => this.move(this.points.length - 1)}, "Newest");
    this.root = el("div", {class: "scrubber"}, this.slider, el("div", {class: "scrubber-row"}, this.back, this.next, this.newest, this.words));
  }

  get index() {
    if (this.time === null) return this.points.length - 1;
    const found = this.points.findLastIndex((point) => point.time_ms <= this.time);
    return Math.max(0, found);
  }

  get point() { return this.points[this.index] || null; }

  // The last moment that is not later; as the slider does.
  seek(time) {
    this.move(this.points.findLastIndex((point) => point.time_ms <= time));
  }

  show(points) {
    this.points = points;
    this.draw();
  }

  move(index) {
    const last = this.points.length - 1, to = Math.max(0, Math.min(last, index));
    if (last < 0) return;
    this.time = to === last ? null : this.points[to].time_ms;
    this.draw();
    readdress({at: this.time});
    this.pick(this.time === null ? null : this.point);
  }

  draw() {
    const last = Math.max(0, this.points.length - 1), index = this.index, point = this.point;
    this.slider.max = last;
    this.slider.value = Math.max(0, index);
    this.back.disabled = index <= 0;
    this.next.disabled = this.newest.disabled = index >= last;
    const words = point ? `${new Date(point.time_ms).toLocaleString()}${point.decision === null ? "" : `, decision ${number(point.decision)}`}${this.time === null ? " (newest)" : ""}` : "nothing reported yet";
    if (this.words.textContent !== words) this.words.textContent = words;
    this.slider.setAttribute("aria-valuetext", words);
  }
}
