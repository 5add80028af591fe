"""The language gate finds what it is there to find."""

from tests.language import findings_in


def test_the_gate_finds_a_planted_phrase_with_its_line_and_the_word_to_use() -> None:
    """A phrase of the dialect is refused wherever it stands in a file."""
    text = "Preemption is off by default.\nThe youngest run gives way first.\n"
    (finding,) = findings_in(text, "docs/page.md")
    assert finding.place == "docs/page.md:2"
    assert finding.phrase == "gives way"
    assert "preempt" in finding.instead


def test_the_gate_reads_identifiers_too() -> None:
    """A name in code is read like prose."""
    assert [row.phrase for row in findings_in("def who_gives_way(): ...", "x.py")] == ["_gives_way"]
    assert [row.phrase for row in findings_in("import giving_way", "x.py")] == ["giving_way"]


def test_plain_english_passes() -> None:
    """The industry's words are not refused."""
    text = "Admission is soft; the backend is stalled and was ejected; the run was preempted."
    assert list(findings_in(text, "x.md")) == []


def test_words_are_refused_where_they_mean_a_lottery_a_preemption_or_a_proxy() -> None:
    """And are left alone where they are plain English, or a field."""
    refused = (
        "The lot falls on b.",
        "3 leases are cut by the rule.",
        "Who would be cut?",
        "Decided without chance.",
        "Remove the plane.",
    )
    for text in refused:
        assert len(list(findings_in(text, "x.md"))) == 1, text
    plain = (
        "After a power cut the line is cut off. Grace is cut to 10m. token.chance; the dataplane."
    )
    assert list(findings_in(plain, "x.md")) == []
