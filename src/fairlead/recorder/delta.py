"""What changed between two JSON documents, as JSON: small, exact, pure.

A patch says how to turn the old value into the new one:

    [value]                take this value instead
    {key: patch}           change these members of an object, or these items of a list
    {key: null}            remove this one
    {key: [value]}         in an object also: add this one
    {key: [value, 3]}      in a list: insert this one, at this index of the new list
    [values, "values"]     an object with the same keys, sorted, and these values
    [{f: values}, "each"]  the same items or members, sorted, with these values of their member f

A list's items are named by their `uid`, `id` or `name` where all have one and it is theirs alone,
so that a pod that leaves does not shift its neighbours; else by index ("0", "1", ...). The last two
forms are for the usual case of a busy node, where every pod's demand and grant moved a little:
110 uids, three times over, would be most of the record.

Old values come from parsed JSON. New ones may hold tuples and string enums, as `canonical` does.
"""

from collections.abc import Sequence
from typing import Any

NAMES = ("uid", "id", "name")
_SCALARS = frozenset((int, float, str, bool, type(None)))
_WORD = frozenset((str,))
Object = dict[str, Any]


class BadPatch(ValueError):
    """A patch that does not fit the value it is applied to."""


def diff(old: Any, new: Any) -> Any:
    """The patch from `old` to `new`; None where both have the same canonical form."""
    if isinstance(old, dict) and isinstance(new, dict):
        return _diff_members(old, new)
    if isinstance(old, list) and isinstance(new, list | tuple):
        return _diff_items(old, new)
    # Python holds True == 1, JSON does not; 1.0 == 1 is the same number in both.
    same = old == new and isinstance(old, bool) == isinstance(new, bool)
    return None if same else [new]


def patch(old: Any, change: Any) -> Any:
    """`old` with the patch applied. Parts that did not change are shared, nothing is modified."""
    if isinstance(change, list):
        return _patch_whole(old, change)
    if not isinstance(change, dict):
        raise BadPatch("a patch is a list or an object")
    if isinstance(old, dict):
        return _patch_members(old, change)
    if not isinstance(old, list):
        raise BadPatch("members of something that has none")
    named = _named(old)
    return _patch_by_index(old, change) if named is None else _patch_by_name(named[1], change)


def diff_documents(old: Object, new: Object) -> Object:
    """Patches of the documents that changed, by name."""
    changes = {name: diff(old[name], new[name]) for name in new}
    return {name: change for name, change in changes.items() if change is not None}


def patch_documents(old: Object, changes: Object) -> Object:
    """The same documents, patched; each stays an object."""
    result = dict(old)
    for name, change in changes.items():
        result[name] = patch(old.get(name), change)
    if result.keys() != old.keys() or not all(isinstance(value, dict) for value in result.values()):
        raise BadPatch("other documents than an entry has")
    return result


def _diff_members(old: Object, new: Object) -> Any:
    changes: Object = {}
    for key, value in new.items():
        before, kind = old.get(key, ...), type(value)
        if kind in _SCALARS:  # in place: 110 pods have 1650 of them, a call each would be felt
            if before != value or (kind is bool) is not (type(before) is bool):
                changes[key] = [value]
            continue
        change = [value] if before is ... else diff(before, value)
        if change is not None:
            changes[key] = change
    if old.keys() != new.keys():
        changes.update((key, None) for key in old if key not in new)
        return changes
    if not _many(changes, new):
        return changes or None
    values = [new[key] for key in sorted(new)]
    return [values, "values"] if _plain(values) else _each(changes, values)


def _diff_items(old: list[Any], new: Sequence[Any]) -> Any:
    # A list of words, as every pod's reasons are, holds nothing that Python takes for equal
    # and JSON does not.
    if _WORD.issuperset(map(type, old)) and old == [*new]:
        return None
    named = _named(old)
    if named is not None:
        return _diff_by_name(*named, new)
    if len(old) != len(new):
        return [new]
    pairs = enumerate(zip(old, new, strict=True))
    changes = {str(index): change for index, pair in pairs if (change := diff(*pair)) is not None}
    if 2 * len(changes) > len(new) and _plain(new):
        return [new]  # past half of the items, naming each costs more than the list itself
    return _each(changes, new) if _many(changes, new) else changes or None


def _diff_by_name(name: str, before: Object, new: Sequence[Any]) -> Any:
    after = _by(name, new)
    if after is None:
        return [new]
    if [key for key in before if key in after] != [key for key in after if key in before]:
        return [new]  # those who stayed changed places: rare enough to pay in full
    changes: Object = {}
    for index, (key, item) in enumerate(after.items()):
        change = diff(before[key], item) if key in before else [item, index]
        if change is not None:
            changes[key] = change
    changes.update((key, None) for key in before if key not in after)
    if _many(changes, new) and before.keys() == after.keys():
        return _each(changes, new)
    return changes or None


def _many(changes: Object, all_of_them: Sequence[Any] | Object) -> bool:
    """Whether a value for each is likely to be shorter than a key and a value for the changed."""
    return len(changes) >= 4 and 3 * len(changes) > len(all_of_them)


def _plain(values: Sequence[Any]) -> bool:
    return all(type(value) in _SCALARS for value in values)


def _each(changes: Object, items: Sequence[Any]) -> Any:
    """The changes field by field, if they are of plain fields that every item has."""
    fields: set[str] = set()
    for change in changes.values():
        if not isinstance(change, dict):
            return changes
        fields.update(change)
    columns = {}
    for field in fields:
        columns[field] = [item.get(field, ...) if isinstance(item, dict) else ... for item in items]
        if not _plain(columns[field]):
            return changes
    return [columns, "each"]


def _patch_whole(old: Any, change: list[Any]) -> Any:
    if len(change) == 1:
        return change[0]
    if len(change) == 2 and change[1] == "values" and isinstance(old, dict):
        return dict(zip(sorted(old), _as_many(old, change[0]), strict=True))
    if len(change) == 2 and change[1] == "each" and isinstance(change[0], dict):
        if isinstance(old, dict):
            keys = sorted(old)
            return dict(zip(keys, _set_each([old[key] for key in keys], change[0]), strict=True))
        if isinstance(old, list):
            return _set_each(old, change[0])
    raise BadPatch("no known way to change this value")


def _set_each(items: list[Any], columns: Object) -> list[Any]:
    if not all(isinstance(item, dict) for item in items):
        raise BadPatch("members of something that has none")
    result = [dict(item) for item in items]
    for field, column in columns.items():
        for item, value in zip(result, _as_many(items, column), strict=True):
            item[field] = value
    return result


def _as_many(old: Object | list[Any], values: Any) -> list[Any]:
    if not isinstance(values, list) or len(values) != len(old):
        raise BadPatch("not as many values as there are members")
    return values


def _patch_members(old: Object, changes: Object) -> Object:
    result = dict(old)
    for key, change in changes.items():
        if change is None:
            if result.pop(key, ...) is ...:
                raise BadPatch(f"no member {key!r}")
        elif key in old:
            result[key] = patch(old[key], change)
        elif isinstance(change, list) and len(change) == 1:
            result[key] = change[0]
        else:
            raise BadPatch(f"no member {key!r}")
    return result


def _patch_by_index(old: list[Any], changes: Object) -> list[Any]:
    result = list(old)
    places = {str(index): index for index in range(len(old))}
    for key, change in changes.items():
        if key not in places:
            raise BadPatch(f"no item {key!r}")
        result[places[key]] = patch(old[places[key]], change)
    return result


def _patch_by_name(old: Object, changes: Object) -> list[Any]:
    result: list[Any] = []
    for key, item in old.items():
        if key not in changes:
            result.append(item)
        elif changes[key] is not None:
            result.append(patch(item, changes[key]))
    arrivals = [change for key, change in changes.items() if key not in old]
    for change in arrivals:
        if not (isinstance(change, list) and len(change) == 2 and type(change[1]) is int):
            raise BadPatch("an item that is not there, and no place to insert it")
    # Ascending, so that each index already counts the arrivals before it.
    for item, index in sorted(arrivals, key=lambda change: int(change[1])):
        if not 0 <= index <= len(result):
            raise BadPatch(f"no place {index} in a list of {len(result)}")
        result.insert(index, item)
    return result


def _named(items: list[Any]) -> tuple[str, Object] | None:
    """The member that tells this list's items apart, if there is one, and the items by it."""
    if not items or type(items[0]) is not dict:
        return None
    found = ((name, _by(name, items)) for name in NAMES)
    return next(((name, by_name) for name, by_name in found if by_name is not None), None)


def _by(name: str, items: Sequence[Any]) -> Object | None:
    """The items by that member, in order; None where one lacks it or two share it."""
    found: Object = {}
    for item in items:
        key = item.get(name) if isinstance(item, dict) else None
        if not isinstance(key, str):
            return None
        found[key] = item
    return found if len(found) == len(items) else None
