"""What people add to the seeds of outcomes, each signed by whom it comes from.

    owner.key            the key that an owner signs its nonces with; the key before approves it
    gpu.resolve.nonce    bytes that an owner adds to its next outcome, signed with that key
    gpu.beacon           the value of a public network's round, which is the network's signature

Who runs the control plane can pass these on, or keep them back, and can make none of them.
"""

import re
from collections.abc import Sequence

from fairlead.core.lottery import BeaconNetwork, BeaconRound
from fairlead.core.lottery.beacon import NETWORKS
from fairlead.core.lottery.owner import key_message, nonce_message
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.entries import Document, NewEntry
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.resolver.chains import needed
from fairlead.engine.gpu.resolver.outcome import Outcomes, refuse_tenants
from fairlead.engine.gpu.values import Author, Forbidden, NotFound, Refused
from fairlead.ports.entropy import EntropySource
from fairlead.schema.border import BadInput

_NONCE = re.compile(r"(?:[0-9a-f]{2}){1,64}")
_VALUE = re.compile(r"[0-9a-f]{96}")
_KEY = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")


class Contributions:
    """Takes in keys, nonces and rounds."""

    def __init__(
        self,
        committer: Committer,
        effects: Effects,
        outcomes: Outcomes,
        chance: EntropySource | None,
    ) -> None:
        self._committer, self._effects, self._outcomes = committer, effects, outcomes
        self._chance = chance

    def add_key(
        self,
        owner: str,
        public_key: str,
        *,
        signature: str,
        approval: str | None = None,
        author: Author,
        dry_run: bool = False,
    ) -> Document:
        """An owner's key for its nonces. The first is signed by itself, another by the last too.

        An admin is not the owner: only who is bound to it registers a key.
        """
        if owner not in author.owners:
            raise Forbidden(f"{author.user} is not bound to owner {owner!r}")
        _check("publicKey", public_key, _KEY, "32 bytes")
        _check("signature", signature, _SIGNATURE, "64 bytes")
        with self._committer.current() as projection:
            keys = self._keys(projection, owner)
            message = key_message(self._ledger, owner, bytes.fromhex(public_key))
            self._require_signed("signature", public_key, message, signature)
            if keys and keys[-1][0] == public_key:
                return entries.OwnerKey(owner, public_key, signature, None).document()
            if keys:
                if approval is None:
                    why = f"{owner!r} has a key; a new one needs the signature of that one too"
                    raise Refused("KeyKnown", why)
                _check("approval", approval, _SIGNATURE, "64 bytes")
                self._require_signed("approval", keys[-1][0], message, approval)
            body = entries.OwnerKey(owner, public_key, signature, approval if keys else None)
            self._record(body, owner, f"key {len(keys)}", author, dry_run=dry_run)
            return body.document()

    def add_nonce(
        self,
        owner: str,
        nonce: str,
        *,
        size: int,
        signature: str,
        author: Author,
        dry_run: bool = False,
    ) -> Document:
        """An owner's own bytes for its next outcome; `size`: the entries that it knew of."""
        _refuse(author, owner)
        _check("nonce", nonce, _NONCE, "1 to 64 bytes")
        _check("signature", signature, _SIGNATURE, "64 bytes")
        with self._committer.current() as projection:
            keys = self._keys(projection, owner)
            if not keys:
                why = f"{owner!r} has no key; register one with `fairlead audit key {owner}`"
                raise Refused("NoKey", why)
            last = projection.resolver.signed_nonces.get(owner)
            if not (0 if last is None else last.seq) <= size <= projection.seq:
                raise BadInput("size", "must be that of a checkpoint after the last nonce")
            message = nonce_message(self._ledger, owner, bytes.fromhex(nonce), size)
            self._require_signed("signature", keys[-1][0], message, signature)
            body = entries.NonceGiven(owner, nonce, size, signature)
            self._record(body, owner, f"nonce {size}", author, dry_run=dry_run)
            return body.document()

    def add_beacon(
        self, source: str, number: int, value: str, *, author: Author, dry_run: bool = False
    ) -> Document:
        """The signature of a network's round; outcomes that wait for it continue."""
        _check("value", value, _VALUE, "48 bytes, the signature of the round,")
        refuse_tenants(author)
        body, key = entries.BeaconValue(source, number, value), BeaconRound(source, number).key
        with self._committer.current():
            network = self._network(source)
        if not network.at(number).holds(bytes.fromhex(value)):  # takes a while, so without a lock
            raise BadInput("value", f"is not the signature of round {number} of {source!r}")
        with self._committer.current() as projection:

            def decide() -> Sequence[NewEntry]:
                done = key in projection.resolver.beacons or dry_run
                return [] if done else [self._committer.new(body, author.user)]

            self._committer.commit(decide)
            if not dry_run:
                self._outcomes.proceed(self._committer.now())
                self._effects.carry_out()
            return body.document()

    def _record(
        self, body: entries.Body, owner: str, effect: str, author: Author, *, dry_run: bool
    ) -> None:
        plan_id = f"owner.{owner}"  # with its pseudonym: what an export of the owner shows

        def decide() -> Sequence[NewEntry]:
            at = self._committer.at(author.user)
            return [] if dry_run else [at.entry(body, plan_id, effect)]

        self._committer.commit(decide)

    def _network(self, source: str) -> BeaconNetwork:
        """One that Fairlead knows, the operator's, or that of an outcome that waits."""
        mine, resolver = self._committer.config.beacon, self._committer.projection.resolver
        if mine is not None and mine.source == source:
            return mine
        for seq in resolver.open_seqs.values():
            round_ = resolver.outcomes[seq].beacon
            if round_ is not None and round_.source == source and round_.public_key:
                times = (round_.genesis_ms, round_.period_ms)
                return BeaconNetwork(source, *times, round_.public_key)
        if source not in NETWORKS:
            raise BadInput("source", f"no network is known as {source!r}")
        return NETWORKS[source]

    @property
    def _ledger(self) -> str:
        return self._committer.ledger.head().head.ledger

    def _keys(self, projection: Projection, owner: str) -> list[tuple[str, int]]:
        if owner not in projection.resolver.owners:
            raise NotFound("owner", owner)
        return projection.resolver.owner_keys.get(owner, [])

    def _require_signed(self, field: str, key: str, message: bytes, signature: str) -> None:
        if not needed(self._chance).signature_holds(bytes.fromhex(key), message, signature):
            raise BadInput(field, f"is not made with key {key} over this request")


def _refuse(author: Author, owner: str) -> None:
    if not author.may_act_for(owner):
        raise Forbidden(f"{author.user} may not act for owner {owner!r}")


def _check(field: str, text: str, form: "re.Pattern[str]", size: str) -> None:
    if not form.fullmatch(text):
        raise BadInput(field, f"must be {size} in hex, lower case")
