"""Enters the digests of criteria into the declarations where they are missing: python -m tests.claims.digests.

A digest is entered when a criterion is settled, before its experiment is run. From then on a change of the criterion,
in words or in its computable form, is refused until the old one stands under `supersedes`.
"""

import re
import tomllib
from pathlib import Path

from trimtab.claims.claim import digest_of

DECLARATIONS = Path(__file__).parents[2] / "src" / "trimtab" / "claims" / "declarations"


def with_digests(text: str) -> str:
    """A file of declarations in which every claim has its digest."""
    for claim in tomllib.loads(text)["claim"]:
        if "digest" not in claim:
            digest = digest_of(claim["criterion"], claim.get("parts", []), claim.get("corrected", []))
            of_claim = re.compile(
                rf'(^id = "{re.escape(claim["id"])}"\n(?:(?!^\[\[).*\n)*?criterion = .*\n)', re.MULTILINE
            )
            text, entered = of_claim.subn(lambda found, line=f'digest = "{digest}"\n': found[1] + line, text)
            assert entered == 1, claim["id"]
    return text


def main() -> None:
    """Do so for all files."""
    for path in sorted(DECLARATIONS.glob("*.toml")):
        before = path.read_text(encoding="utf-8")
        path.write_text(with_digests(before), encoding="utf-8")


if __name__ == "__main__":
    main()
