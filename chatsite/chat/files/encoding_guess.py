"""Which encoding bytes without a mark are in, when they are not UTF-8: a guess, and whether it is a safe one.

charset-normalizer says which encodings are possible and how much of a mess each would be. It was made for whole pages;
of a short file it often finds several equally good, and names the first by the alphabet. So each is also read and
judged by what people write in it: everyday letters and signs, the commonest characters of Chinese, Japanese and
Korean, words in one script, capitals at their beginnings. Pure, bounded by the size of the sample. Called by
`encoding`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from charset_normalizer import from_bytes

SURE_SCORE = 0.7
SURE_MARGIN = 0.15  # before the next that reads differently
SURE_SIGNS = 3  # not ASCII; fewer can be anything
MAX_JUDGED = 4_000  # characters that are not ASCII, of one reading
MESS_ELSEWHERE = 0.2  # of an encoding that charset-normalizer gave up

_SIGNS = "€“”„‚‘’«»‹›–—…•·°§©®™×±²³½¼¿¡£¥´\u00a0"
_WESTERN = "äöüßéèêëàâçîïìíôùûúñáóòõãåæøœºª"  # Iceland's own letters are Turkish ones elsewhere
_CENTRAL = "ąćęłńóśźżáčďéěíňřšťúůýžőűöüäľĺŕôăâîşţđß"
_BALTIC = "āčēģīķļņšūžąęėįųõäöüß"
_TURKISH = "çğıöşüâîû"
_GREEK = "αβγδεζηθικλμνξοπρστυφχψωςάέήίόύώϊϋΐΰ"
_RUSSIAN = "абвгдежзийклмнопрстуфхцчшщъыьэюяё"
_CYRILLIC = _RUSSIAN + "іїєґў"
_THAI = "กขคฆงจฉชซญฎฏฐฑฒณดตถทธนบปผฝพฟภมยรลวศษสหฬอฮะาำิีึืุูเแโใไ็่้๊๋์ัๆฯ"
_HEBREW = "אבגדהוזחטיכךלמםנןסעפףצץקרשת"
_ARABIC = "ابتثجحخدذرزسشصضطظعغفقكلمنهويىةءآأؤإئ،؛؟ـًٌٍَُِّْپچژگ"
_VIETNAMESE = "àáâãèéêìíòóôõùúýăđĩũơư\u0300\u0301\u0303\u0309\u0323"

# The commonest characters of running text.
_COMMON_RUSSIAN, _COMMON_GREEK, _COMMON_HEBREW = "оеаинтсрвл", "αοιετσνηυρ", "יוהלאמרתבנ"
_COMMON_ARABIC, _COMMON_THAI = "اليمونتربع", "านรกอเงยมลว่ี"
_CHINESE = "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里好天很"
_TAIWANESE = (
    "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡好天很"
)
_KOREAN = "이다는의에가고을하지로기사서어은나한도를자그리아있시인게해라대들습니요세안것수과일보정부전주여와만"


@dataclass(frozen=True)
class Guess:
    codec: str
    is_sure: bool


@dataclass(frozen=True)
class _Habit:
    """What is everyday in an encoding. `bonus`: it is commoner than others, or less common (below 0)."""

    is_everyday: Callable[[str], bool]
    common: str = ""
    bonus: float = 0.0


def _letters(small: str, signs: str = _SIGNS) -> Callable[[str], bool]:
    return frozenset(small + small.upper() + signs).__contains__


def _rows(codec: str, *rows: tuple[int, int]) -> Callable[[str], bool]:
    """Characters whose first byte lies in these rows of a table: signs, and the level of what is in daily use."""

    def is_everyday(char: str) -> bool:
        try:
            first = char.encode(codec)[0]
        except UnicodeEncodeError:
            return False
        return any(low <= first <= high for low, high in rows)

    return is_everyday


_simplified = _rows("gb2312", (0xA1, 0xA3), (0xB0, 0xD7))
_traditional = _rows("big5", (0xA1, 0xA2), (0xA4, 0xC6))
_japanese = _rows("euc_jp", (0xA1, 0xA1), (0xA3, 0xA5), (0xB0, 0xCF))
_korean = _rows("euc_kr", (0xA1, 0xA1), (0xA3, 0xA3), (0xB0, 0xC8))
_kana = "".join(map(chr, (*range(0x3041, 0x3094), *range(0x30A1, 0x30F7), 0x30FC, 0x3001, 0x3002)))
_anything = _letters(_WESTERN + _CENTRAL + _CYRILLIC + _GREEK + _HEBREW + _ARABIC + _THAI)


def _is_everyday_anywhere(char: str) -> bool:
    return _anything(char) or _japanese(char) or _simplified(char) or _korean(char) or _traditional(char)


HABITS = {
    "cp1252": _Habit(_letters(_WESTERN), bonus=0.3),
    "cp1250": _Habit(_letters(_CENTRAL)),
    "cp1251": _Habit(_letters(_CYRILLIC), common=_COMMON_RUSSIAN, bonus=0.05),
    "koi8_r": _Habit(_letters(_RUSSIAN, "«»–—…"), common=_COMMON_RUSSIAN),
    "cp866": _Habit(_letters(_RUSSIAN, "«»–—…"), common=_COMMON_RUSSIAN, bonus=-0.1),
    "cp1253": _Habit(_letters(_GREEK), common=_COMMON_GREEK),
    "cp1254": _Habit(_letters(_TURKISH), bonus=0.05),
    "cp1255": _Habit(_letters(_HEBREW), common=_COMMON_HEBREW, bonus=0.1),
    "cp1256": _Habit(_letters(_ARABIC), common=_COMMON_ARABIC),
    "cp1257": _Habit(_letters(_BALTIC)),
    "cp1258": _Habit(_letters(_VIETNAMESE)),
    "cp874": _Habit(_letters(_THAI), common=_COMMON_THAI),
    "iso8859_2": _Habit(_letters(_CENTRAL, "§°\u00a0"), bonus=-0.05),
    "mac_roman": _Habit(_letters(_WESTERN), bonus=-0.1),
    "cp850": _Habit(_letters(_WESTERN, "«»°§½¼£\u00a0"), bonus=-0.05),
    "gb18030": _Habit(_simplified, _CHINESE, bonus=0.1),
    "big5": _Habit(_traditional, _TAIWANESE),
    "cp932": _Habit(_japanese, _kana, bonus=0.1),
    "euc_jp": _Habit(_japanese, _kana),
    "cp949": _Habit(_korean, _KOREAN),
    "utf_16_le": _Habit(_is_everyday_anywhere, _CHINESE + _kana + _KOREAN, bonus=-0.2),
    "utf_16_be": _Habit(_is_everyday_anywhere, _CHINESE + _kana + _KOREAN, bonus=-0.2),
}
_WIDE = {"gb18030", "big5", "cp932", "euc_jp", "cp949"}  # more than one byte to a character
_HIGH = re.compile(r"[^\x00-\x7f]+")
_CASE = re.compile(r"[a-zà-öø-ÿα-ωа-я][A-ZÀ-ÖØ-ÞΑ-ΩА-Я]")
_ALIEN = "[\u0370-\u06ff\u0e00-\u0e7f]"
_LATIN = "[A-Za-zÀ-\u024f]"
_MIXED = re.compile(f"{_LATIN}{_ALIEN}|{_ALIEN}{_LATIN}")
_SCRIPTS = re.compile("[\u0370-\u03ff][\u0400-\u04ff]|[\u0400-\u04ff][\u0370-\u03ff]")
_IN_WORD = re.compile(r"(?<=[^\W\d_])[€“„•·°§©®™×±²³½¼¿¡£¥](?=[^\W\d_])|[£¥](?=[^\W\d_])")
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f]")
_FOREIGN = re.compile("[\u00c0-\u024f\u1e00-\u1eff]{3,}")  # in Latin words such letters stand between plain ones


def guess(sample: bytes) -> Guess | None:
    """The likeliest encoding of a stretch that is not UTF-8; None where no encoding reads it."""
    mess = {match.encoding: match.chaos for match in from_bytes(sample, cp_isolation=list(HABITS), steps=5)}
    found: list[tuple[float, str, str]] = []
    for codec, habit in HABITS.items():
        text = _decoded(sample, codec)
        if text is not None:
            score = _score(text, habit, codec) - mess.get(codec, MESS_ELSEWHERE)
            found.append((score, codec, text))
    found.sort(key=lambda entry: -entry[0])
    if not found:
        return None
    score, codec, text = found[0]
    others = [other for other, _codec, otherwise in found[1:] if otherwise != text]
    num_signs = sum(map(len, _HIGH.findall(text)))
    margin = score - max(others, default=-9.0)
    return Guess(codec, score >= SURE_SCORE and margin >= SURE_MARGIN and num_signs >= SURE_SIGNS)


def _decoded(sample: bytes, codec: str) -> str | None:
    """A sample may end within a character."""
    for cut in range(4 if codec in _WIDE else 2 if codec.startswith("utf_16") else 1):
        try:
            return sample[: len(sample) - cut].decode(codec)
        except UnicodeDecodeError:
            continue
    return None


def _score(text: str, habit: _Habit, codec: str) -> float:
    """Around 1 for what people write in it, below 0 for a mess."""
    high = "".join(_HIGH.findall(text))[:MAX_JUDGED]
    if not high:
        return 0.0
    everyday = sum(map(habit.is_everyday, high)) / len(high)
    common = sum(map(habit.common.__contains__, high.lower())) / len(high) if habit.common else 0.0
    odd = sum(unicodedata.category(char) in ("Cc", "Cn", "Co") for char in high)
    head = text[: 2 * MAX_JUDGED]
    wrong = sum(len(pattern.findall(head)) for pattern in (_CASE, _MIXED, _SCRIPTS, _IN_WORD, _CONTROL))
    wrong += sum(map(len, _FOREIGN.findall(head))) // 2
    weight = 1.0 if codec in _WIDE or codec.startswith("utf_16") else 0.3
    return everyday + min(0.5, weight * common) - 2 * (odd + wrong) / len(high) + habit.bonus
