"""Reads the declarations of all claims: a TOML file for each block, in `declarations/`."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from trimtab.claims.claim import KINDS, Block, Claim, Superseded, digest_of
from trimtab.claims.part import parse_parts
from trimtab.nearest import nearest

# The papers in the order in which they are read; files of a paper in the order of their numbers.
_ORDER = ("bnp", "landscape", "meanfield", "regularization", "cited", "trimtab")
_FIELDS = {
    *("id", "paper", "place", "kind", "statement", "criterion", "digest", "parts", "corrected", "experiment"),
    *("other_inputs", "needs", "why", "disagrees", "supersedes"),
}


@cache
def blocks() -> tuple[Block, ...]:
    """All blocks of claims.

    Raises:
        ValueError: If a declaration is wrong; the sentence names the file and the claim.
    """
    found = []
    for file in (files("trimtab.claims") / "declarations").iterdir():
        if file.name.endswith(".toml"):
            try:
                found.append(_block(tomllib.loads(file.read_text(encoding="utf-8"))))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"declarations/{file.name}: {error}") from error
    return tuple(sorted(found, key=lambda block: (_ORDER.index(block.paper), block.number)))


@cache
def claims() -> Mapping[str, Claim]:
    """All claims, by id, in the order of the ledger.

    Raises:
        ValueError: If a declaration is wrong, or two claims have one id.
    """
    known: dict[str, Claim] = {}
    for block in blocks():
        for claim in block.claims:
            if claim.id in known:
                raise ValueError(f"two claims have the id {claim.id!r}; rename one of them")
            known[claim.id] = claim
    return known


def claim_named(name: str) -> Claim:
    """The claim with an id.

    Raises:
        ValueError: If there is none.
    """
    known = claims()
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near!r}?" if near else "`trimtab claims list` has them all"
        raise ValueError(f"there is no claim {name!r}; {hint}")
    return known[name]


def _block(content: dict[str, Any]) -> Block:
    number, paper, seen = content["block"], content["paper"], content["seen"]
    declared = tuple(_claim(claim, number, paper, seen) for claim in content["claim"])
    return Block(number, paper, content["title"], content["conditions"], declared)


def _claim(content: dict[str, Any], block: str, paper: str, seen: bool) -> Claim:
    name = content["id"]
    if unknown := content.keys() - _FIELDS:
        raise ValueError(f"{name} has {min(unknown)!r}, which is not known")
    if content["kind"] not in KINDS:
        raise ValueError(f"{name}: kind is {content['kind']!r}, not one of {', '.join(KINDS)}")
    parts, corrected = content.get("parts", []), content.get("corrected", [])
    digest = digest_of(content["criterion"], parts, corrected)
    if content.get("digest", digest) != digest:
        raise ValueError(
            f"{name}: the criterion has changed (digest {digest}, declared {content['digest']}); if it was run before, "
            "put the old one under supersedes, with its verdict, the date and the reason"
        )
    if not parts and not content.get("needs"):
        raise ValueError(f"{name} has no parts; declare them, or say under needs why it cannot be run")
    try:
        return Claim(
            id=name,
            paper=content.get("paper", paper),
            block=block,
            place=content["place"],
            kind=content["kind"],
            statement=content["statement"],
            criterion=content["criterion"],
            digest=digest,
            parts=parse_parts(parts),
            corrected=parse_parts(corrected),
            experiment=content.get("experiment"),
            other_inputs=content.get("other_inputs"),
            needs=content.get("needs", ""),
            why=content.get("why", ""),
            seen=seen,
            disagrees=content.get("disagrees", ""),
            supersedes=tuple(
                Superseded(**{**old, "parts": tuple(old["parts"])}) for old in content.get("supersedes", [])
            ),
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
