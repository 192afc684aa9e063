"""Emphasis in Chinese, Japanese and Korean text, which is written without spaces between words.

CommonMark decides by spaces and punctuation whether `**` opens or closes, and so it leaves `**注意：**这里` as it
stands. The public amendment for CJK (tats-u's specification) is followed here: beside a CJK character a run of
delimiters may open and close as beside a letter. Where no CJK character is a neighbour, the parser's own word counts,
so other text is untouched. The rule belongs to one parser (`InlineParser` is given to ours); the library's classes stay
as they are. Also tells `bare_links` where CJK text ends an address.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.common.utils import isMdAsciiPunct, isPunctChar, isWhiteSpace
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Scanned
from markdown_it.token import Token
from markdown_it.utils import EnvType

# East Asian Width W, F or H and no emoji by default, or Hangul: by Unicode's blocks, unassigned places included.
LETTERS = (
    "\u1100-\u11ff\u20a9\u2329\u232a\u2630-\u2637\u268a-\u268f\u2e80-\u303e\u3040-\u3247\u3250-\ua4cf\ua960-\ua97f"
    "\uac00-\ud7ff\uf900-\ufaff\ufe10-\ufe1f\ufe30-\ufe6f\uff00-\uffee\U00016fe0-\U00018dff\U0001aff0-\U0001b2ff"
    "\U0001d300-\U0001d37f\U0001f200\U0001f202\U0001f210-\U0001f219\U0001f21b-\U0001f22e\U0001f230\U0001f231"
    "\U0001f237\U0001f23b\U0001f240-\U0001f248\U0001f260-\U0001f265\U00020000-\U0003fffd"
)
PUNCTUATION = (
    "\u3001-\u3004\u3008-\u3020\u3030\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\ufe10-\ufe19\ufe30-\ufe6f"
)
_CJK = re.compile(f"[{LETTERS}]")
_IDEOGRAPHIC_SELECTOR = re.compile("[\U000e0100-\U000e01ef]")
_SELECTOR = re.compile("[\ufe00-\ufe0e]")  # not U+FE0F, which makes an emoji of what stands before it
_WIDE_QUOTE = re.compile("[\u2018\u2019\u201c\u201d]\ufe01")


class _State(StateInline):
    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:
        scanned = super().scanDelims(start, canSplitWord)
        end = start + scanned.length
        if not start or end >= self.posMax:
            return scanned  # the end of a line counts as a space, and beside a space all are treated alike
        before, after = self.src[start - 1], self.src[end]
        is_cjk_before = _CJK.match(before) is not None or _IDEOGRAPHIC_SELECTOR.match(before) is not None
        if _SELECTOR.match(before) and start > 1:
            is_wide = _WIDE_QUOTE.match(self.src, start - 2) is not None
            before = self.src[start - 2]
            is_cjk_before = is_wide or _CJK.match(before) is not None
        is_cjk = is_cjk_before or _CJK.match(after) is not None
        if not is_cjk or isWhiteSpace(ord(before)) or isWhiteSpace(ord(after)):
            return scanned
        if canSplitWord:
            return Scanned(True, True, scanned.length)
        return Scanned(_is_punctuation(before), _is_punctuation(after), scanned.length)


def _is_punctuation(char: str) -> bool:
    return isMdAsciiPunct(ord(char)) or isPunctChar(char)


class InlineParser(ParserInline):
    """The library's parser of paragraphs, with the rule above."""

    def parse(self, src: str, md: MarkdownIt, env: EnvType, tokens: list[Token]) -> list[Token]:
        state = _State(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens
