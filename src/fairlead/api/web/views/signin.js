// Sign in with a token, or with the one-time link of `fairlead login --browser`.
import {el} from "../lib/dom.js";
import {field, refusal} from "../lib/dialog.js";
import {onWho, signIn, who} from "../lib/session.js";

// The code is in the fragment, which no browser sends to a server; it leaves the address at once.
function codeOfLink() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) history.replaceState(null, "", location.pathname);
  return code;
}

export function open(root, context) {
  const code = codeOfLink(), refused = el("div", {role: "alert"}), body = el("div");
  root.append(el("h1", null, "Sign in"), body, refused);

  async function enter(secret, button) {
    button.disabled = true;
    refused.replaceChildren();
    try {
      await signIn(secret);
      context.go("/");
    } catch (error) {
      refused.replaceChildren(refusal(error));
    } finally {
      button.disabled = false;
    }
  }

  function byLink() {
    const button = el("button", {type: "button", class: "primary", click: () => enter({code}, button)}, "Sign in with this link");
    return el("div", {class: "card"}, el("p", null, "This link signs this browser in. Go on only if you asked for it with ",
      el("code", null, "fairlead login --browser"), "; it works once, within a minute."), button);
  }

  function byToken() {
    const button = el("button", {type: "submit", class: "primary"}, "Sign in");
    const form = el("form", {class: "card", submit: (event) => {
      event.preventDefault();
      const token = form.elements.token.value.trim();
      form.reset();
      enter({token}, button);
    }}, field("Token", "token", {type: "password", required: true, maxlength: 200, hint: "An admin makes one: fairlead tokens create --user NAME"}),
    button, el("p", {class: "soft"}, "On the control plane's machine ", el("code", null, "fairlead login --browser"),
      " signs you in without a token. A session ends after an hour without use and after twelve hours; it has the rights of its token or user, and cannot grant any."));
    return form;
  }

  function show() {
    const own = new URL("/signin", location);
    own.hostname = "127.0.0.1";
    if (location.protocol.slice(0, -1) === "http" && location.hostname !== own.hostname)
      body.replaceChildren(el("p", null, "Sign in at ", el("a", {href: own.href}, own.href), ": under this name another user of the machine may answer."));
    else if (who.anonymous) body.replaceChildren(...(code ? [byLink()] : []), byToken());
    else body.replaceChildren(el("p", null, "You are signed in as ", el("b", null, who.user), ". Sign out to use another token or link."));
  }

  show();
  return {close: onWho(show), async refresh() { /* nothing changes by itself */ }};
}
