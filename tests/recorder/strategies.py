"""Random JSON for properties (apart from documents.py: the killed writers start faster without)."""

from typing import Any

from hypothesis import strategies as st

# Few different values, and those that are easily confused, so that two documents have much in
# common and differ where it is hardest to see.
_scalars = st.sampled_from(
    [None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, 0.5, 1e17, 1e300, 5e-324, 2**53 - 1, "", "1", "é"]
)
_keys = st.sampled_from(["uid", "id", "name", "a", "b", "0", "1", "\ufb33", "\U0001f600"])
_names = st.sampled_from("abcdefg")


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    item = st.builds(
        lambda rest, uid: {**rest, "uid": uid}, st.dictionaries(_keys, inner, max_size=2), _names
    )
    return (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.lists(item, max_size=6, unique_by=lambda item: item["uid"])
        | st.dictionaries(_keys | _names, inner, max_size=5)
    )


json_values: st.SearchStrategy[Any] = st.recursive(_scalars, _nested, max_leaves=12)
json_objects: st.SearchStrategy[dict[str, Any]] = st.dictionaries(_keys, json_values, max_size=4)
