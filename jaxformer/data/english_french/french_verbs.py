"""French conjugation: the present, the past participle and the imperfect of être.

Persons are written 1s, 3s, 1p, 2p, 3p; the corpus says vous to everybody, so tu has no forms.
"""

from __future__ import annotations

PERSONS = ("1s", "3s", "1p", "2p", "3p")

# Infinitive: the five present forms, then the past participle.
IRREGULAR = {
    "être": "suis est sommes êtes sont été",
    "avoir": "ai a avons avez ont eu",
    "aller": "vais va allons allez vont allé",
    "venir": "viens vient venons venez viennent venu",
    "revenir": "reviens revient revenons revenez reviennent revenu",
    "pouvoir": "peux peut pouvons pouvez peuvent pu",
    "vouloir": "veux veut voulons voulez veulent voulu",
    "devoir": "dois doit devons devez doivent dû",
    "voir": "vois voit voyons voyez voient vu",
    "boire": "bois boit buvons buvez boivent bu",
    "prendre": "prends prend prenons prenez prennent pris",
    "comprendre": "comprends comprend comprenons comprenez comprennent compris",
    "peindre": "peins peint peignons peignez peignent peint",
    "écrire": "écris écrit écrivons écrivez écrivent écrit",
    "savoir": "sais sait savons savez savent su",
    "dire": "dis dit disons dites disent dit",
    "ouvrir": "ouvre ouvre ouvrons ouvrez ouvrent ouvert",
    "dormir": "dors dort dormons dormez dorment dormi",
    "partir": "pars part partons partez partent parti",
    "courir": "cours court courons courez courent couru",
    "rire": "ris rit rions riez rient ri",
    "suivre": "suis suit suivons suivez suivent suivi",
    "connaître": "connais connaît connaissons connaissez connaissent connu",
    "construire": "construis construit construisons construisez construisent construit",
    "traduire": "traduis traduit traduisons traduisez traduisent traduit",
}
_IMPERFECT_ETRE = dict(zip(PERSONS, "étais était étions étiez étaient".split(), strict=True))
# The accent that stems take before a silent ending: j'achète, nous achetons.
_STRONG_STEMS = {"achet": "achèt", "soulev": "soulèv", "préfér": "préfèr", "appel": "appell"}


def _present_er(stem: str) -> tuple[str, ...]:
    strong = stem[:-1] + "i" if stem.endswith(("oy", "uy")) else _STRONG_STEMS.get(stem, stem)
    soft = {"g": stem + "e", "c": stem[:-1] + "ç"}.get(stem[-1], stem)
    return (strong + "e", strong + "e", soft + "ons", stem + "ez", strong + "ent")


def _conjugate(infinitive: str) -> tuple[str, ...]:
    stem, ending = infinitive[:-2], infinitive[-2:]
    if infinitive in IRREGULAR:
        return tuple(IRREGULAR[infinitive].split())
    if ending == "er":
        return (*_present_er(stem), stem + "é")
    if ending == "ir":
        return tuple(stem + e for e in ("is", "it", "issons", "issez", "issent", "i"))
    return tuple(stem + e for e in ("s", "", "ons", "ez", "ent", "u"))


_FORMS: dict[str, tuple[str, ...]] = {}


def _forms(infinitive: str) -> tuple[str, ...]:
    if infinitive not in _FORMS:
        _FORMS[infinitive] = _conjugate(infinitive)
    return _FORMS[infinitive]


def present(infinitive: str, person: str) -> str:
    """Present indicative; the second person plural is also the imperative used in the corpus."""
    return _forms(infinitive)[PERSONS.index(person)]


def past_participle(infinitive: str) -> str:
    """Masculine singular past participle."""
    return _forms(infinitive)[5]


def imperfect_of_be(person: str) -> str:
    """Imperfect of être, the translation of "was" and "were"."""
    return _IMPERFECT_ETRE[person]
