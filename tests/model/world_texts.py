"""Texts that tell tokenizers apart: many scripts, code, emoji, controls, runs, and texts of special tokens.

`texts()` is the same list at every call: all of it comes from the sentences here, Unicode's own tables and one seed.
"""

from __future__ import annotations

import random
import unicodedata
from functools import cache

SEED = 20261128

# One ordinary sentence or two for each script, and where Unicode has its characters.
SCRIPTS: dict[str, tuple[str, list[range]]] = {
    "Latin": ("The ferry left at ten, didn't it? Zażółć gęślą jaźń; où est l'île? Đường về nhà.", [range(0x41, 0x250)]),
    "Greek": ("Η γάτα κοιμάται κάτω από το τραπέζι.", [range(0x370, 0x400), range(0x1F00, 0x2000)]),
    "Cyrillic": ("Завтра утром поезд придёт вовремя. Їжак п'є молоко.", [range(0x400, 0x530)]),
    "Armenian": ("Այսօր եղանակը շատ լավ է։", [range(0x531, 0x590)]),
    "Hebrew": ("הספרייה נפתחת בשעה תשע בבוקר. שָׁלוֹם", [range(0x591, 0x600)]),
    "Arabic": ("نلتقي غدًا بعد الظهر في المقهى. کتاب‌ها روی میز است؟", [range(0x600, 0x700), range(0x750, 0x780)]),
    "Syriac": ("ܫܠܡܐ ܥܠܟܘܢ", [range(0x700, 0x750)]),
    "Thaana": ("މާލެއަކީ ރާއްޖޭގެ ވެރިރަށެވެ", [range(0x780, 0x7C0)]),
    "Nko": ("ߒߞߏ ߦߋ߫ ߞߊ߲ ߘߏ߫ ߟߋ߬ ߘߌ߫", [range(0x7C0, 0x800)]),
    "Devanagari": ("कल बाज़ार बंद रहेगा। मैं घर पर पढ़ूँगा।", [range(0x900, 0x980)]),
    "Bengali": ("আজ সকালে অনেক বৃষ্টি হয়েছে।", [range(0x980, 0xA00)]),
    "Gurmukhi": ("ਮੇਰਾ ਪਿੰਡ ਨਦੀ ਦੇ ਕੰਢੇ ਹੈ।", [range(0xA00, 0xA80)]),
    "Gujarati": ("અમે સાંજે ચા પીએ છીએ.", [range(0xA80, 0xB00)]),
    "Oriya": ("ପିଲାମାନେ ପଡ଼ିଆରେ ଖେଳୁଛନ୍ତି।", [range(0xB00, 0xB80)]),
    "Tamil": ("நாளை காலை மழை பெய்யும்.", [range(0xB80, 0xC00)]),
    "Telugu": ("ఈ పుస్తకం చాలా బాగుంది.", [range(0xC00, 0xC80)]),
    "Kannada": ("ನಾಳೆ ನಾವು ಊರಿಗೆ ಹೋಗುತ್ತೇವೆ.", [range(0xC80, 0xD00)]),
    "Malayalam": ("കുട്ടികൾ മുറ്റത്ത് കളിക്കുന്നു.", [range(0xD00, 0xD80)]),
    "Sinhala": ("අද කාලගුණය හොඳයි.", [range(0xD80, 0xE00)]),
    "Thai": ("พรุ่งนี้ร้านอาหารปิดตอนสองทุ่ม", [range(0xE00, 0xE80)]),
    "Lao": ("ມື້ອື່ນຂ້ອຍຈະໄປຕະຫຼາດ", [range(0xE80, 0xF00)]),
    "Tibetan": ("ང་ཚོ་དེབ་ཀློག་གི་ཡོད།", [range(0xF00, 0x1000)]),
    "Myanmar": ("ကလေးများ ကျောင်းသွားကြသည်။", [range(0x1000, 0x10A0)]),
    "Georgian": ("მატარებელი დილით მოდის.", [range(0x10A0, 0x1100), range(0x1C90, 0x1CC0)]),
    "Ethiopic": ("ዛሬ ሰማዩ ሰማያዊ ነው።", [range(0x1200, 0x1380)]),
    "Cherokee": ("ᎣᏏᏲ ᏙᎯᏧ", [range(0x13A0, 0x1400)]),
    "Canadian syllabics": ("ᐃᓄᒃᑎᑐᑦ ᐅᖃᐅᓯᖅ", [range(0x1400, 0x1680)]),
    "Ogham": ("᚛ᚈᚑᚋ ᚄᚉᚑᚈᚈ᚜", [range(0x1680, 0x16A0)]),
    "Runic": ("ᚠᚢᚦᚨᚱᚲ ᛊᛏᛖᛁᚾ", [range(0x16A0, 0x1700)]),
    "Khmer": ("ថ្ងៃនេះអាកាសធាតុល្អ។", [range(0x1780, 0x1800)]),
    "Mongolian": ("ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ", [range(0x1800, 0x18B0)]),
    "Hiragana": ("きょうは いい てんきですね。", [range(0x3041, 0x30A0)]),
    "Katakana": ("コーヒーヲ クダサイ。ｶﾀｶﾅ", [range(0x30A0, 0x3100), range(0xFF61, 0xFFA0)]),
    "Bopomofo": ("ㄓㄨˋ ㄧㄣ ㄈㄨˊ ㄏㄠˋ", [range(0x3105, 0x3130)]),
    "Han": ("明天早上八点开会，请准时。圖書館在哪裡？漢字を読む。", [range(0x4E00, 0xA000), range(0x20000, 0x20400)]),
    "Yi": ("ꆈꌠꁱꂷ", [range(0xA000, 0xA4C0)]),
    "Hangul": ("내일은 친구와 산에 갑니다.", [range(0x1100, 0x1200), range(0xAC00, 0xD7A4)]),
    "Javanese": ("ꦱꦸꦒꦼꦁ ꦫꦮꦸꦃ", [range(0xA980, 0xA9E0)]),
    "Tifinagh": ("ⴰⵣⵓⵍ ⴼⵍⵍⴰⵡⵏ", [range(0x2D30, 0x2D80)]),
    "Coptic": ("ⲡⲓⲛⲟⲩⲃ ⲛⲉⲙ ⲡⲓϩⲁⲧ", [range(0x2C80, 0x2D00)]),
    "Gothic": ("𐌲𐌿𐍄𐌹𐍃𐌺 𐍂𐌰𐌶𐌳𐌰", [range(0x10330, 0x10350)]),
    "Deseret": ("𐐔𐐯𐑅𐐨𐑉𐐯𐐻", [range(0x10400, 0x10450)]),
    "Cuneiform": ("𒀭𒈹 𒂗𒆤", [range(0x12000, 0x12080)]),
    "Adlam": ("𞤀𞤣𞤤𞤢𞤥 𞤆𞤵𞤤𞤢𞤪", [range(0x1E900, 0x1E960)]),
}

CODE = (
    "def area(r: float) -> float:\n    return 3.14159 * r ** 2  # πr²\n",
    "for (let i = 0; i < rows.length; ++i) { total += rows[i]?.sum ?? 0; }\r\n",
    "SELECT u.id, COUNT(*) FROM users AS u WHERE u.name LIKE '%o''brien%' GROUP BY 1;",
    '#include <stdio.h>\nint main(void)\n{\n\tprintf("%d\\n", 0x7fff & ~(1u << 3));\n\treturn 0;\n}\n',
    '<!-- note --><ul class="menu">\n\t<li>&nbsp;A &amp; B</li>\n</ul>',
    '{"name": "x", "args": {"n": [1, 2.5e-10, null, true], "s": "a\\u00e9\\n"}}',
    "fn main() -> Result<(), Box<dyn Error>> { let v: Vec<_> = (0..=9).map(|x| x * x).collect(); Ok(()) }",
    "| a | b |\n|---|:-:|\n| `x` | **y** |\n\n```sh\n$ ls -la | grep '^d' > out.txt 2>&1\n```\n",
    "\\begin{align}\n  \\int_0^\\infty e^{-x^2}\\,dx &= \\frac{\\sqrt{\\pi}}{2}\n\\end{align}",
    "https://user:pw@example.org:8080/a/b%20c?q=1&r=%E2%82%AC#frag  C:\\Users\\me\\x.TXT",
)
EMOJI = (
    "😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👨🏿‍🚀", "🇩🇪🇯🇵🇧🇷", "❤️‍🔥", "1️⃣#️⃣", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "☺️☺︎", "🫠🪿", "👁️‍🗨️", "🤷🏻‍♀️", "✅❌⚠️",
)  # fmt: skip
SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|begin_of_text|>", "<s>",
    "</s>", "<unk>", "<0x0A>", "<0xE2>", "[INST]", "<|end|>", "<|user|>", "<pad>", "<|endoftext|>", "<|IM_END|>",
    "<| im_end |>", "< think >", "<|im_end", "|>", "<|", "</", "<code>", "\u2581",
)  # fmt: skip
SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
CONTROLS = "".join(map(chr, [*range(0x20), 0x7F, *range(0x80, 0xA0)])) + "\u200b\u200c\u200d\u200e\u202e\u2060\ufeff"
ODD = "\u00ad\ufdd0\ufdd1\ufdd2\ufdd3\ufffd\uffff\ue000\U0010fffd\U000e0041\ufe0f"


@cache
def characters(script: str) -> str:
    """All assigned characters of a script, as this Python's Unicode tables have them."""
    return "".join(chr(c) for part in SCRIPTS[script][1] for c in part if unicodedata.category(chr(c)) not in _NONE)


@cache
def digits() -> str:
    return "".join(chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) in ("Nd", "Nl", "No"))


@cache
def marks() -> str:
    return "".join(chr(c) for c in range(0x10000) if unicodedata.category(chr(c)) in ("Mn", "Mc", "Me"))


_NONE = ("Cn", "Cs", "Co")


def texts(num: int = 10_000) -> list[str]:
    """`num` different texts. Every script's sentences come first, then what was made of all of it."""
    rng = random.Random(SEED)
    found = dict.fromkeys([*(sentence for sentence, _ in SCRIPTS.values()), *CODE, *EMOJI, *SPECIAL, *_runs()])
    makers = (_script_text, _sentence_parts, _mixed, _numbers, _code, _emoji, _marked, _controls, _look_alikes)
    while len(found) < num:
        found.setdefault(rng.choice(makers)(rng))
    return list(found)[:num]


def _runs() -> list[str]:
    ones = [
        "a",
        " ",
        "\n",
        "\t",
        "-",
        "=",
        ".",
        "!",
        "'",
        "\u00a0",
        "\u3000",
        "é",
        "漢",
        "😀",
        "\u0301",
        "0",
        "ab",
        " a",
        "\r\n",
    ]
    return [one * length for one in ones for length in (2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 64, 100, 129)]


def _script_text(rng: random.Random) -> str:
    letters = characters(rng.choice([*SCRIPTS]))
    words = ("".join(rng.choices(letters, k=rng.randrange(1, 9))) for _ in range(rng.randrange(1, 6)))
    return rng.choice((" ", "", ", ", "-", "\n", "'s ")).join(words)


def _sentence_parts(rng: random.Random) -> str:
    sentence = SCRIPTS[rng.choice([*SCRIPTS])][0]
    start = rng.randrange(len(sentence))
    part = sentence[start : start + rng.randrange(1, 30)]
    change = rng.choice((str, str.upper, str.title, str.swapcase, lambda t: unicodedata.normalize("NFD", t)))
    return rng.choice(("", " ", "  ", "\n")) + change(part) + rng.choice(("", " ", "\n\n", "!"))


def _mixed(rng: random.Random) -> str:
    parts = [rng.choice((_script_text, _sentence_parts, _numbers, _emoji))(rng) for _ in range(3)]
    return rng.choice(SPACES).join(parts)


def _numbers(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randrange(1, 5)):
        pool = rng.choice(("0123456789", digits()))
        parts.append("".join(rng.choices(pool, k=rng.randrange(1, 12))))
    return rng.choice((" ", ".", ",", "-", "/", "e", "%", "€ ", "")).join(parts)


def _code(rng: random.Random) -> str:
    source = rng.choice(CODE)
    start = rng.randrange(len(source))
    part = source[start : start + rng.randrange(2, 60)]
    return part.replace("    ", rng.choice(("    ", "\t", "  ", " " * 8))).replace("x", rng.choice("xyzλ变"))


def _emoji(rng: random.Random) -> str:
    parts = rng.choices(EMOJI, k=rng.randrange(1, 6))
    text = rng.choice(("", " ", "a", "\u200d")).join(parts)
    return text[rng.randrange(2) : len(text) - rng.randrange(2)]


def _marked(rng: random.Random) -> str:
    base = rng.choices("aeoçñ नกא한-1 ", k=rng.randrange(1, 8))
    return "".join(letter + "".join(rng.choices(marks(), k=rng.randrange(4))) for letter in base)


def _controls(rng: random.Random) -> str:
    pools = (CONTROLS, SPACES, ODD, "abc .", "\r\n")
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(1, 25)))


def _look_alikes(rng: random.Random) -> str:
    parts = [rng.choice((rng.choice(SPECIAL), rng.choice(SPACES), "word", "\ufdd2", "système")) for _ in range(6)]
    text = "".join(parts[: rng.randrange(1, 7)])
    return text if rng.random() < 0.6 else text[rng.randrange(3) : len(text) - rng.randrange(3)]
