"""A byte-level BPE tokenizer: trained here, written as tokenizer.json, read by Gyre.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016), on bytes as in GPT-2.
"""
import collections
import json
import re

# Qwen 2's expression for what is ASCII, which the corpus is; every digit is a piece of its own.
_SPLIT = re.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_SPLIT_UNICODE = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def _spelling():
    """GPT-2's printable character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


_SPELLING = _spelling()


def _spell(text):
    return "".join(_SPELLING[b] for b in text.encode())


def _merge(word, pair):
    out, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


class Tokenizer:
    """Ids: the 256 bytes, one a merge, then SPECIALS."""

    def __init__(self, merges):
        self.merges = [tuple(m) for m in merges]
        self.rank = {m: i for i, m in enumerate(self.merges)}
        pieces = [_SPELLING[b] for b in range(256)] + [a + b for a, b in self.merges]
        self.ids = {p: i for i, p in enumerate(pieces)}
        self.special = {s: len(pieces) + i for i, s in enumerate(SPECIALS)}
        self.size = len(pieces) + len(SPECIALS)
        self._cache = {}

    @staticmethod
    def train(texts, size):
        words = collections.Counter(w for t in texts for w in _SPLIT.findall(t))
        words = {tuple(_spell(w)): n for w, n in words.items()}
        merges = []
        while 256 + len(merges) + len(SPECIALS) < size:
            pairs = collections.Counter()
            for word, n in words.items():
                for pair in zip(word, word[1:]):
                    pairs[pair] += n
            if not pairs:
                raise ValueError(f"the text has {256 + len(merges)} pieces, expected {size - len(SPECIALS)}")
            best = max(pairs, key=lambda p: (pairs[p], p))
            merges.append(best)
            words = {_merge(w, best) if best[0] in w else w: n for w, n in words.items()}
        return Tokenizer(merges)

    def encode(self, text):
        out = []
        for word in _SPLIT.findall(text):
            if word not in self._cache:
                parts = tuple(_spell(word))
                while len(parts) > 1:
                    best = min(zip(parts, parts[1:]), key=lambda p: self.rank.get(p, len(self.rank)))
                    if best not in self.rank:
                        break
                    parts = _merge(parts, best)
                self._cache[word] = [self.ids[p] for p in parts]
            out += self._cache[word]
        return out

    def tokenizer_json(self):
        added = [{"id": i, "content": s, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
                 for s, i in self.special.items()]
        split = {"type": "Split", "pattern": {"Regex": _SPLIT_UNICODE}, "behavior": "Isolated", "invert": False}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": None,
                "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False,
                          "vocab": self.ids, "merges": [f"{a} {b}" for a, b in self.merges]}}

    def tokenizer_config(self):
        return {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False, "chat_template": CHATML,
                "tokenizer_class": "Qwen2Tokenizer"}


def save(tokenizer, path):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(tokenizer.merges, f)


def load(path):
    with open(path, encoding="utf-8") as f:
        return Tokenizer(json.load(f))
