"""Slurm: accounts with their limits, from `sacctmgr dump` or `sacctmgr show assoc|qos -P`.

An account becomes a Budget of an owner with its name, below its parent account. `GrpTRES` of GPUs
is the concurrency, `GrpTRESMins` the hours. The format of a file is told by its first lines.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from fairlead.cli.importing.report import Imported

_ENTITY = re.compile(r"(Cluster|Parent|Account|User)\s+-\s+'?([^':]*)'?(?::(.*))?")
_BETWEEN = re.compile(r":(?=[A-Z][A-Za-z]*=)")
"""Before a name; other colons are part of a value, as in `gres/gpu:h100=2`."""
_GPU = re.compile(r"gres/gpu(?::([^=,]+))?=(\d{1,15})(?!\d)", re.ASCII)
_CARRIED = {"grptres", "grptresmins", "qos", "defaultqos", "defaultaccount", "description"}
_CARRIED |= {"organization", "cluster", "account", "user", "parentname", "parent", "share"}
_PLAIN = {"fairshare": "1", "share": "1", "adminlevel": "None", "priority": "0"}
"""Values that say nothing."""


class NotSlurm(ValueError):
    """No file of a kind that is read here."""


@dataclass(slots=True)
class _Account:
    """One account, or the account's line of a user."""

    name: str
    parent: str = ""
    user: str = ""
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What Slurm does not say."""

    flavor: str
    gpus: int | None
    recurrence: str | None


def import_slurm(texts: list[str], defaults: Defaults) -> Imported:
    made, accounts, qos = Imported(), list[_Account](), dict[str, dict[str, str]]()
    for text in texts:
        lines = text.splitlines()
        if any(_ENTITY.match(line) for line in lines):
            accounts += _dump(lines)
            continue
        header = next((line for line in lines if "|" in line), "").lower().split("|")
        if "account" in header:
            accounts += _associations(lines)
        elif "name" in header and {"priority", "grptres", "grptresmins"} & set(header):
            qos |= {row["name"]: row for row in _rows(lines) if "name" in row}
        else:
            raise NotSlurm("must be the output of `sacctmgr dump` or `sacctmgr show assoc|qos -P`")
    if all(one.name in ("", "root") for one in accounts):
        raise NotSlurm(
            "must name an account besides root, as `sacctmgr dump CLUSTER` and "
            "`sacctmgr show assoc -P` do"
        )
    _budgets(made, accounts, qos, defaults)
    _bindings(made, [one for one in accounts if one.user])
    return made


def _dump(lines: list[str]) -> Iterator[_Account]:
    parent = ""
    for line in lines:
        match = _ENTITY.match(line.strip())
        if match is None:
            continue
        what, name, rest = match[1], match[2], match[3] or ""
        pairs = [pair.partition("=") for pair in _BETWEEN.split(rest)]
        fields = {key.lower(): value.strip("'") for key, _, value in pairs if key}
        if what == "Parent":
            parent = name
        elif what == "Account":
            yield _Account(name, parent, "", fields)
        elif what == "User":
            yield _Account(parent, "", name, fields)


def _rows(lines: list[str]) -> Iterator[dict[str, str]]:
    listed = [line.rstrip("|").split("|") for line in lines if "|" in line]
    header = [title.replace(" ", "").lower() for title in listed[0]]
    for row in listed[1:]:
        yield dict(zip(header, row, strict=False))


def _associations(lines: list[str]) -> Iterator[_Account]:
    for row in _rows(lines):
        name, user = row.get("account", ""), row.get("user", "")
        yield _Account(name, row.get("parentname", row.get("parname", "")), user, row)


def _budgets(
    made: Imported, accounts: list[_Account], qos: dict[str, dict[str, str]], defaults: Defaults
) -> None:
    plain = {one.name: one for one in accounts if not one.user and one.name != "root"}
    users_of_qos: dict[str, list[str]] = {}
    for one in plain.values():
        for name in filter(None, re.split(r"[,+]+", one.fields.get("qos", ""))):
            users_of_qos.setdefault(name, []).append(one.name)
    for one in plain.values():
        _budget(made, one, plain, qos, users_of_qos=users_of_qos, defaults=defaults)
    for name, row in sorted(qos.items()):
        for key in ("priority", "preempt", "maxtrespu", "maxwall", "maxjobspu", "flags"):
            if row.get(key, "") not in ("", "0"):
                why = "a Run has a priority within its owner, and maxRuntime; there is no QOS"
                made.lose(f"qos {name}", key, row[key], why)
        limits = {key: row.get(key, "") for key in ("grptres", "grptresmins") if row.get(key)}
        if limits and len(users_of_qos.get(name, [])) != 1:
            why = "several accounts, or none, share it; a budget limits one owner and its children"
            made.lose(f"qos {name}", ", ".join(limits), ", ".join(limits.values()), why)


def _budget(
    made: Imported,
    one: _Account,
    plain: dict[str, _Account],
    qos: dict[str, dict[str, str]],
    *,
    users_of_qos: dict[str, list[str]],
    defaults: Defaults,
) -> None:
    about = f"account {one.name}"
    widths, minutes = _gpus(one.fields.get("grptres")), _gpus(one.fields.get("grptresmins"))
    for name, users in users_of_qos.items():
        if users == [one.name] and name in qos:  # its own QOS: the tighter limit holds
            for mine, key in ((widths, "grptres"), (minutes, "grptresmins")):
                for flavor, limit in _gpus(qos[name].get(key)).items():
                    mine[flavor] = min(limit, mine.get(flavor, limit))
    above = plain.get(one.parent)
    inherited, seen = dict(widths), {one.name}
    while above is not None and not inherited and above.name not in seen:
        seen.add(above.name)
        inherited, above = _gpus(above.fields.get("grptres")), plain.get(above.parent)
    envelopes = []
    for flavor in sorted({*widths, *minutes}) or sorted(inherited) or [""]:
        width = widths.get(flavor, inherited.get(flavor, defaults.gpus))
        if not width:
            why = "no limit of GPUs says how many at once: give --gpus, how many the cluster has"
            made.lose(about, "grptres", "", why)
            continue
        name = (flavor or defaults.flavor).upper() if flavor else defaults.flavor
        envelope: dict[str, object] = {"name": name.lower(), "flavor": name, "concurrency": width}
        if flavor in minutes:
            envelope["maxGPUHours"] = minutes[flavor] / 60
            if defaults.recurrence is not None:
                envelope["recurrence"] = defaults.recurrence
            else:
                why = "Slurm's usage decays or is reset; here hours are for good without --every"
                made.lose(about, "grptresmins", one.fields.get("grptresmins", "of a QOS"), why)
        envelopes.append(envelope)
    if envelopes:
        parents = [one.parent] if one.parent not in ("", "root") else []
        made.add_budget(about, one.name, parents, envelopes)
    _lose_rest(made, about, one.fields)


def _lose_rest(made: Imported, about: str, fields: dict[str, str]) -> None:
    for key, value in fields.items():
        said = value not in ("", _PLAIN.get(key, "")) and value != "parent"
        if key in ("fairshare", "share") and said:
            why = "owners are served by their budgets; the queue ages runs, it has no shares"
            made.lose(about, key, value, why)
        elif key not in _CARRIED and said:
            made.lose(about, key, value, "a budget has no such limit")
        elif key in ("grptres", "grptresmins"):
            others = [part for part in value.split(",") if part and not _GPU.fullmatch(part)]
            if others:
                made.lose(about, key, ",".join(others), "budgets are of GPUs only")


def _gpus(text: str | None) -> dict[str, int]:
    """`cpu=64,gres/gpu:h100=8` to {"h100": 8}; the empty name is that of all GPUs."""
    return {match[1] or "": int(match[2]) for match in _GPU.finditer(text or "")}


def _bindings(made: Imported, users: list[_Account]) -> None:
    owners: dict[str, set[str]] = {}
    for one in users:
        about = f"user {one.user} of {one.name}"
        if one.name != "root":
            owners.setdefault(one.user, set()).add(one.name)
        for key in ("grptres", "grptresmins", "maxtres", "maxjobs", "maxtresmins", "maxwall"):
            if one.fields.get(key):
                made.lose(about, key, one.fields[key], "limits are of owners, not of users")
    for user, of in sorted(owners.items()):
        flags = " ".join(f"--owner {shlex.quote(name)}" for name in sorted(of))
        made.commands.append(f"fairlead users bind {shlex.quote(user)} {flags}")
