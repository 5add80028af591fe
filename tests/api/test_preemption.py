"""Reservations, resolves and outcomes over HTTP: who may ask what, and answers as documented."""

import json
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fairlead.api.access import user_name
from fairlead.api.app import ENDPOINTS
from fairlead.core.lottery.owner import key_message, nonce_message
from fairlead.host.clock import now_ms
from fairlead.schema.times import format_time
from tests.api.servers import Running, budget, manifest, run, serving, short_folder
from tests.verify.stories import VALUE
from verify import fairlead_verify

PLACE = {"region": "west", "domain": "rack-1"}
NEVER = "2999-01-01T00:00:00Z"
SHAPES = {(each.method, each.path): each.answer for each in ENDPOINTS}
HELD = {"duration": "9h"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """An enforced resolver, and nothing else."""
    more = {"resolver": "enforce", "may_resolve": frozenset({"v-y"})}
    with short_folder() as folder, serving(folder, **more) as running:
        yield running


def fill(lab: Running, flavor: str, mark: str = "") -> None:
    """A node that is full of a run with spares and a gang, which have no known end; and a
    reservation that is not due."""
    where = {"flavor": flavor}
    envelopes = [{"name": "main", "flavor": flavor, "concurrency": 8}]
    lab.apply(
        manifest("Node", f"box{mark}", flavor=flavor, devices=8, location=PLACE),
        *(
            manifest("Budget", f"team-{name}{mark}", owner=f"team-{name}", envelopes=envelopes)
            for name in "abc"
        ),
        manifest(
            "Run",
            f"padded{mark}",
            owner="team-b",
            totalGPUs=2,
            groupGPUs=2,
            sparesPerGroup=2,
            **where,
        ),
        manifest(
            "Run",
            f"gang{mark}",
            owner="team-c",
            totalGPUs=4,
            command=["sleep", "600"],
            checkpointGrace="1s",
            **where,
        ),
    )
    for name in (f"padded{mark}", f"gang{mark}"):
        lab.until(f"{name} runs", lambda name=name: _phase(lab, name) == "Running")
    lab.apply(
        manifest("Run", f"big{mark}", owner="team-a", totalGPUs=6, **where),
        reservation(f"monday{mark}", f"big{mark}", NEVER),
    )


@pytest.fixture(scope="module")
def crowd(lab: Running) -> Running:
    """A full node."""
    fill(lab, "H100")
    return lab


@pytest.fixture(scope="module")
def resolved(crowd: Running) -> int:
    """The outcome of the reservation, once everybody gave way."""
    crowd.apply(reservation("monday", "big", format_time(now_ms())))
    crowd.until("it is active", lambda: crowd.status("Reservation", "monday")["state"] == "Active")
    return int(crowd.status("Reservation", "monday")["outcome"])


def reservation(name: str, of: str, at: str) -> dict[str, Any]:
    return manifest("Reservation", name, run=of, earliestStart=at)


def read(server: Running, path: str, documented: str = "", **more: Any) -> Any:
    """An answer, after making sure that it has its documented type."""
    found = server.ok("GET", path, **more)
    msgspec.convert(found, SHAPES["GET", documented or path])
    return found


def _phase(server: Running, name: str) -> str:
    return str(server.status("Run", name)["phase"])


def test_a_forecast_names_cuts_and_odds(lab: Running) -> None:
    """For the reservation and for its run; nothing is written, and who looks need not be known."""
    fill(lab, "L40", "-f")
    size = lab.ok("GET", "/v1/head")["size"]
    for kind, name in (("reservations", "monday-f"), ("runs", "big-f")):
        found = read(lab, f"/v1/{kind}/{name}/forecast", f"/v1/{kind}/{{name}}/forecast", tcp=True)
        assert (found["deficitGPUs"], found["shortfallGPUs"], found["starts"]) == (6, 0, False)
        assert [(row["run"], row["kind"], row["gpus"]) for row in found["cuts"]] == [
            ("padded-f", "DropSpare", 2)
        ]
        assert {row["run"]: row["oneIn"] for row in found["atRisk"]} == {"padded-f": 2, "gang-f": 2}
        assert found["scope"] == {"flavor": "L40", "location": PLACE}
        assert found["ended"] == {"runs": 0, "gpus": 0}
    due = lab.ok("GET", "/v1/reservations/monday-f/forecast")["earliestStart"]
    assert due.startswith("2999-01-01T00:00:00")
    entries = lab.ok("GET", f"/v1/events?after={size}")["items"]
    assert [each for each in entries if each["kind"].startswith("gpu.resolve")] == []
    assert lab.send("GET", "/v1/reservations/none/forecast").status == 404
    refused = lab.send("GET", "/v1/runs/gang-f/forecast")
    assert (refused.status, refused.code) == (409, "NotPending")
    explained = lab.ok("GET", "/v1/explain/Reservation/monday-f")
    assert explained["forecast"]["deficitGPUs"] == 6
    assert explained["run"]["metadata"]["name"] == "big-f"


def test_an_outcome_is_told_and_exported(crowd: Running, resolved: int) -> None:
    """Everybody sees what was decided; a tenant opens its own names, and the file verifies."""
    (row,) = [
        row for row in read(crowd, "/v1/outcomes", tcp=True)["items"] if row["outcome"] == resolved
    ]
    assert (row["outcome"], row["stage"], row["cause"]) == (resolved, "applied", "reservation")
    public = read(crowd, f"/v1/outcomes/{resolved}", "/v1/outcomes/{seq}", tcp=True)
    assert (public["names"], public["run"]) == ({}, None)
    assert len(public["seed"]) == 64
    kinds = {each["kind"] for each in public["result"]["actions"]}
    assert kinds == {"DropSpare", "RandomPreempt"}
    loser = next(name for name in ("padded", "gang") if _phase(crowd, name) == "Pending")
    owner = crowd.ok("GET", f"/v1/objects/Run/{loser}")["spec"]["owner"]
    other = {"team-b": "team-c", "team-c": "team-b"}[owner]
    token = crowd.token("loser", owner)
    mine = read(crowd, f"/v1/outcomes/{resolved}", "/v1/outcomes/{seq}", tcp=True, token=token)
    assert {owner, loser} <= set(mine["names"].values())
    assert other not in mine["names"].values()
    path = f"/v1/outcomes/{resolved}/export"
    reply = crowd.send("GET", path, tcp=True, token=token)
    verdict = fairlead_verify.verify(reply.data)
    assert verdict.code == 0, verdict
    assert [each["owner"] for each in reply.json["openings"]] == [owner]
    refused = crowd.send("GET", f"{path}?owner={other}", tcp=True, token=token)
    assert (refused.status, refused.code) == (403, "Forbidden")
    anybody = crowd.send("GET", f"{path}?public=true", tcp=True)
    assert fairlead_verify.verify(anybody.data).code == 0
    assert anybody.json["openings"] == anybody.json["closures"] == []
    for text in (loser, owner, other, "monday"):
        assert f'"{text}"' not in anybody.data.decode()
    unsaid = crowd.send("GET", path, tcp=True)
    assert (unsaid.status, unsaid.json["error"]["path"]) == (422, "query.owner")
    assert crowd.send("GET", f"{path}?owner={owner}", tcp=True).status == 403


def test_an_export_leads_back_to_heads_that_were_kept(crowd: Running, resolved: int) -> None:
    """Named as SIZE:ROOT; a head that this log never had is not verified."""
    kept = crowd.ok("GET", "/v1/head")
    crowd.apply(budget("later"))
    path = f"/v1/outcomes/{resolved}/export?public=true&head={kept['size']}:"
    data = crowd.send("GET", path + kept["root"]).data
    heads = [(kept["size"], kept["root"])]
    assert fairlead_verify.verify(data, heads).code == 0
    other = crowd.send("GET", path + "ab" * 32).data
    assert fairlead_verify.verify(other, [(kept["size"], "ab" * 32)]).code == 1
    for bad in ("1", "0:" + "ab" * 32, f"{kept['size']}:xyz"):
        reply = crowd.send("GET", f"/v1/outcomes/{resolved}/export?public=true&head={bad}")
        assert (reply.status, reply.json["error"]["path"]) == (422, "query.head")
    missing = crowd.send(
        "GET", f"/v1/outcomes/{resolved}/export?public=true&head=99999:{'ab' * 32}"
    )
    assert (missing.status, missing.code) == (409, "HeadUnknown")


def test_explain_says_why_and_what_now(crowd: Running, resolved: int) -> None:
    """By which outcome and with which odds it was cut; when it could start again."""
    loser = next(name for name in ("padded", "gang") if _phase(crowd, name) == "Pending")
    found = crowd.ok("GET", f"/v1/explain/Run/{loser}")
    assert (found["cut"]["outcome"], found["cut"]["drawn"], found["cut"]["oneIn"]) == (
        resolved,
        True,
        2,
    )
    assert found["forecast"]["starts"] is False
    assert found["object"]["status"]["lastOutcome"] == resolved


def test_reservations_are_their_owners(crowd: Running, resolved: int) -> None:
    """A tenant reserves for its own runs only; anybody lists them, and by owner."""
    token = crowd.token("bob", "team-b")
    crowd.apply(run("theirs", "team-a", 8), run("mine", "team-b", 8))
    path = "/v1/objects/Reservation/"
    for of, status in (("theirs", 403), ("mine", 200)):
        body = reservation(f"of-{of}", of, NEVER)
        reply = crowd.send("PUT", f"{path}of-{of}", body, tcp=True, token=token)
        assert reply.status == status, reply
    listed = crowd.ok("GET", "/v1/objects/Reservation?owner=team-b", tcp=True)["items"]
    assert [each["metadata"]["name"] for each in listed] == ["of-mine"]
    assert listed[0]["status"]["state"] == "Pending"
    assert _phase(crowd, "mine") == "Reserved"
    events = crowd.ok("GET", "/v1/events?after=0&limit=1000")["items"]
    about = {"kind": "Reservation", "name": "monday"}
    assert {"object.applied", "reservation.state"} <= {
        each["kind"] for each in events if each["object"] == about
    }
    bad = crowd.send("PUT", f"{path}x", reservation("x", "mine", "Monday"))
    assert (bad.status, bad.json["error"]["path"]) == (422, "spec.earliestStart")
    assert crowd.send("DELETE", f"{path}of-mine", tcp=True, token=token).status == 200


def test_by_hand_for_a_scope_or_a_cap(crowd: Running, resolved: int) -> None:
    """A dry run shows who is at risk; both, neither, or too much is refused with the field."""
    body = {"flavor": "H100", "location": {"domain": "rack-1"}, "gpus": 1}
    size = crowd.ok("GET", "/v1/head")["size"]
    shown = crowd.ok("POST", "/v1/resolve?dry_run=true", body)
    msgspec.convert(shown, SHAPES["POST", "/v1/resolve"])
    assert (shown["outcome"], shown["resolver"]) == (None, "enforce")
    assert sum(1 / row["oneIn"] for row in shown["forecast"]["atRisk"]) == 1
    entries = crowd.ok("GET", f"/v1/events?after={size}")["items"]
    assert [each for each in entries if each["kind"].startswith("gpu.resolve")] == []
    for wrong, path in (
        ({}, "flavor"),
        ({"flavor": "H100"}, "gpus"),
        ({**body, "gpus": 0}, "gpus"),
        ({**body, "cap": {"budget": "team-a", "name": "main"}}, "cap"),
        ({"cap": {"budget": "team-a"}}, "cap.name"),
        ({**body, "zone": 1}, "zone"),
    ):
        reply = crowd.send("POST", "/v1/resolve", wrong)
        assert (reply.status, reply.json["error"]["path"]) == (422, path), wrong
    unknown = crowd.send("POST", "/v1/resolve", {"cap": {"budget": "team-a", "name": "none"}})
    assert (unknown.status, unknown.code) == (404, "NotFound")
    enough = crowd.ok("POST", "/v1/resolve", {"cap": {"budget": "team-a", "name": "main"}})
    assert (enough["outcome"], enough["forecast"]["deficitGPUs"]) == (None, 0)
    reply = crowd.send("POST", "/v1/resolve", {**body, "gpus": 99})
    assert (reply.status, reply.code) == (409, "NotEnough")
    rows = crowd.ok("GET", "/v1/outcomes")["items"]
    assert [row["outcome"] for row in rows if row["flavor"] == "H100"] == [resolved]


def test_outcomes_by_page(crowd: Running) -> None:
    """Newest first; a page says where the next one begins, and the last one that there is none."""
    whole = crowd.ok("GET", "/v1/outcomes?limit=500")
    kept = whole["items"][0]
    service = crowd.service.plane.committer.projection.resolver.outcomes
    first = service[kept["outcome"]]
    more = {seq: msgspec.structs.replace(first, seq=seq) for seq in range(100_001, 100_006)}
    service.update(more)
    try:
        pages, cursor = [], ""
        while True:
            page = crowd.ok("GET", f"/v1/outcomes?limit=2{cursor}")
            assert page["total"] == whole["total"] + 5
            pages.append([row["outcome"] for row in page["items"]])
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
    finally:
        for seq in more:
            del service[seq]
    seen = [seq for page in pages for seq in page]
    assert seen == [*range(100_005, 100_000, -1), *(row["outcome"] for row in whole["items"])]
    assert all(len(page) == 2 for page in pages[:-1])
    for wrong in ("limit=0", "limit=501", "cursor=0", "cursor=x"):
        assert crowd.send("GET", f"/v1/outcomes?{wrong}").status == 422


def test_a_lowered_budget_shows_whom_it_hits_and_is_resolved(lab: Running) -> None:
    """The preview names runs, owners and the cap; `cap` then ends what it does not pay for."""
    lab.apply(
        manifest("Node", "other", flavor="A100", devices=4),
        manifest(
            "Budget",
            "tight",
            owner="tight",
            envelopes=[{"name": "main", "flavor": "A100", "concurrency": 4}],
        ),
    )
    for name in ("t1", "t2"):
        lab.apply(manifest("Run", name, owner="tight", flavor="A100", totalGPUs=2, **HELD))
        lab.until(f"{name} runs", lambda name=name: _phase(lab, name) == "Running")
    lowered = manifest(
        "Budget",
        "tight",
        owner="tight",
        envelopes=[{"name": "main", "flavor": "A100", "concurrency": 2}],
    )
    shown = lab.ok("PUT", "/v1/objects/Budget/tight?dry_run=true", lowered)["preview"]
    (hit,) = shown["unfunded"]
    assert (hit["run"], hit["owner"], hit["gpus"], hit["cap"]) == ("t2", "tight", 2, "envelope")
    lab.ok("PUT", "/v1/objects/Budget/tight", lowered)
    cap = {"cap": {"budget": "tight", "name": "main"}}
    shown = lab.ok("POST", "/v1/resolve?dry_run=true", cap)["forecast"]
    assert (shown["deficitGPUs"], [row["run"] for row in shown["atRisk"]]) == (2, ["t2"])
    done = lab.ok("POST", "/v1/resolve", cap)
    assert done["outcome"] > 0
    lab.until("t2 gave way", lambda: _phase(lab, "t2") == "Pending")
    assert _phase(lab, "t1") == "Running"
    lab.ok("POST", "/v1/objects/Run/t2/actions/cancel")
    caps = [
        {"name": name, "flavor": "A100", "envelopes": ["main"], "maxConcurrency": 1}
        for name in ("first", "second")
    ]
    lab.ok(
        "PUT",
        "/v1/objects/Budget/tight",
        manifest(
            "Budget",
            "tight",
            owner="tight",
            envelopes=lowered["spec"]["envelopes"],
            aggregateCaps=caps,
        ),
    )
    done = lab.ok("POST", "/v1/resolve", {"budget": "tight"})
    msgspec.convert(done, SHAPES["POST", "/v1/resolve"])
    assert [(each["name"], each["state"]) for each in done["steps"]] == [
        ("first", "begun"),
        ("second", "passed"),
    ]
    assert _phase(lab, "t1") == "Pending"
    for body, path in (
        ({"budget": "tight", **cap}, "cap"),
        ({"budget": "tight", "gpus": 1}, "flavor"),
    ):
        reply = lab.send("POST", "/v1/resolve", body)
        assert (reply.status, reply.json["error"]["path"]) == (422, path), body
    place = {"budget": "tight", "flavor": "A100", "gpus": 1}
    assert lab.ok("POST", "/v1/resolve?dry_run=true", place)["steps"][0]["kind"] == "place"
    assert lab.send("POST", "/v1/resolve", {"budget": "none"}).status == 404


def test_verbs_of_preemption(lab: Running) -> None:
    """Nominate and take it back, shrink with a width and only then; starting by resolving."""
    envelopes = [{"name": "main", "flavor": "V100", "concurrency": 4}]
    lab.apply(
        manifest("Node", "third", flavor="V100", devices=4),
        manifest("Budget", "v-x", owner="v-x", envelopes=envelopes),
        manifest("Budget", "v-y", owner="v-y", envelopes=envelopes),
    )
    elastic = {"groupGPUs": 1, "malleable": {"minTotalGPUs": 1, "stepGPUs": 1}}
    lab.apply(manifest("Run", "wide", owner="v-x", flavor="V100", totalGPUs=4, **elastic, **HELD))
    lab.until("it runs", lambda: _phase(lab, "wide") == "Running")
    act = "/v1/objects/Run/wide/actions/"
    token = lab.token("xena", "v-x")
    for verb, nominated in (("nominate", True), ("withdraw", False)):
        done = lab.ok("POST", act + verb, tcp=True, token=token)
        assert done["object"]["status"]["nominated"] is nominated
    for wrong in ("shrink", "nominate?width=2", "shrink?width=0", "shrink?width=x"):
        reply = lab.send("POST", act + wrong)
        assert (reply.status, reply.json["error"]["path"]) == (422, "query.width"), wrong
    shown = lab.ok("POST", act + "shrink?width=3&dry_run=true", tcp=True, token=token)
    assert (shown["change"], len(shown["preview"]["leases"])) == ("configured", 1)
    lab.ok("POST", act + "shrink?width=3", tcp=True, token=token)
    lab.until("it is narrower", lambda: lab.status("Run", "wide")["width"] == 3)
    assert lab.send("POST", act + "shrink?width=9").code == "CannotShrink"
    lab.apply(manifest("Run", "now", owner="v-y", flavor="V100", totalGPUs=3, **HELD))
    lab.until("it waits", lambda: lab.status("Run", "now")["reason"] == "NoDevices")
    start = "/v1/objects/Run/now/actions/resolve"
    forecast = lab.ok("POST", start + "?dry_run=true")["preview"]["forecast"]
    assert [(row["run"], row["kind"]) for row in forecast["cuts"]] == [("wide", "Shrink")] * 2
    refused = lab.send("POST", start, tcp=True, token=token)
    assert (refused.status, refused.code) == (403, "Forbidden")
    lab.ok("POST", start, tcp=True, token=lab.token("yan", "v-y"))  # whom the operator allowed it
    lab.until("it started", lambda: _phase(lab, "now") == "Running")


def test_what_goes_into_the_next_draw(lab: Running) -> None:
    """Nonces of one's own owners; beacon values and voids are the operator's."""
    lab.apply(budget("nonces-b"), budget("nonces-c"))
    token = lab.token("carol", "nonces-c")
    key, ledger = Ed25519PrivateKey.generate(), lab.ok("GET", "/v1/head")["ledger"]
    public = key.public_key().public_bytes_raw()
    path, shown = "/v1/nonces/nonces-c", "/v1/owner-keys/nonces-c"
    own, me = {"tcp": True, "token": token}, f"/v1/users/{user_name(os.getuid())}"
    made = key.sign(key_message(ledger, "nonces-c", public)).hex()
    asked = {"publicKey": public.hex(), "signature": made}
    assert lab.send("PUT", shown, asked).status == 403, "an admin is not the owner"
    size = lab.ok("GET", "/v1/head")["size"]
    for dry in ("", "?dry_run=true"):
        refused = lab.send("PUT", shown + dry, asked, **own)
        assert (refused.status, refused.code) == (403, "Forbidden"), "it would outlive the token"
        assert "a token cannot grant" in refused.json["error"]["message"]
    assert lab.ok("GET", "/v1/head")["size"] == size
    lab.ok("PUT", me, {"owners": ["nonces-c"]})
    assert lab.send("PUT", shown, {**asked, "signature": "ab" * 64}).status == 422
    assert lab.ok("PUT", shown + "?dry_run=true", asked)["public_key"] == public.hex()
    reply = lab.ok("PUT", shown, asked)
    msgspec.convert(reply, SHAPES["PUT", "/v1/owner-keys/{owner}"])
    assert lab.ok("PUT", shown, asked) == reply, "it is there already"
    other = Ed25519PrivateKey.generate()
    public = other.public_key().public_bytes_raw()
    made = other.sign(key_message(ledger, "nonces-c", public)).hex()
    another = {"publicKey": public.hex(), "signature": made}
    assert lab.send("PUT", shown, another).code == "KeyKnown"
    lab.ok("DELETE", me)
    size = lab.ok("GET", "/v1/head")["size"]
    signed = key.sign(nonce_message(ledger, "nonces-c", b"\0\xff", size)).hex()
    body = {"nonce": "00ff", "size": size, "signature": signed}
    assert lab.ok("PUT", path + "?dry_run=true", body, **own)["nonce"] == "00ff"
    value = dict(zip(("source", "round", "value"), ("drand-quicknet", 1_000, VALUE), strict=True))
    assert lab.ok("POST", "/v1/beacons?dry_run=true", value)["round"] == 1_000
    assert lab.ok("GET", "/v1/head")["size"] == size
    msgspec.convert(lab.ok("PUT", path, body, **own), SHAPES["PUT", "/v1/nonces/{owner}"])
    for owner, status in (("nonces-b", 403), ("nobody", 403)):
        reply = lab.send("PUT", f"/v1/nonces/{owner}", body, **own)
        assert reply.status == status
    assert lab.send("PUT", "/v1/nonces/nobody", body).status == 404
    assert lab.send("PUT", "/v1/nonces/nonces-b", body).code == "NoKey"
    for wrong in ("", "0", "XY", "ab" * 65):
        reply = lab.send("PUT", path, {**body, "nonce": wrong})
        assert (reply.status, reply.json["error"]["path"]) == (422, "nonce")
    assert lab.send("PUT", path, {**body, "nonce": "01"}).json["error"]["path"] == "size", "used"
    assert lab.ok("POST", "/v1/beacons", value) == value
    wrong = lab.send("POST", "/v1/beacons", {**value, "round": 1_001})
    assert (wrong.status, wrong.json["error"]["path"]) == (422, "value")
    assert lab.send("POST", "/v1/beacons", value, tcp=True, token=token).status == 403
    for seq in ("0", "x", "1", "9" * 30, "99999"):
        assert lab.send("GET", f"/v1/outcomes/{seq}").status == 404, seq
        assert lab.send("POST", f"/v1/outcomes/{seq}/void", {"reason": "no"}).status == 404, seq


def test_a_tenant_hears_no_secrets_of_a_reserved_run(crowd: Running) -> None:
    """Explaining a reservation shows its run without what only its owner may see."""
    crowd.apply(
        run("quiet", "team-c", 8, command=["sh", "-c", "echo hush"]),
        reservation("quiet", "quiet", NEVER),
    )
    shown = crowd.send("GET", "/v1/explain/Reservation/quiet", tcp=True)
    assert shown.status == 200
    assert "hush" not in json.dumps(shown.json)
    crowd.ok("DELETE", "/v1/objects/Reservation/quiet")


def test_between_whom_the_lottery_is_fair_is_a_setting_of_the_server() -> None:
    """One run of one team, three of another: 1 in 4 each; the outcome says so, and verifies."""
    settings = {"resolver": "enforce", "owner_weighting": "tokens"}
    with short_folder() as folder, serving(folder, **settings) as server:
        server.apply(
            manifest("Node", "box", flavor="H100", devices=4),
            budget("one", 4),
            budget("many", 4),
            run("lone", "one", 1),
            *(run(f"m{i}", "many", 1) for i in range(3)),
        )
        for name in ("lone", "m0", "m1", "m2"):
            server.until(f"{name} runs", lambda name=name: _phase(server, name) == "Running")
        body = {"flavor": "H100", "gpus": 2}
        shown = server.ok("POST", "/v1/resolve?dry_run=true", body)["forecast"]
        assert {row["oneIn"] for row in shown["atRisk"]} == {4}
        number = server.ok("POST", "/v1/resolve", body)["outcome"]
        told = read(server, f"/v1/outcomes/{number}", "/v1/outcomes/{seq}")
        assert (told["ownerWeighting"], {each["one_in"] for each in told["tokens"]}) == (
            "tokens",
            {4},
        )
        data = server.send("GET", f"/v1/outcomes/{number}/export?public=true").data
        assert fairlead_verify.verify(data).code == 0
