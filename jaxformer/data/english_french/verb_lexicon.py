"""The verbs, names, professions and time adverbs of the built-in English-French corpus."""

from __future__ import annotations

from dataclasses import dataclass

from jaxformer.data.english_french import english_grammar


@dataclass(frozen=True)
class Verb:
    """A verb of both languages.

    `subjects` and `objects` are kinds of nouns; verbs without objects are intransitive.
    `preposition` stands in French between the verb and its object (entrer dans). `definite` verbs
    take no indefinite object: one finishes the book, not any books.
    """

    en: str
    fr: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    past: str
    auxiliary: str
    preposition: str
    present_only: bool
    definite: bool


def _verb(
    en: str,
    fr: str,
    subjects: str = "person",
    objects: str = "",
    *,
    past: str = "",
    auxiliary: str = "avoir",
    preposition: str = "",
    present_only: bool = False,
    definite: bool = False,
) -> Verb:
    return Verb(
        en=en,
        fr=fr,
        subjects=tuple(subjects.split()),
        objects=tuple(objects.split()),
        past=past or english_grammar.past(en),
        auxiliary=auxiliary,
        preposition=preposition,
        present_only=present_only,
        definite=definite or bool(preposition),
    )


_ALL = "person animal"
_GOODS = "vehicle document container furniture clothing object"
_SMALL = "document container clothing object"
_EDIBLE = "food food staple"

TRANSITIVE = (
    _verb("see", "voir", _ALL, "person animal animal building " + _GOODS, past="saw"),
    _verb("find", "trouver", _ALL, "animal food " + _GOODS, past="found"),
    _verb("buy", "acheter", "person", "food drink staple building " + _GOODS, past="bought"),
    _verb("sell", "vendre", "person", "food building " + _GOODS, past="sold"),
    _verb("choose", "choisir", "person", "animal food building " + _GOODS, past="chose"),
    _verb("look for", "chercher", _ALL, "person animal food building " + _SMALL),
    _verb("wait for", "attendre", "person", "person vehicle"),
    _verb("watch", "regarder", _ALL, "person animal animal vehicle"),
    _verb("hear", "entendre", _ALL, "person animal vehicle", past="heard"),
    _verb("follow", "suivre", _ALL, "person animal vehicle way", definite=True),
    _verb("help", "aider", "person", "person animal"),
    _verb("eat", "manger", _ALL, _EDIBLE, past="ate"),
    _verb("drink", "boire", _ALL, "drink", past="drank"),
    _verb("open", "ouvrir", "person", "container building"),
    _verb("close", "fermer", "person", "container building"),
    _verb("wash", "laver", "person", "animal vehicle clothing"),
    _verb("repair", "réparer", "person", "vehicle furniture object"),
    _verb("break", "casser", _ALL, "furniture object", past="broke"),
    _verb("hide", "cacher", _ALL, "food " + _SMALL, past="hid"),
    _verb("take", "prendre", "person", "document clothing object vehicle", past="took"),
    _verb("push", "pousser", _ALL, "vehicle furniture container"),
    _verb("lift", "soulever", _ALL, "container furniture"),
    _verb("cross", "traverser", _ALL + " vehicle", "way water land", definite=True),
    _verb("climb", "escalader", _ALL, "barrier", definite=True),
    _verb("enter", "entrer", _ALL, "building room", auxiliary="être", preposition="dans"),
    _verb("visit", "visiter", "person", "building building land"),
    _verb("write", "écrire", "person", "document", past="wrote"),
    _verb("have", "avoir", "person", "animal food " + _GOODS, present_only=True),
)
TRANSITIVE_VERB = {verb.en: verb for verb in TRANSITIVE}

# A plural or mass object without article is the whole kind: I like dogs -> j'aime les chiens.
_LIKED = "animal food drink staple document clothing"
TASTES = (
    _verb("like", "aimer", "person", _LIKED, present_only=True),
    _verb("love", "adorer", "person", _LIKED, present_only=True),
    _verb("hate", "détester", "person", _LIKED, present_only=True),
    _verb("prefer", "préférer", "person", _LIKED, present_only=True),
)

INTRANSITIVE = (
    _verb("sleep", "dormir", _ALL, past="slept"),
    _verb("run", "courir", _ALL, past="ran"),
    _verb("play", "jouer", _ALL),
    _verb("work", "travailler", "person"),
    _verb("sing", "chanter", "person", past="sang"),
)
LEAVE = _verb("leave", "partir", _ALL, past="left", auxiliary="être")

# Verbs of motion: English preposition, French preposition, kinds of places.
_GOALS = ("building", "goal")
MOTION = (
    (_verb("go", "aller", _ALL, past="went", auxiliary="être"), "to", "à", _GOALS),
    (_verb("come", "venir", "person", past="came", auxiliary="être"), "from", "de", _GOALS),
    (_verb("arrive", "arriver", _ALL, auxiliary="être"), "at", "à", _GOALS),
    (_verb("stay", "rester", _ALL, auxiliary="être"), "in", "dans", ("building", "room", "land")),
)
# Prepositions of place: English, French words, kinds of places.
PLACES = (
    ("in", ("dans",), ("building", "room", "land", "land")),
    ("near", ("près", "de"), ("building", "water", "barrier", "furniture", "way", "land", "goal")),
    ("behind", ("derrière",), ("building", "barrier", "vehicle", "furniture")),
    ("in front of", ("devant",), ("building", "barrier", "vehicle")),
)
PLACES_FOR_THINGS = (
    ("in", ("dans",), ("container", "room", "building")),
    ("on", ("sur",), ("furniture",)),
    ("under", ("sous",), ("furniture",)),
    ("near", ("près", "de"), ("furniture", "building", "container")),
    ("behind", ("derrière",), ("building", "container", "furniture")),
)

# Names: spelt alike in both languages.
NAMES = (
    ("Paul", "m"),
    ("Louis", "m"),
    ("Victor", "m"),
    ("Marie", "f"),
    ("Julie", "f"),
    ("Anna", "f"),
)

# English, French masculine, French feminine: professions take no article in French.
PROFESSIONS = (
    ("student", "étudiant", "étudiante"),
    ("lawyer", "avocat", "avocate"),
    ("singer", "chanteur", "chanteuse"),
    ("musician", "musicien", "musicienne"),
    ("artist", "artiste", "artiste"),
)

TIMES = {
    "present": (
        ("today", "aujourd'hui"),
        ("every day", "tous les jours"),
        ("now", "maintenant"),
        ("in the morning", "le matin"),
    ),
    "past": (
        ("yesterday", "hier"),
        ("last week", "la semaine dernière"),
        ("this morning", "ce matin"),
        ("today", "aujourd'hui"),
    ),
    "future": (
        ("tomorrow", "demain"),
        ("next week", "la semaine prochaine"),
        ("tonight", "ce soir"),
        ("today", "aujourd'hui"),
    ),
}
# Modal: English before the verb, French verb.
MODALS = {"future": "aller", "can": "pouvoir", "must": "devoir", "want": "vouloir"}
