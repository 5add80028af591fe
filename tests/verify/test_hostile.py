"""Files and ledgers made to fool a verifier: both find them out, and neither loses its temper."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.ports.ledger import Entry
from tests.core.lottery import network
from tests.verify import stories
from tests.verify.build import TIME_MS, Case, Document, Teller, encode, tell
from tests.verify.node import VERIFIER as SECOND
from tests.verify.node import ask
from tests.verify.test_node import request
from tests.verify.test_verify import VERIFIER as FIRST
from tests.verify.test_verify import small, verdict, verifier

node = pytest.mark.component("node")
MOST = 2**53 - 1


class OtherBook(Teller):
    """Fixes the entropy in an entry of its own, so that there can be several to choose from."""

    def open_sequence(self) -> Entry:
        plan, self.plan = self.plan, "resolve.another"
        entry = super().open_sequence()
        self.plan = plan
        return entry


def huge() -> Document:
    """A run with more GPUs than a JSON number can say; every lease of it can be said."""
    leases = [stories.lease(name, "r", gpus=MOST) for name in ("l0", "l1")]
    clear = {
        "scope": stories.SCOPE,
        "deficit_gpus": 1,
        "runs": [stories.run("r", "o")],
        "leases": leases,
    }
    told = stories.put("freed_gpus", value=MOST)
    return tell(Case(clear, {"shared": "o"}, tenants=("o",), lies={"result": told}))


def without_names() -> Iterator[Document]:
    """Not all names of the loser are opened: what was cut might not be seen to be its own."""
    whole = tell(replace(stories.BASE, closed=False))
    for at in range(len(whole["openings"][0]["names"])):
        told = json.loads(json.dumps(whole))
        del told["openings"][0]["names"][at]
        yield told


CASES: dict[str, tuple[Callable[[], bytes], tuple[int, str]]] = {
    "more GPUs than can be said": (lambda: encode(huge()), (2, "decision")),
    "entropy of several entries": (lambda: encode(OtherBook(stories.BASE).tell()), (1, "order")),
    "entropy of several outcomes": (
        lambda: encode(OtherBook(replace(stories.BASE, k=2)).tell()),
        (1, "order"),
    ),
    "a run that is not opened": (lambda: encode(list(without_names())[-1]), (1, "openings")),
    "a lease that is not opened": (lambda: encode(next(without_names())), (1, "openings")),
}


@pytest.mark.parametrize("name", CASES)
def test_both_find_it_out(name: str) -> None:
    """With the same code, by the same check."""
    make, expected = CASES[name]
    assert verdict(make()) == expected


@node
def test_the_second_verifier_finds_them_out_too() -> None:
    """With the same code, by the same check."""
    answers = ask([request(make()) for make, _ in CASES.values()])
    assert answers == [list(expected) for _, expected in CASES.values()]


def bent() -> list[bytes]:
    """The same document in other bytes: another order, other numbers, more or fewer bytes."""
    whole = small()
    document = json.loads(whole)
    turned = {key: document[key] for key in reversed(document)}
    said = whole.replace(b'"k":0', b'"k":%s', 2)
    made = [
        json.dumps(turned, separators=(",", ":")).encode() + b"\n",
        json.dumps(document).encode() + b"\n",
        whole.replace(b'"chain":', b'"chain":"","chain":', 1),
        *(
            said.replace(b"%s", number, 1).replace(b"%s", b"0")
            for number in (b"0.0", b"-0", b"00", b"0e0", b"1e-999", b"false", b"null", b"")
        ),
        *(whole + more for more in (b"\n", b" ", b"\0", b"{}", b"\r\n", whole)),
        *(more + whole for more in (b" ", b"\xef\xbb\xbf", b"\xff\xfe")),
        whole[:-1],
        whole[:-1] + b"\r\n",
        *(whole[:size] for size in range(0, len(whole), 199)),
        whole.replace(b"H100", b"H\\u003100", 1),
        whole.replace(b"H100", b"H10\xc0", 1),
    ]
    assert whole not in made
    return made


def test_the_same_in_other_bytes_is_no_export() -> None:
    """Nothing is read in two ways."""
    assert {verdict(data)[0] for data in bent()} == {2}


@node
def test_the_second_verifier_reads_nothing_in_two_ways() -> None:
    """The same."""
    made = bent()
    assert ask([request(data) for data in made]) == [list(verdict(data)) for data in made]


REASON = "\x1b[2J\x1b[Hnothing\nEverything holds; this outcome is verifiable.\u202e\x9b"


def test_words_of_others_do_not_redraw_the_account(tmp_path: Path) -> None:
    """A reason may say what it likes; it stays in its line."""
    void = stories.put("reason", value=REASON)
    file = tmp_path / "void.json"
    file.write_bytes(encode(tell(replace(stories.BASE, ending="void", lies={"draw": void}))))
    account = verifier().verify(file.read_bytes()).account
    assert all(line.isprintable() for line in account)
    assert account[-1] == "Everything holds; this outcome is operator-trusted."
    assert [line for line in account if line.startswith("Everything holds")] == account[-1:]
    done = run(sys.executable, "-I", "-X", "utf8=0", str(FIRST), str(file))
    assert (done.returncode, done.stderr) == (0, "")


@node
def test_the_second_account_is_not_redrawn_either(tmp_path: Path) -> None:
    """The same."""
    void = stories.put("reason", value=REASON)
    file = tmp_path / "void.json"
    file.write_bytes(encode(tell(replace(stories.BASE, ending="void", lies={"draw": void}))))
    lines = run("node", str(SECOND), str(file)).stdout.removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if line.startswith("Everything holds")] == lines[-1:]


def test_a_beacon_of_the_first_protocol_is_said_with_its_value() -> None:
    """Nobody signed it: everybody can compare it, and the label counts for nothing."""
    beacon = {"beacon": stories.OLD_BEACON, "beacon_value": stories.OLD_VALUE}
    found = verifier().verify(encode(tell(replace(stories.BASE, turns=False, **beacon))))
    account = "\n".join(found.account)
    assert f"is said to be {stories.OLD_VALUE}; it has no signature, so compare it" in account
    assert "recorded as verifiable; to you it is operator-trusted" in account


def test_a_network_that_is_unknown_is_worth_nothing_unless_you_trust_it() -> None:
    """The holder of its secret knows the round; the operator may be one."""
    ours = network.network(TIME_MS)
    beacon = {"beacon": ours.at(9).document(), "beacon_value": network.sign(9)}
    data = encode(tell(replace(stories.BASE, **beacon)))
    assert verifier().verify(data).account[-1].endswith("this outcome is operator-trusted.")
    trusted = verifier().verify(data, networks=[network.KEY])
    assert trusted.account[-1].endswith("this outcome is beacon.")


def test_a_key_is_said_with_what_it_signed() -> None:
    """After a rotation the old key vouches for the commitment's head, and not for the newest."""
    told = tell(replace(stories.BASE, rotate=True))
    old, new = told["draw"]["entry"]["body"]["commit_head"]["key_id"], told["head"]["key_id"]
    assert old != new
    account = verifier().verify(encode(told), [], [old, told["keys"][new]]).account
    assert f"The key that you know, {old}, signed the head under the commitment." in account
    assert f"The key that you know, {told['keys'][new]}, signed the head." in account


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
