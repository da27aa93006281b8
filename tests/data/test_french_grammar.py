"""French grammar rules, each against forms written by hand."""

import pytest

from jaxformer.data.english_french import clauses, french_grammar, french_verbs
from jaxformer.data.english_french.clauses import Complement
from jaxformer.data.english_french.lexicon import ADJECTIVE, NOUN
from jaxformer.data.english_french.noun_phrases import PRONOUNS, noun_phrase
from jaxformer.data.english_french.verb_lexicon import MOTION, TRANSITIVE_VERB

SUBJECT = {phrase.en: phrase for phrase in PRONOUNS}


def phrase(determiner, noun, *adjectives, plural=False):
    words = tuple(ADJECTIVE[word] for word in adjectives)
    made = noun_phrase(determiner, NOUN[noun], plural, words)
    return made.en, french_grammar.join_words(made.fr)


@pytest.mark.parametrize(
    "arguments, plural, english, french",
    [
        (("the", "animal"), False, "the animal", "l'animal"),
        (("the", "owl"), False, "the owl", "le hibou"),
        (("the", "owl"), True, "the owls", "les hiboux"),
        (("the", "hospital"), True, "the hospitals", "les hôpitaux"),
        (("the", "hedge"), False, "the hedge", "la haie"),
        (("a", "elephant"), False, "an elephant", "un éléphant"),
        (("this", "man"), False, "this man", "cet homme"),
        (("this", "hamster"), False, "this hamster", "ce hamster"),
        (("this", "man", "young"), False, "this young man", "ce jeune homme"),
        (("this", "school"), True, "these schools", "ces écoles"),
        (("my", "school"), False, "my school", "mon école"),
        (("my", "school", "old"), False, "my old school", "ma vieille école"),
        (("her", "scarf"), False, "her scarf", "son écharpe"),
        (("their", "key"), True, "their keys", "leurs clés"),
        (("a", "bird", "beautiful"), False, "a beautiful bird", "un bel oiseau"),
        (("the", "hotel", "new"), False, "the new hotel", "le nouvel hôtel"),
        (("the", "man", "old"), False, "the old man", "le vieil homme"),
        (("the", "man", "old"), True, "the old men", "les vieux hommes"),
        (("some", "dog"), True, "some dogs", "des chiens"),
        (("some", "dog", "small"), True, "some small dogs", "de petits chiens"),
        (("some", "animal", "old"), True, "some old animals", "de vieux animaux"),
        (("some", "bird", "beautiful"), True, "some beautiful birds", "de beaux oiseaux"),
        (("some", "shirt", "white"), True, "some white shirts", "des chemises blanches"),
        (("the", "car", "small", "grey"), False, "the small grey car", "la petite voiture grise"),
        (("two", "dress", "red"), True, "two red dresses", "deux robes rouges"),
        (("many", "egg"), True, "many eggs", "beaucoup d'œufs"),
        (("any", "orange"), True, "any oranges", "d'oranges"),
        (("", "water", "cold"), False, "cold water", "de l'eau froide"),
        (("", "wine"), False, "wine", "du vin"),
        (("the", "gift", "original"), True, "the original gifts", "les cadeaux originaux"),
        (("the", "mother", "happy"), False, "the happy mother", "la mère heureuse"),
        (("a", "story", "long"), False, "a long story", "une longue histoire"),
        (("the", "pear", "fresh"), True, "the fresh pears", "les poires fraîches"),
        (("the", "queen", "kind"), False, "the kind queen", "la reine gentille"),
        (("the", "car", "expensive"), False, "the expensive car", "la voiture chère"),
    ],
)
def test_noun_phrases(arguments, plural, english, french):
    assert phrase(*arguments, plural=plural) == (english, french)


@pytest.mark.parametrize(
    "words, text",
    [
        ("de le chien", "du chien"),
        ("de les chiens", "des chiens"),
        ("de la rue", "de la rue"),
        ("de le animal", "de l'animal"),
        ("à le marché", "au marché"),
        ("à le hôpital", "à l'hôpital"),
        ("à les écoles", "aux écoles"),
        ("à le hamster", "au hamster"),
        ("près de le hibou", "près du hibou"),
        ("parce que il", "parce qu'il"),
        ("est-ce que elles", "est-ce qu'elles"),
        ("je ne aime pas", "je n'aime pas"),
        ("je aime", "j'aime"),
        ("il ne y a pas de eau", "il n'y a pas d'eau"),
        ("le chat de Anna", "le chat d'Anna"),
        ("il me a vu", "il m'a vu"),
        ("hier , il", "hier, il"),
    ],
)
def test_elision_and_contraction(words, text):
    assert french_grammar.join_words(words.split()) == text


@pytest.mark.parametrize(
    "infinitive, forms, participle",
    [
        ("traverser", "traverse traverse traversons traversez traversent", "traversé"),
        ("manger", "mange mange mangeons mangez mangent", "mangé"),
        ("acheter", "achète achète achetons achetez achètent", "acheté"),
        ("soulever", "soulève soulève soulevons soulevez soulèvent", "soulevé"),
        ("préférer", "préfère préfère préférons préférez préfèrent", "préféré"),
        ("choisir", "choisis choisit choisissons choisissez choisissent", "choisi"),
        ("vendre", "vends vend vendons vendez vendent", "vendu"),
        ("attendre", "attends attend attendons attendez attendent", "attendu"),
        ("prendre", "prends prend prenons prenez prennent", "pris"),
        ("voir", "vois voit voyons voyez voient", "vu"),
        ("boire", "bois boit buvons buvez boivent", "bu"),
        ("ouvrir", "ouvre ouvre ouvrons ouvrez ouvrent", "ouvert"),
        ("suivre", "suis suit suivons suivez suivent", "suivi"),
        ("courir", "cours court courons courez courent", "couru"),
        ("dormir", "dors dort dormons dormez dorment", "dormi"),
        ("partir", "pars part partons partez partent", "parti"),
        ("écrire", "écris écrit écrivons écrivez écrivent", "écrit"),
        ("venir", "viens vient venons venez viennent", "venu"),
        ("dire", "dis dit disons dites disent", "dit"),
        ("pouvoir", "peux peut pouvons pouvez peuvent", "pu"),
    ],
)
def test_conjugation(infinitive, forms, participle):
    made = [french_verbs.present(infinitive, person) for person in french_verbs.PERSONS]
    assert " ".join(made) == forms
    assert french_verbs.past_participle(infinitive) == participle


@pytest.mark.parametrize(
    "masculine, feminine, plural",
    [
        ("heureux", "heureuse", "heureux"),
        ("cher", "chère", "chers"),
        ("bon", "bonne", "bons"),
        ("original", "originale", "originaux"),
        ("beau", "belle", "beaux"),
        ("nouveau", "nouvelle", "nouveaux"),
        ("vieux", "vieille", "vieux"),
        ("blanc", "blanche", "blancs"),
        ("frais", "fraîche", "frais"),
        ("gris", "grise", "gris"),
        ("bas", "basse", "bas"),
        ("bleu", "bleue", "bleus"),
        ("gentil", "gentille", "gentils"),
        ("long", "longue", "longs"),
        ("amer", "amère", "amers"),
        ("fatigué", "fatiguée", "fatigués"),
    ],
)
def test_adjective_forms(masculine, feminine, plural):
    adjective = next(word for word in ADJECTIVE.values() if word.fr == masculine)
    assert french_grammar.agree_adjective(adjective, "f", False) == feminine
    assert french_grammar.agree_adjective(adjective, "f", True) == feminine + "s"
    assert french_grammar.agree_adjective(adjective, "m", True) == plural


@pytest.mark.parametrize(
    "verb, pronoun, text",
    [
        ("mange", "il", "mange-t-il"),
        ("a", "elle", "a-t-elle"),
        ("prend", "elle", "prend-elle"),
        ("dort", "il", "dort-il"),
        ("travaillons", "nous", "travaillons-nous"),
        ("allez", "vous", "allez-vous"),
        ("mangent", "ils", "mangent-ils"),
    ],
)
def test_inversion(verb, pronoun, text):
    assert french_grammar.invert(verb, pronoun) == text


def test_participle_agrees_with_the_subject_of_etre():
    go = MOTION[0][0]
    forms = [
        french_grammar.compound_past(go.fr, go.auxiliary, "3p", gender, plural)[1]
        for gender in "mf"
        for plural in (False, True)
    ]
    assert forms == ["allé", "allés", "allée", "allées"]
    bought = french_grammar.compound_past("acheter", "avoir", "3s", "f", False)
    assert bought == ("a", "acheté")


@pytest.mark.parametrize(
    "subject, tense, negated, pronoun, english, french",
    [
        ("I", "past", False, ("her", "la", "f", False), "I saw her", "je l'ai vue"),
        (
            "he",
            "past",
            True,
            ("them", "les", "m", True),
            "he didn't see them",
            "il ne les a pas vus",
        ),
        (
            "we",
            "want",
            True,
            ("him", "le", "m", False),
            "we don't want to see him",
            "nous ne voulons pas le voir",
        ),
        (
            "she",
            "present",
            True,
            ("me", "me", "m", False),
            "she doesn't see me",
            "elle ne me voit pas",
        ),
        (
            "they",
            "future",
            False,
            ("us", "nous", "m", True),
            "they are going to see us",
            "ils vont nous voir",
        ),
    ],
)
def test_object_pronouns(subject, tense, negated, pronoun, english, french):
    clause = clauses.with_object_pronoun(
        SUBJECT[subject], TRANSITIVE_VERB["see"], tense, negated, pronoun
    )
    assert (clause.en, french_grammar.join_words(clause.fr)) == (english, french)


@pytest.mark.parametrize(
    "subject, tense, negated, english, french",
    [
        ("you", "present", False, "why do you eat", "pourquoi mangez-vous"),
        ("he", "past", True, "why didn't he eat", "pourquoi n'a-t-il pas mangé"),
        ("the dogs", "present", False, "why do the dogs eat", "pourquoi les chiens mangent-ils"),
        ("the cow", "past", False, "why did the cow eat", "pourquoi la vache a-t-elle mangé"),
    ],
)
def test_wh_questions_invert(subject, tense, negated, english, french):
    nouns = {
        "the dogs": noun_phrase("the", NOUN["dog"], True),
        "the cow": noun_phrase("the", NOUN["cow"], False),
    }
    clause = clauses.inverted_question(
        Complement("why", ("pourquoi",)),
        SUBJECT.get(subject) or nouns[subject],
        TRANSITIVE_VERB["eat"],
        tense,
        negated,
        Complement(),
    )
    assert (clause.en, french_grammar.join_words(clause.fr)) == (english, french)


def test_final_marks_take_a_space_before_question_and_exclamation():
    words = ["où", "est", "la", "école"]
    assert french_grammar.sentence(words, "?") == "Où est l'école ?"
    assert french_grammar.sentence(words, "!") == "Où est l'école !"
    assert french_grammar.sentence(words, ".") == "Où est l'école."
