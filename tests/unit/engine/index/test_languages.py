"""Words are found in any of their forms, in a base of documents in several languages."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from kb_engine.index.languages import FUNCTION_WORDS, STEMMERS, UNSPACED, language_of, stemmer
from kb_engine.index.words import TITLE_SHARE, Analyser, Word, looked_up, weigh, weigh_words
from tests.support.stores import Base, new_note, prepared

TEXTS = {
    "de": "Die alten Häuser am Fluss wurden im Frühling verkauft.",
    "fr": "Les chevaux mangeaient de l'herbe derrière les maisons.",
    "ru": "Старые книги лежали на деревянных полках библиотеки.",
    "hi": "किताबें पुरानी अलमारियों में रखी हुई थीं।",
    "th": "แมวนอนหลับอยู่บนหลังคาบ้าน",
    "en": "The old houses by the river were sold in spring.",
}


async def add(base: Base, language: str | None, text: str) -> None:
    job = new_note(text, title="-", dedup_scope=str(language))
    await base.ingest(job, prepared(text, title="-", language=language))


INFLECTED = (
    ("Haus", "de"), ("haeuser häuser", "de"), ("Flusses", "de"), ("FRUHLING", "de"),
    ("mangeait", "fr"), ("maison", "fr"), ("книга", "ru"), ("деревянная полка", "ru"),
    ("किताब", "hi"), ("หลังคา", "th"), ("แมว", "th"), ("house", "en"), ("selling rivers", "en"),
)  # fmt: skip


async def test_inflected_forms_are_found_in_a_mixed_base(embedded: Base, subtests: pytest.Subtests) -> None:
    for one, text in TEXTS.items():
        await add(embedded, one, text)
    for query, language in INFLECTED:
        with subtests.test(query=query):
            assert (await embedded.find(query)).results[0].chunk.text == TEXTS[language]


async def test_a_word_as_it_stands_is_found_in_any_language(
    embedded: Base, subtests: pytest.Subtests
) -> None:
    """Also in a document of an earlier version, whose language is unknown."""
    for one, text in TEXTS.items():
        await add(embedded, one, text)
        await add(embedded, None, text)
    for language, text in TEXTS.items():
        for word in text.rstrip(".।").split():
            with subtests.test(language=language, word=word):
                texts = [result.chunk.text for result in (await embedded.find(word)).results]
                assert texts.count(text) == 2


@pytest.mark.parametrize("query", ["ışık", "Işık"])
@pytest.mark.parametrize("text", ["Işık yıldızdan gelir.", "Bu ışık yıldızdan gelir."])
def test_a_capital_i_is_that_of_turkish_too(text: str, query: str) -> None:
    """The tokenizer lowers it to an i in every language."""
    analyser = Analyser()
    (word,) = analyser.words_of(query, ["tr"])
    (chunk,) = analyser.chunks("", [(None, text)], "tr")
    assert set(word) & set(chunk.terms)


def test_a_word_in_turkish_capitals_is_found() -> None:
    analyser = Analyser()
    (word,) = analyser.words_of("ışık", ["tr"])
    (chunk,) = analyser.chunks("", [(None, "IŞIK")], "tr")
    assert set(word) & set(chunk.terms)


async def test_a_verbatim_question_scores_the_same_in_every_language(base: Base) -> None:
    for one, text in TEXTS.items():
        await add(base, one, text)
    for one, text in TEXTS.items():
        best = (await base.find(text)).results[0]
        assert (best.chunk.text, best.score > 0.5) == (text, True), one


def test_the_english_form_of_a_word_is_the_same_with_any_languages() -> None:
    analyser = Analyser()
    query = "the naïve 中国旅 running ran running C++"
    alone = analyser.words_of(query)
    among = analyser.words_of(query, [*STEMMERS, *UNSPACED])
    assert [word[0] for word in among] == [word[0] for word in alone]
    expected = ["naiv", "run", "ran", "run", "c", "中 国", "国 旅", "c++"]
    assert [word[0] for word in alone] == expected


WORKERS = (
    "Each worker holds four connections to the broker and restarts after an hour.",
    "People work from home on Fridays, and much of their work is done in the morning.",
    "Our work plan lists who works on which part; working hours are nine to five.",
    "The request matcher in the gateway compares host and path.",
)


@pytest.mark.parametrize("language", [*STEMMERS, *UNSPACED])
def test_a_term_of_a_language_is_none_of_english(language: str) -> None:
    """Otherwise a note in German would find "work plan" by `worker`."""
    analyser = Analyser()
    for text in WORKERS:
        (chunk,) = analyser.chunks("", [(None, text)])
        for word in analyser.words_of("worker rate tools matching Fridays", [language]):
            assert not set(word[1:]) & set(chunk.terms)


async def test_a_note_in_another_language_changes_no_order(base: Base) -> None:
    for number, text in enumerate(WORKERS):
        await base.ingest(new_note(text, dedup_scope=str(number)), prepared(text, language="en"))
    queries = ("worker", "matcher", "working", "worker worker plan")
    before = [[each.chunk.text for each in (await base.find(one, "fts")).results] for one in queries]
    for language, text in TEXTS.items():
        if language != "en":
            await add(base, language, text)
    after = [[each.chunk.text for each in (await base.find(one, "fts")).results] for one in queries]
    assert after == before
    assert before[0] == [WORKERS[0]]


def test_the_forms_of_a_word_weigh_as_one_word() -> None:
    words: list[Word] = [("hauser", "haus"), ("appl",)]
    weights, reach = weigh_words(words, {"haus": 3, "hauser": 1}, 20)
    together = weigh(["hauser", "appl"], [4, 0], 20)
    one, other = together.of_terms
    assert weights == {
        "hauser": one, "haus": one, "appl": other,
        "^hauser": TITLE_SHARE * one, "^haus": TITLE_SHARE * one, "^appl": TITLE_SHARE * other,
    }  # fmt: skip
    assert reach == together.total_weight


@pytest.mark.parametrize("language", [*TEXTS, None])
def test_the_language_of_a_document_is_found(language: str | None) -> None:
    text = "12 34 -- 56" if language is None else TEXTS[language]
    assert language_of("-", [text]) == language


def test_a_few_words_are_not_taken_for_a_language() -> None:
    for text in ("kb reindex --store sqlite", "Hive", "def main(): return 1", "TODO buy milk"):
        assert language_of("", [text]) in (None, "en")


@pytest.mark.parametrize("language", STEMMERS)
def test_function_words_of_a_language_are_left_out_of_a_query_in_it(language: str) -> None:
    analyser = Analyser()
    words = FUNCTION_WORDS[language].split()
    for first, second in pairwise(words):
        query = f"{first} granit {second}"
        assert [word[0] for word in analyser.words_of(query, [language])] == ["granit"], query
    assert analyser.words_of(" ".join(words[:3]), [language])


@pytest.mark.parametrize("written", ["کتاب\u200cخانه", "کتابخانه", "کتاب خانه"])
def test_parts_of_a_persian_word_are_found_joined_and_with_a_blank(written: str) -> None:
    analyser = Analyser()
    (chunk,) = analyser.chunks("", [(None, f"در {written} شهر")], "fa")
    for query in ("کتاب\u200cخانه", "کتاب خانه"):
        words = analyser.words_of(query, ["fa"])
        assert len(words) == 2
        assert all(set(word) & set(chunk.terms) for word in words)


def test_a_long_query_beside_persian_documents_has_hardly_more_terms() -> None:
    query = " ".join(f"ب {first}{second}" for first, second in product("تثجحخدذرزسشصضطظعغفقكلمن", repeat=2))
    analyser = Analyser()
    terms, others = (
        len(looked_up(analyser.words_of(query, languages)))
        for languages in (STEMMERS, STEMMERS.keys() - {"fa"})
    )
    assert terms < 2 * others


@pytest.mark.parametrize(
    ("query", "languages"),
    [
        ("die casting", ["de"]),
        ("war in Europe", ["de", "en"]),
        ("when the war is on and the die is cast", ["de", "fr"]),
        ("la de granit", []),
    ],
)
def test_function_words_of_a_language_that_the_query_does_not_have_remain(
    query: str, languages: list[str]
) -> None:
    analyser = Analyser()
    assert [word[0] for word in analyser.words_of(query, languages)] == [
        word[0] for word in analyser.words_of(query)
    ]


@pytest.mark.parametrize("language", STEMMERS)
def test_every_language_has_its_stemmer(language: str) -> None:
    assert len(stemmer(language)(["a", "foo", "fóo"])) == 3
    assert language not in UNSPACED
