"""The one YAML loader: plain data comes out, everything else is refused with a path."""

import pytest

from fairlead.schema.border import BadInput
from fairlead.schema.yaml import DEPTH_MAX, YAML_BYTES_MAX, parse_yaml, parse_yaml_documents

BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % (now, now, *[before] * 9)
    for before, now in zip(b"abcdefgh", b"bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("data", "path", "words"),
    [
        (BOMB, "a", "anchors"),
        (b"a: 1\nb: *a\n", "b", "anchors or aliases (line 2)"),
        (b"a: {b: [1, &x 2]}", "a.b[1]", "anchors"),
        (b"? &k key\n: 1\n", "$", "anchors"),
        (b"pods:\n- name: a\n  name: b\n", "pods[0].name", "given twice (line 3)"),
        (b"1: x", "$", "strings as keys"),
        (b"a: {true: x}", "a", "strings as keys"),
        (b"a: {~: x}", "a", "strings as keys"),
        (b"? [1, 2]\n: x\n", "$", "strings as keys"),
        (b"? {a: 1}\n: x\n", "$", "strings as keys"),
        (b"a: !!python/object/apply:os.system ['true']", "a", "tags"),
        (b"a: !!binary aGk=", "a", "tags"),
        (b"a: !mine 3", "a", "tags"),
        (b"%TAG ! tag:example.org,2026:\n---\na: 1\n", "$", "declare tags"),
        (b"a: 1e999", "a", "finite"),
        (b"a: [1,\n  -2e99999]", "a[1]", "finite"),
        (b"a: [1, 2", "$", "must be YAML"),
        (b"a: 'x", "$", "must be YAML"),
        (b"\ta: 1", "$", "must be YAML"),
        (b"a: \x00", "$", "must be YAML"),
        (b"a: \xff", "$", "must be UTF-8"),
        (b"--- 1\n--- 2\n", "$", "one YAML document, got 2"),
        (b"", "$", "one YAML document, got 0"),
        (b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2), "$", "nested too deeply"),
        (b"[" * 1_000_000, "$", "nested too deeply"),
        (b"\n".join(b" " * n + b"a:" for n in range(200)), "$", "nested too deeply"),
        (b"[" + b"1," * 100_001 + b"]", "$", "at most 100000 values"),
        (b" " * (YAML_BYTES_MAX + 1), "$", "at most"),
    ],
    ids=range(28),
)
def test_hostile_documents_are_refused(data: bytes, path: str, words: str) -> None:
    """With the path of the offender, quickly, and with nothing built from them."""
    with pytest.raises(BadInput) as refused:
        parse_yaml(data)
    assert refused.value.path == path
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: no", "no"),
        ("a: yes", "yes"),
        ("a: on", "on"),
        ("a: True", True),
        ("a: false", False),
        ("a: ~", None),
        ("a:", None),
        ("a: null", None),
        ("a: 'null'", "null"),
        ("a: '1'", "1"),
        ("a: 12", 12),
        ("a: -3", -3),
        ("a: 012", "012"),
        ("a: 0x1f", "0x1f"),
        ("a: 0o17", "0o17"),
        ("a: 1_000", "1_000"),
        ("a: 12:30:00", "12:30:00"),
        ("a: +5", "+5"),
        ("a: ١", "١"),
        ("a: 1.5", 1.5),
        ("a: 1e3", 1000.0),
        ("a: .5", ".5"),
        ("a: .inf", ".inf"),
        ("a: .nan", ".nan"),
        ("a: 2026-01-01", "2026-01-01"),
        ("a: |\n  1\n", "1\n"),
        ("a: {b: [1, x]}", {"b": [1, "x"]}),
        ("a: <<", "<<"),
        ("a: ! 5", "5"),
    ],
)
def test_plain_scalars_read_as_json_would(text: str, value: object) -> None:
    """None of YAML 1.1's surprises; no `==` across types either."""
    found = parse_yaml(text.encode())["a"]
    assert found == value
    assert type(found) is type(value)


def test_integers_of_any_length_are_read_without_stalling() -> None:
    """Python refuses int() past 4300 digits; the border answers with a range, not a crash."""
    assert parse_yaml(b"a: " + b"9" * 5000)["a"] > 10**300


def test_json_is_yaml_and_streams_have_several_documents() -> None:
    """Users paste JSON; manifests come in streams."""
    assert parse_yaml(b'{"a": [1, 2.5, null, true, "x"]}') == {"a": [1, 2.5, None, True, "x"]}
    assert parse_yaml_documents(b"a: 1\n---\nb: 2\n---\n- 3\n") == [{"a": 1}, {"b": 2}, [3]]
    assert parse_yaml_documents(b"# nothing\n") == []
