// The address of a view: what is chosen in it is there, so that it can be linked to.
export function readdress(changes, {push = false} = {}) {
  const to = new URL(location.href);
  for (const [name, value] of Object.entries(changes))
    if (value) to.searchParams.set(name, value); else to.searchParams.delete(name);
  history[push ? "pushState" : "replaceState"](null, "", to.pathname + to.search);
}
