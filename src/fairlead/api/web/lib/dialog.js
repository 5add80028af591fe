// Asking before something is changed, and saying what became of it.
import {el} from "./dom.js";

let said = null;

// What became of something, until it is dismissed or something else is said.
export function notice(text, {bad = false} = {}) {
  if (said) said.remove();
  const close = el("button", {type: "button", click: () => said.remove()}, "Dismiss");
  said = el("div", {class: bad ? "notice bad" : "notice", role: bad ? "alert" : "status"}, el("span", null, text), close);
  document.body.append(said);
}

// A refusal in words, with the field that it is about.
export function refusal(error) {
  const about = error.path ? [el("code", null, error.path), ": "] : [];
  return el("p", {class: "refusal"}, el("b", {class: "bad"}, error.status ? "Refused: " : "No answer: "), about, error.about || error.message);
}

// A labelled input. Errors about `path` mark it.
export function field(label, name, {path = null, hint = "", ...attributes} = {}) {
  const id = `field-${name}`, described = hint ? `${id}-hint` : null;
  const input = el(attributes.rows ? "textarea" : "input", {id, name, autocomplete: "off", spellcheck: "false", "aria-describedby": described, ...attributes});
  if (attributes.rows && attributes.value) input.value = attributes.value;
  if (path) input.dataset.path = path;
  return el("p", {class: "field"}, el("label", {for: id}, label), input, hint && el("span", {class: "soft", id: described}, hint));
}

// Marks the inputs that an error is about, and puts the focus on the first.
export function mark(form, error) {
  let first = null;
  for (const input of form.querySelectorAll("input, textarea, select")) {
    const own = input.dataset.path, path = error && error.path ? error.path.replace(/^manifests\[\d+\]\./, "") : null;
    const wrong = Boolean(own && path && (path === own || path.startsWith(`${own}.`) || path.startsWith(`${own}[`)));
    if (wrong) input.setAttribute("aria-invalid", "true"); else input.removeAttribute("aria-invalid");
    if (wrong && !first) first = input;
  }
  if (first) first.focus();
}

const values = (form) => Object.fromEntries(new FormData(form));

// Asks in a dialog. `consequence`: text or elements; `fields`: elements of `field`; `preview(values)`: elements that
// say what it would lead to, or throws; `perform(values)`: does it, and returns what to say. Closed: nothing happens.
export function ask({title, consequence, fields = [], preview = null, confirm, danger = false, perform}) {
  const shown = el("div", {class: "preview", "aria-live": "polite"}), refused = el("div", {role: "alert"});
  const yes = el("button", {type: "submit", class: danger ? "danger" : "primary"}, confirm);
  const back = el("button", {type: "button", click: () => dialog.close()}, "Back");
  const form = el("form", {submit: act, input: outdate}, el("h2", {id: "ask-title"}, title), el("div", {class: "consequence"}, consequence), fields, shown,
    refused, el("p", {class: "buttons"}, yes, preview && fields.length > 0 && el("button", {type: "button", click: look}, "Preview"), back));
  const dialog = el("dialog", {"aria-labelledby": "ask-title", close: () => dialog.remove()}, form);
  let turn = 0;

  async function look() {
    const own = ++turn;
    refused.replaceChildren();
    shown.replaceChildren(el("p", {class: "soft"}, "Asking the control plane…"));
    try {
      const found = await preview(values(form));
      if (own !== turn) return;
      mark(form, null);
      shown.replaceChildren(...[found].flat(9));
    } catch (error) {
      if (own !== turn) return;
      shown.replaceChildren();
      refuse(error);
    }
  }

  function outdate() {
    if (!preview) return;
    turn++;
    shown.replaceChildren(el("p", {class: "soft"}, "Preview again to see what this leads to."));
  }

  function refuse(error) {
    mark(form, error);
    refused.replaceChildren(refusal(error));
  }

  async function act(event) {
    event.preventDefault();
    yes.disabled = true;
    turn++;
    refused.replaceChildren();
    try {
      const text = await perform(values(form));
      dialog.close();
      notice(text);
    } catch (error) {
      refuse(error);
    } finally {
      yes.disabled = false;
    }
  }

  document.body.append(dialog);
  dialog.showModal();
  if (preview) look();
  return dialog;
}
