"""Give each genetic variant a name that is the same at every site, and agree on the variants of a run.

    CHROMOSOME:POSITION:ID:COUNTED:OTHER,  as in  1:12345:rs123:A:G

Sites may write the same variant with its two alleles the other way around, or from the other strand,
on which A is T and C is G. The name does not depend on that. If the alleles are two letters such as A
and G, the counted allele is the one that is A on one of the strands. For any other pair, it is the
first in alphabetical order. If a site's file counts the other allele, the site turns its counts g
around (2 - g).

If the alleles are A and T, or C and G, nobody can tell the strand. With several sites, these variants
are left out. Also left out are variants whose position or alleles differ between sites, variants that
lack an allele, and variants that some site does not have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fedpca.errors import InputError

AMBIGUOUS = "strand-ambiguous alleles"
LACKS_ALLELE = "an allele is missing"
OTHER_ALLELES = "alleles differ"
OTHER_POSITION = "positions differ"
NOT_EVERYWHERE = "not at every site"
MONOMORPHIC = "monomorphic"
RARE = "below maf"

NO_ALLELE = ("0", ".")
MAX_VARIANT_CHARS = 1000  # characters
_STRAND = {"C": "G", "G": "C"}  # the other allele's complement, used if the counted allele is T
_AMBIGUOUS = ({"A", "T"}, {"C", "G"})
_NAME = re.compile(r"[^:\s]+:\d+:[^\s]+:[^:\s]+:[^:\s]+")


def variant_name(
    chromosome: str, position: int, id: str, first: str, second: str
) -> tuple[str, bool]:
    """Return a variant's name, and whether the name counts the first of its two alleles."""
    first, second = first.upper(), second.upper()
    pair = {first, second}
    if pair < {"A", "C", "G", "T"} and len(pair) == 2 and pair not in _AMBIGUOUS:
        is_first = first in "AT"
        counted, other = (first, second) if is_first else (second, first)
        other = _STRAND[other] if counted == "T" else other
        counted = "A"
    else:
        is_first = first <= second
        counted, other = (first, second) if is_first else (second, first)
    return f"{chromosome}:{position}:{id}:{counted}:{other}", is_first


def split_name(name: str) -> tuple[str, str, str, str, str]:
    """Return the chromosome, position, id, counted allele, and other allele in a variant's name."""
    chromosome, position, rest = name.split(":", 2)
    id, counted, other = rest.rsplit(":", 2)
    return chromosome, position, id, counted, other


def misnamed_variant(names: Iterable[str]) -> bool:
    """Return whether any name is not a variant's name as `variant_name` writes it."""
    for name in names:
        if len(name) > MAX_VARIANT_CHARS or not name.isprintable() or not _NAME.fullmatch(name):
            return True
        chromosome, position, id, counted, other = split_name(name)
        if variant_name(chromosome, int(position), id, counted, other)[0] != name:
            return True
    return False


def is_ambiguous(name: str) -> bool:
    """Return whether it is impossible to tell on which strand a variant's alleles are."""
    *_, counted, other = split_name(name)
    return {counted, other} in _AMBIGUOUS


def lacks_allele(name: str) -> bool:
    """Return whether a variant has only one known allele."""
    return not set(name.rsplit(":", 2)[1:]).isdisjoint(NO_ALLELE)


def can_be_matched(name: str) -> bool:
    """Return whether two cohorts with a variant of this name certainly count the same allele."""
    return not is_ambiguous(name) and not lacks_allele(name)


def is_variant(name: str) -> bool:
    """Return whether a column's name is that of a variant."""
    return bool(_NAME.fullmatch(name))


def refuse_unmatched(names: Iterable[str]) -> None:
    """Refuse names of variants if two cohorts may count different alleles of them."""
    found = [name for name in names if is_variant(name) and not can_be_matched(name)]
    if found:
        raise InputError(
            f"{len(found):,} variants, such as {found[0]}, have strand-ambiguous alleles or lack an "
            "allele, so two cohorts may count different alleles; leave these variants out at each "
            "site, as Summary.of and fedpca summarize do"
        )


def common_variants(sites: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the variants that all sites have, in the first site's order, and why others are left out.

    If there is only one site, strands do not matter, so the site keeps all variants.
    """
    first = next(iter(sites.values()))
    if len(sites) == 1:
        return tuple(first), {}
    each = [set(names) for names in sites.values()]
    everywhere = set.intersection(*each)
    kept = tuple(name for name in first if name in everywhere and can_be_matched(name))
    others = set.union(*each) - set(kept)
    places = [{name.rsplit(":", 2)[0] for name in names & others} for names in each]
    ids = [{place.split(":", 2)[2] for place in found} for found in places]
    same_place, same_id = set.intersection(*places), set.intersection(*ids)

    def reason(name: str) -> str:
        place = name.rsplit(":", 2)[0]
        if is_ambiguous(name) and name in everywhere:
            return AMBIGUOUS
        if place in same_place:
            return LACKS_ALLELE if lacks_allele(name) else OTHER_ALLELES
        return OTHER_POSITION if place.split(":", 2)[2] in same_id else NOT_EVERYWHERE

    left_out = {name: reason(name) for name in sorted(others)}
    if not kept:
        raise InputError(
            f"the sites have no variant in common ({left_out_in_words(left_out)}); compare the ids, "
            "positions, and alleles in their .bim files"
        )
    return kept, left_out


def left_out_in_words(left_out: Mapping[str, str]) -> str:
    """Return how many variants were left out for each reason."""
    counts = Counter(left_out.values())
    return ", ".join(f"{counts[reason]:,} {reason}" for reason in sorted(counts))
