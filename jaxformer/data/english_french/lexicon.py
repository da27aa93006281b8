"""The nouns and adjectives of the built-in English-French corpus.

A noun has a kind, and an adjective lists the kinds it can be said of. That is what lets a pronoun
be resolved: of an animal and a street only the animal can be tired, and only the street wide.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxformer.data.english_french import english_grammar, french_grammar


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun of both languages; `gender` is "m" or "f", `kind` a key of `NOUN_TABLE`."""

    en: str
    fr: str
    gender: str
    kind: str
    en_plural: str
    fr_plural: str

    @property
    def is_mass(self) -> bool:
        """Whether it has no plural: water, bread."""
        return self.kind in MASS_KINDS

    @property
    def is_relative(self) -> bool:
        """Whether it takes "my" rather than "the": brother, neighbor."""
        return self.en in RELATIVES

    @property
    def is_owned(self) -> bool:
        """Whether "my" can precede it: not king, not river."""
        return self.kind not in UNOWNED_KINDS and self.en not in UNOWNED


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective of both languages with its French forms.

    `before_vowel` is the masculine singular before a vowel sound (bel, vieil, nouvel).
    Adjectives of one `scale` (colours, say) never describe one thing in one sentence; only
    `gradable` ones follow "very" and "too".
    """

    en: str
    fr: str
    kinds: frozenset[str]
    scale: str
    preposed: bool
    predicative: bool
    gradable: bool
    feminine: str
    before_vowel: str


# English: French gender. Irregular plurals follow a slash.
NOUN_TABLE = {
    "person": """
        man/men: homme m; woman/women: femme f; boy: garçon m; girl: fille f;
        child/children: enfant m; friend: ami m; neighbor: voisin m; teacher: professeur m;
        doctor: médecin m; baker: boulanger m; brother: frère m; sister: sœur f; mother: mère f;
        father: père m; queen: reine f; king: roi m""",
    "animal": """
        animal: animal m; dog: chien m; cat: chat m; horse: cheval m; bird: oiseau m;
        rabbit: lapin m; fox: renard m; hamster: hamster m; owl: hibou/hiboux m;
        elephant: éléphant m; cow: vache f; mouse/mice: souris f; goat: chèvre f; hen: poule f;
        turtle: tortue f; frog: grenouille f; spider: araignée f; giraffe: girafe f""",
    "vehicle": """
        car: voiture f; truck: camion m; bus: bus m; tractor: tracteur m; motorcycle: moto f;
        bike: vélo m; van: camionnette f; train: train m""",
    "way": """
        street: rue f; road: route f; avenue: avenue f; bridge: pont m; path: chemin m;
        tunnel: tunnel m; highway: autoroute f""",
    "water": "river: rivière f; lake: lac m; canal: canal m",
    "land": "field: champ m; forest: forêt f; garden: jardin m; park: parc m",
    "barrier": "wall: mur m; fence: clôture f; hill: colline f; hedge: haie f; tower: tour f",
    "document": """
        book: livre m; letter: lettre f; newspaper: journal m; story: histoire f; song: chanson f;
        poem: poème m""",
    "container": """
        box: boîte f; bag: sac m; suitcase: valise f; basket: panier m; bottle: bouteille f;
        drawer: tiroir m""",
    "furniture": """
        table: table f; chair: chaise f; bed: lit m; armchair: fauteuil m; cupboard: armoire f""",
    "clothing": """
        dress: robe f; hat: chapeau m; shirt: chemise f; coat: manteau m; shoe: chaussure f;
        scarf/scarves: écharpe f; sweater: pull m""",
    "object": """
        key: clé f; phone: téléphone m; knife/knives: couteau m; cup: tasse f; plate: assiette f;
        umbrella: parapluie m; computer: ordinateur m; clock: horloge f; gift: cadeau m;
        ball: balle f; toy: jouet m; painting: tableau m; lamp: lampe f; mirror: miroir m""",
    "food": """
        apple: pomme f; cake: gâteau m; egg: œuf m; orange: orange f; sandwich: sandwich m;
        soup: soupe f; salad: salade f; tomato/tomatoes: tomate f; carrot: carotte f;
        pear: poire f""",
    "drink": "water: eau f; milk: lait m; coffee: café m; tea: thé m; wine: vin m",
    "staple": "bread: pain m; meat: viande f; cheese: fromage m; rice: riz m",
    "building": """
        house: maison f; school: école f; hotel: hôtel m; hospital: hôpital m; museum: musée m;
        library: bibliothèque f; restaurant: restaurant m; station: gare f; castle: château m;
        church: église f; farm: ferme f; factory: usine f""",
    "room": "kitchen: cuisine f; office: bureau m; bedroom: chambre f; garage: garage m",
    "goal": "market: marché m; beach: plage f",
}
MASS_KINDS = frozenset({"drink", "staple"})
# People one speaks of as somebody's, people nobody owns, and places that belong to nobody.
RELATIVES = frozenset(("friend", "neighbor", "brother", "sister", "mother", "father"))
UNOWNED = frozenset(("man", "woman", "boy", "girl", "baker", "queen", "king"))
UNOWNED_KINDS = frozenset(("way", "water", "barrier", "goal"))


def _read_nouns() -> tuple[Noun, ...]:
    nouns = []
    for kind, table in NOUN_TABLE.items():
        for entry in table.split(";"):
            english, french = entry.split(":")
            en, _, en_plural = english.strip().partition("/")
            french, gender = french.split()
            fr, _, fr_plural = french.partition("/")
            en_plural = en_plural or english_grammar.plural(en)
            fr_plural = fr_plural or french_grammar.plural(fr)
            nouns.append(Noun(en, fr, gender, kind, en_plural, fr_plural))
    return tuple(nouns)


NOUNS = _read_nouns()
NOUN = {noun.en: noun for noun in NOUNS}
NOUNS_OF_KIND = {kind: tuple(noun for noun in NOUNS if noun.kind == kind) for kind in NOUN_TABLE}


def _adjective(
    en: str,
    fr: str,
    kinds: str,
    *,
    scale: str = "",
    preposed: bool = False,
    predicative: bool = True,
    gradable: bool = True,
    feminine: str = "",
    before_vowel: str = "",
) -> Adjective:
    return Adjective(
        en=en,
        fr=fr,
        kinds=frozenset(kinds.split()),
        scale=scale or en,
        preposed=preposed,
        predicative=predicative,
        gradable=gradable,
        feminine=feminine or french_grammar.feminine(fr),
        before_vowel=before_vowel or fr,
    )


_ANIMATE = "person animal"
_GOODS = "vehicle furniture clothing object"
_PAINTED = _GOODS + " container"
_EDIBLE = "food drink staple"

ADJECTIVES = (
    # Said of people and animals only.
    _adjective("tired", "fatigué", _ANIMATE),
    _adjective("sick", "malade", _ANIMATE),
    _adjective("young", "jeune", _ANIMATE, scale="age", preposed=True),
    _adjective("happy", "heureux", _ANIMATE, scale="mood"),
    _adjective("sad", "triste", _ANIMATE, scale="mood"),
    _adjective("lazy", "paresseux", _ANIMATE),
    _adjective("shy", "timide", _ANIMATE, scale="courage"),
    _adjective("brave", "courageux", _ANIMATE, scale="courage"),
    _adjective("strong", "fort", _ANIMATE, scale="strength"),
    _adjective("weak", "faible", _ANIMATE, scale="strength"),
    _adjective("nervous", "nerveux", _ANIMATE, scale="nerves"),
    _adjective("calm", "calme", _ANIMATE, scale="nerves"),
    _adjective("intelligent", "intelligent", _ANIMATE),
    # Said of people only.
    _adjective("kind", "gentil", "person", feminine="gentille"),
    _adjective("polite", "poli", "person"),
    _adjective("funny", "drôle", "person", scale="earnest"),
    _adjective("serious", "sérieux", "person", scale="earnest"),
    _adjective("rich", "riche", "person", scale="wealth"),
    _adjective("poor", "pauvre", "person", scale="wealth"),
    _adjective("famous", "célèbre", "person document"),
    # Size, age, beauty and worth: these stand before the French noun.
    _adjective(
        "big",
        "grand",
        "animal vehicle building furniture container object land room",
        scale="size",
        preposed=True,
    ),
    _adjective(
        "small",
        "petit",
        "animal vehicle building furniture container object land room",
        scale="size",
        preposed=True,
    ),
    _adjective(
        "old",
        "vieux",
        "person animal vehicle building barrier furniture clothing container object",
        scale="age",
        preposed=True,
        feminine="vieille",
        before_vowel="vieil",
    ),
    _adjective(
        "new",
        "nouveau",
        _GOODS + " building document",
        scale="age",
        preposed=True,
        predicative=False,
        feminine="nouvelle",
        before_vowel="nouvel",
    ),
    _adjective(
        "beautiful",
        "beau",
        "person animal vehicle clothing furniture building land",
        scale="beauty",
        preposed=True,
        feminine="belle",
        before_vowel="bel",
    ),
    _adjective("pretty", "joli", "clothing object furniture land", scale="beauty", preposed=True),
    _adjective("good", "bon", _EDIBLE + " document", scale="worth", preposed=True),
    _adjective("bad", "mauvais", _EDIBLE + " document", scale="worth", preposed=True),
    _adjective(
        "long", "long", "way water document", scale="length", preposed=True, feminine="longue"
    ),
    # Ways, water, barriers and places.
    _adjective("wide", "large", "way water", scale="width"),
    _adjective("narrow", "étroit", "way room", scale="width"),
    _adjective("deep", "profond", "water"),
    _adjective("high", "haut", "barrier", scale="height"),
    _adjective("solid", "solide", "barrier furniture container"),
    _adjective("low", "bas", "barrier", scale="height", feminine="basse"),
    _adjective("dark", "sombre", "building room land"),
    _adjective("noisy", "bruyant", "building room way", scale="noise"),
    _adjective("quiet", "tranquille", "building room land", scale="noise"),
    _adjective("modern", "moderne", "building furniture vehicle", scale="age"),
    # Movement and danger.
    _adjective("fast", "rapide", "animal vehicle", scale="speed"),
    _adjective("slow", "lent", "animal vehicle", scale="speed"),
    _adjective("dangerous", "dangereux", "animal vehicle way water"),
    # Things.
    _adjective("heavy", "lourd", "vehicle container furniture"),
    _adjective("expensive", "cher", _GOODS),
    _adjective("comfortable", "confortable", "furniture clothing vehicle"),
    _adjective("broken", "cassé", "furniture object container", scale="damage", gradable=False),
    _adjective("dirty", "sale", "clothing object vehicle container furniture", scale="dirt"),
    _adjective("clean", "propre", "clothing object vehicle container furniture", scale="dirt"),
    _adjective("empty", "vide", "container building room", scale="content", gradable=False),
    _adjective("full", "plein", "container", scale="content"),
    _adjective("open", "ouvert", "container building", scale="access", gradable=False),
    _adjective("closed", "fermé", "container building", scale="access", gradable=False),
    _adjective("red", "rouge", _PAINTED, scale="colour", gradable=False),
    _adjective("blue", "bleu", _PAINTED, scale="colour", gradable=False),
    _adjective("green", "vert", _PAINTED, scale="colour", gradable=False),
    _adjective("yellow", "jaune", _PAINTED, scale="colour", gradable=False),
    _adjective(
        "white", "blanc", _PAINTED + " animal", scale="colour", gradable=False, feminine="blanche"
    ),
    _adjective("black", "noir", _PAINTED + " animal", scale="colour", gradable=False),
    _adjective("grey", "gris", _PAINTED + " animal", scale="colour", gradable=False),
    # Texts.
    _adjective("interesting", "intéressant", "document", scale="interest"),
    _adjective("boring", "ennuyeux", "document", scale="interest"),
    _adjective("difficult", "difficile", "document", scale="ease"),
    _adjective("easy", "facile", "document", scale="ease"),
    _adjective("original", "original", "document clothing object"),
    # Food.
    _adjective("hot", "chaud", _EDIBLE, scale="heat"),
    _adjective("cold", "froid", _EDIBLE + " water", scale="heat"),
    _adjective("salty", "salé", "food staple", scale="taste"),
    _adjective("sweet", "sucré", "food drink", scale="taste"),
    _adjective("bitter", "amer", "food drink", scale="taste"),
    _adjective("fresh", "frais", "food staple", scale="freshness", feminine="fraîche"),
    _adjective("hard", "dur", "food staple"),
)
ADJECTIVE = {adjective.en: adjective for adjective in ADJECTIVES}


def adjectives_for(kind: str) -> tuple[Adjective, ...]:
    """The adjectives that can be said of nouns of `kind`, in the order of `ADJECTIVES`."""
    return tuple(adjective for adjective in ADJECTIVES if kind in adjective.kinds)
