"""Numbers out of a Prometheus text: sums, quantiles, and no belief in rubbish."""

from math import inf

import pytest

from fairlead.node.traffic.scrape import BadExposition, Quantile, counter, gauge, quantile, samples
from fairlead.schema.border import BadInput
from fairlead.schema.samples import Selector

TEXT = b"""# HELP http_requests_total Requests.
# TYPE http_requests_total counter
http_requests_total{code="200",path="/a \\"b\\""} 100
http_requests_total{code="500",path="/"} 7
http_requests_total{code="503",path="/"} 3
other_total 5
in_flight 4
"""


def test_selected_samples_are_added_up() -> None:
    """By name and by what labels are like."""
    found = samples(TEXT, {"http_requests_total", "in_flight"})
    assert counter(found, Selector("http_requests_total")) == 110
    assert counter(found, Selector.parse('http_requests_total{code="5*"}', "x")) == 10
    assert gauge(found, Selector("in_flight")) == 4.0
    assert counter(found, Selector("absent_total")) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_what_no_counter_can_be_is_missing(value: str) -> None:
    """One bad sample spoils the sum: half a sum would be a lie."""
    found = samples(f'a 1\na{{x="y"}} {value}\n'.encode(), {"a"})
    assert counter(found, Selector("a")) is None


@pytest.mark.parametrize("text", [b"a{b 1\n", b"a one\n", b"\xff\xfe a 1\n"])
def test_text_in_another_format_is_refused(text: bytes) -> None:
    """Whole: nothing of it is believed."""
    with pytest.raises(BadExposition):
        samples(text, {"a"})


@pytest.mark.parametrize("odd", ["\u2028", "\x0b", "\x85", "\x1c"])
def test_a_label_may_hold_what_ends_a_line_elsewhere(odd: str) -> None:
    """Only a line feed ends a line here."""
    text = f'up{{who="a{odd}b"}} 1\r\nup{{who="c"}}\t2\n'
    assert sum(each.value for each in samples(text.encode(), {"up"})) == 3


def test_an_endless_line_is_left_out() -> None:
    """The parser's time grows with the square of its length; the others are read."""
    text = 'up{who="' + "a," * 600_000 + '"} 1\nup 2\n'
    assert [each.value for each in samples(text.encode(), {"up"})] == [2.0]


def test_a_reply_with_endless_samples_is_refused() -> None:
    """What one backend says took the time of all: 4 MiB were parsed for 1.7 s, each second, and
    the others' replies came too late. Lines about something else cost nothing and do not count."""
    line = 'up{who="%d"} 1\n'
    assert len(samples("".join(line % number for number in range(9_000)).encode(), {"up"})) == 9_000
    with pytest.raises(BadExposition, match="more than 524288 characters about up"):
        samples("".join(line % number for number in range(60_000)).encode(), {"up"})
    text = "".join(f'other{{who="{number}"}} 1\n' for number in range(60_000)) + "up 2\n"
    assert [each.value for each in samples(text.encode(), {"up"})] == [2.0]


def test_a_counter_beyond_the_integers_of_json_is_missing() -> None:
    """Nobody has served that many."""
    assert counter(samples(b"a 1e300\n", {"a"}), Selector("a")) is None


@pytest.mark.parametrize(
    ("text", "labels"),
    [("a", ()), (' a_b:c {x="1", y="*"} '.strip(), (("x", "1"), ("y", "*"))), ("a{}", ())],
)
def test_selectors(text: str, labels: tuple[tuple[str, str], ...]) -> None:
    """A name and label values, in which * is anything."""
    assert Selector.parse(text, "x").labels == labels


@pytest.mark.parametrize("text", ["", "1a", "a{", "a{b}", "a{b=c}", 'a{b="c"', 'a{b="c"}d'])
def test_what_is_no_selector_is_refused_with_its_path(text: str) -> None:
    """At the border."""
    with pytest.raises(BadInput, match=r"^scrape\.errors: "):
        Selector.parse(text, "scrape.errors")


def test_the_quantile_of_a_histogram() -> None:
    """Straight inside a bucket; beyond the last edge, that edge."""
    assert quantile(0.95, {0.1: 50.0, 0.2: 100.0, inf: 100.0}) == pytest.approx(0.19)
    assert quantile(0.95, {0.1: 10.0, inf: 100.0}) == 0.1
    assert quantile(0.95, {0.1: 0.0, inf: 0.0}) is None
    assert quantile(0.95, {}) is None


def bucket(counts: dict[str, int]) -> list[object]:
    lines = "".join(f'd_bucket{{le="{edge}"}} {count}\n' for edge, count in counts.items())
    return list(samples(lines.encode(), {"d_bucket"}))


def test_a_quantile_is_of_the_window_only() -> None:
    """What was counted before the first look, or more than 5 s ago, is history."""
    p95 = Quantile(Selector("d"), 5_000)
    assert p95.add(0, bucket({"0.1": 900, "1": 1000, "+Inf": 1000})) is None
    assert p95.add(1_000, bucket({"0.1": 1000, "1": 1100, "+Inf": 1100})) == pytest.approx(0.095)
    assert p95.add(9_000, bucket({"0.1": 1000, "1": 1200, "+Inf": 1200})) == pytest.approx(0.955)
    assert p95.add(20_000, bucket({"0.1": 1000, "1": 1200, "+Inf": 1200})) is None


def test_a_histogram_that_starts_again_or_changes_is_a_new_one() -> None:
    """A restarted process, or other buckets."""
    p95 = Quantile(Selector("d"), 5_000)
    p95.add(0, bucket({"0.1": 900, "+Inf": 1000}))
    assert p95.add(1_000, bucket({"0.1": 3, "+Inf": 4})) is None
    assert p95.add(2_000, bucket({"0.5": 10, "+Inf": 10})) is None
    assert p95.add(3_000, bucket({})) is None
