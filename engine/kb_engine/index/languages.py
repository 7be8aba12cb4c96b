"""Language detection for documents, and stemming.

A document has one language, detected when it is added and recorded in the store: it selects the analyser of
its words (`words.py`). None: the language is unknown, and the words are analysed as English.

The stems are Snowball's (PyStemmer). The detector is py3langid, restricted to languages that are stemmed here
or share a script with these: an unlikely language is more often wrong than right, and the only cost of a
wrong decision is that inflected forms are not found.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

from kb_engine.index.language_model import detector

STEMMERS = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek",
    "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish", "fr": "french",
    "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian",
    "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil", "tr": "turkish",
}  # fmt: skip
"""Stemmers by ISO 639-1 code. English is stemmed by FTS5's porter tokenizer, as all words were at first."""
FUNCTION_WORDS = {
    "ar": "من في على إلى عن مع هو هي ما هل كيف متى أين هذا هذه ذلك تلك التي الذي أن إن كان كانت لا أو ثم قد",
    "ca": (
        "el la els les l un una de del dels d al als a en i o que què qui per pel amb com on quan és són ha "
        "es se no"
    ),
    "cs": (
        "a i o na v ve z ze do s se k ke u pro po při od za je jsou jak co kdo kde kdy který která které že "
        "by to si"
    ),
    "da": (
        "og i at er en et den det de der som på til med af for om fra hvad hvem hvor hvordan hvornår har kan "
        "ikke var"
    ),
    "de": (
        "der die das den dem des ein eine einen einem einer eines und oder in im ist sind war wie was wer wo "
        "wann warum welche welcher welches mit von vom zu zum zur auf für an am bei nach aus man es sich "
        "nicht wird werden kann als auch"
    ),
    "el": (
        "ο η το οι τα του της των τον την τους τις και ή σε στο στη στην στον στα με για από είναι πώς τι "
        "ποιος ποια ποιο πού πότε που να θα δεν ένα μια ένας"
    ),
    "es": (
        "el la los las un una unos unas de del al a en y o que por para con como cómo qué quién cuál cuándo "
        "dónde es son está están ha se su sus lo no sobre"
    ),
    "et": "ja ning on ei et kas kui mis kes kus millal kuidas see seda selle ka oli või aga siis oma",
    "eu": "eta edo da dira zer nor non noiz nola zein bat ez du dute bere hau hori",
    "fa": "و در به از که این آن را با برای است بود یا تا چه چگونه چرا کجا هم یک بر",
    "fi": (
        "ja tai on ei se ne että kun kuin mikä mitä kuka missä milloin miten ovat oli joka jotka myös mutta"
    ),
    "fr": (
        "le la les l un une des de du d au aux et ou en dans est sont a que qu qui quoi quand où comment "
        "pourquoi quel quelle quels quelles pour par sur avec ce cette ces il elle on se s ne n pas son sa "
        "ses leur c"
    ),
    "ga": "an na agus nó ar i is a go le do de ag as cad cé conas cá tá sé sí ní",
    "hi": "का के की में है हैं और या को से पर ने यह वह क्या कौन कैसे कब कहाँ कि जो था थे थी भी एक",
    "hu": "a az és vagy egy van volt hogy hogyan mi ki hol mikor miért melyik nem is ez azt ezt",
    "hy": "և ու կամ է են որ ինչ ով որտեղ երբ ինչպես այս այդ այն մի համար մեջ",
    "id": (
        "yang dan di ke dari untuk dengan pada adalah ini itu atau apa siapa bagaimana kapan mana dalam oleh "
        "tidak akan sebagai"
    ),
    "it": (
        "il lo la i gli le l un uno una di d del dello della dell dei degli delle a al alla all ai alle da "
        "dal dalla in nel nella nell e o è sono che chi come cosa quando dove quale quali per con su sul "
        "sulla si non c"
    ),
    "lt": "ir ar yra kaip kas kur kada kodėl kad iš į su už apie bet ne tai buvo nuo iki",
    "ne": "र वा को का के मा ले लाई हो छ छन् यो त्यो कसरी कहाँ कहिले किन कुन भने पनि बाट",
    "nl": (
        "de het een en of in op van te is zijn was dat die dit voor met aan bij naar uit om er wat wie waar "
        "hoe wanneer welke waarom niet ook als"
    ),
    "no": (
        "og i at er en et ei den det de som på til med av for om fra hva hvem hvor hvordan når har kan ikke "
        "var å"
    ),
    "pl": (
        "i w we z ze na do o od po za dla przez jest są się nie że to jak co kto gdzie kiedy który która "
        "które czy oraz lub a"
    ),
    "pt": (
        "o a os as um uma de do da dos das no na nos nas em e ou é são que quem como quando onde qual quais "
        "para por pelo pela com se não ao à"
    ),
    "ro": (
        "și şi sau în la de din pe cu pentru este sunt a al ai ale un o ce cine cum când unde care să se nu"
    ),
    "ru": (
        "и в во на с со к ко о об от до из у за по для не что кто как где когда какой какая какие это или но "
        "а то ли бы же при"
    ),
    "sr": (
        "и у на са за од до је су се да не што ко како где када који која које или али из о i u na sa za od "
        "do je su se da ne što ko kako gde kada koji koja koje ili ali iz"
    ),
    "sv": (
        "och i att är en ett den det de som på till med av för om från vad vem var hur när har kan inte "
        "eller vilken vilka"
    ),
    "ta": "ஒரு என்று மற்றும் இந்த அந்த என்ன யார் எங்கே எப்படி எப்போது உள்ள அல்லது இது அது",
    "tr": "ve veya bir bu şu o da de mi mı mu mü ile için ne kim nasıl nerede neden hangi ki gibi",
}
"""Articles, prepositions, conjunctions, pronouns and auxiliary verbs, a table of kb's own. Published lists
are longer, and have nouns, numbers and main verbs that a query may be about.
"""
UNSPACED = {"th": "\u0e00-\u0e7f", "lo": "\u0e80-\u0eff", "km": "\u1780-\u17ff"}
"""Languages without spaces between words, and their character ranges; Chinese and Japanese are in `words.py`.
"""
_OTHERS = ("en", "bg", "uk", "zh", "ja", "ko")
"""Further languages that the detector distinguishes, so that their texts are not taken for one of the above.
"""

SURE = 0.75
"""Minimum probability of a detected language: of fifty short texts in fifteen languages no detection above it
was wrong.
"""
PASSAGES, SAMPLE_CHARS = 8, 2_000
"""Number of passages at the beginning of a document, and of characters in total, used for the detection."""
_UNSPACED_SHARE = 0.3
"""Minimum ratio of characters in the script to letters, for a language without spaces; its vowel signs do not
count as letters.
"""
_LETTERS = re.compile(r"[^\W\d_]")
_MARKS = re.compile("[\u0300-\u036f\u0610-\u061a\u0640\u064b-\u065f\u0670]")
"""Accents, and the optional vowel signs of Arabic."""

_LOADING = threading.Lock()
"""Held while the detector is loaded, so that several threads do not load it at once."""


def language_of(title: str, texts: Sequence[str]) -> str | None:
    """Return the main language of a document, if it is certain enough. CPU-bound."""
    sample = " ".join(" ".join([title, *texts[:PASSAGES]]).split())[:SAMPLE_CHARS]
    letters = len(_LETTERS.findall(sample))
    if not letters:
        return None
    for language, characters in UNSPACED.items():
        if len(re.findall(f"[{characters}]", sample)) > _UNSPACED_SHARE * letters:
            return language
    with _LOADING:
        detect = _detector()
    language, probability = detect(sample)
    return language if probability >= SURE else None


@cache
def stemmer(language: str) -> Callable[[list[str]], list[str]]:
    """Return a function from lower-case words to stems without accents, one per word. See `STEMMERS`."""
    import Stemmer  # not before the first document in a language other than English

    algorithm = STEMMERS[language]
    local = threading.local()  # a Stemmer must not be used by two threads at once

    def stems(words: list[str]) -> list[str]:
        if not hasattr(local, "stemmer"):
            local.stemmer = Stemmer.Stemmer(algorithm)
        found: list[str] = local.stemmer.stemWords(words)
        return [each if each.isascii() else plain(each) for each in found]

    return stems


def plain(text: str) -> str:
    """Convert to lower case without accents."""
    # NFC composes the rest again: a Korean syllable stays one character.
    return unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", text))).lower()


@cache
def _detector() -> Callable[[str], tuple[str, float]]:
    identifier = detector([*STEMMERS, *UNSPACED, *_OTHERS])
    lock = threading.Lock()

    def detect(text: str) -> tuple[str, float]:
        with lock:
            language, probability = identifier.classify(text)
        return str(language), float(probability)

    return detect
