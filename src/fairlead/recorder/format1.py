"""Reads the patches of format 1, in which an entry was kept as its difference from the one before.

Release 0.1 wrote them; docs/decisions/0016 tells why later ones do not. A patch is:

    [value]                take this value instead
    {key: patch}           change these members of an object, or these items of a list
    {key: null}            remove this one
    {key: [value]}         in an object also: add this one
    {key: [value, 3]}      in a list: insert this one, at this index of the new list
    [values, "values"]     an object with the same keys, sorted, and these values
    [{f: values}, "each"]  the same items or members, sorted, with these values of their member f

A list's items are named by their `uid`, `id` or `name` where all have one and it is theirs alone,
else by index ("0", "1", ...).
"""

from typing import Any

_NAMES = ("uid", "id", "name")
Object = dict[str, Any]


class BadPatch(ValueError):
    """A patch that does not fit the value it is applied to."""


def patch_documents(old: Object, changes: Object) -> Object:
    """The documents of an entry, patched; each stays an object."""
    result = dict(old)
    for name, change in changes.items():
        result[name] = patch(old.get(name), change)
    if result.keys() != old.keys() or not all(isinstance(value, dict) for value in result.values()):
        raise BadPatch("other documents than an entry has")
    return result


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
    named = _by_name(old)
    if named is not None:
        return _patch_named(named, change)
    result = list(old)
    for key, item in change.items():
        if key not in map(str, range(len(old))):
            raise BadPatch(f"no item {key!r}")
        result[int(key)] = patch(old[int(key)], item)
    return result


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
        if change is None and key in result:
            del result[key]
        elif key in old:
            result[key] = patch(old[key], change)
        elif isinstance(change, list) and len(change) == 1:
            result[key] = change[0]
        else:
            raise BadPatch(f"no member {key!r}")
    return result


def _patch_named(old: Object, changes: Object) -> list[Any]:
    result = [
        patch(item, changes[key]) if key in changes else item
        for key, item in old.items()
        if changes.get(key, ...) is not None
    ]
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


def _by_name(items: list[Any]) -> Object | None:
    """The items by the first member that tells all of them apart; None where none does."""
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    for name in _NAMES:
        found = {item[name]: item for item in items if isinstance(item.get(name), str)}
        if len(found) == len(items):
            return found
    return None
