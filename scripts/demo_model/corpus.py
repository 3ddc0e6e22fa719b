"""The text that the demo model learns: conversations drawn from a seeded random generator.

Everything it may say is written here or in faq.txt. What it is measured by (held-out phrasings, held-out sums) never comes out of
`conversation`.
"""
import json
import os
import random
import re
import zlib

FOLDER = os.path.dirname(os.path.abspath(__file__))


# --- Questions about Gyre -----------------------------------------------------------------------------------------------------


class Entry:
    def __init__(self, answer):
        self.answer, self.phrasings, self.held_out = answer, [], []


def read_faq():
    """The entries of faq.txt."""
    entries = []
    with open(os.path.join(FOLDER, "faq.txt"), encoding="ascii") as f:
        for line in f:
            mark, text = line[:2], line[2:].strip()
            if mark == "> ":
                entries.append(Entry(text))
            elif mark == "- ":
                entries[-1].phrasings.append(text)
            elif mark == "? ":
                entries[-1].held_out.append(text)
    return entries


FAQ = read_faq()

_BEFORE = ["Please tell me: ", "Tell me, ", "Hi, ", "Hello! ", "Hey, ", "Ok, ", "And ", "So ", "One more question: ", "Now ", "I wonder, ",
           "I have a question. ", "Can you tell me ", "Do you know ", "Well, ", "Then "]
_AFTER = [" Thanks!", " Please explain.", " Tell me.", " please", " in Gyre", " with Gyre", " then", " exactly", " now", " again"]
# Words of about the same sense in a question; one may stand for another.
_ALIKE = [["machine", "computer", "node", "box"], ["machines", "computers", "nodes", "boxes", "hosts"], ["show", "see", "print", "display"],
          ["start", "begin", "launch", "run"], ["stop", "end", "quit"], ["explain", "describe"], ["tell me about", "explain", "describe"],
          ["what does", "what will"], ["which", "what"], ["how do I", "how can I", "how does one", "what do I do to", "how would I", "how could I"],
          ["dies", "crashes", "fails", "is lost", "goes down", "is killed", "breaks"], ["supported", "known", "possible"],
          ["use", "take", "have"], ["several", "many", "multiple", "some"], ["command", "flag"], ["is there", "do you have"],
          ["what is", "what's", "what do you call", "can you explain", "what is meant by", "explain", "define"],
          ["what are", "explain", "can you explain"], ["mean", "stand for"], ["can I", "may I", "could I", "is it possible to"],
          ["the job of", "the work of", "the task of", "the use of"], ["need", "require", "want"], ["what if", "what happens if", "what happens when"],
          ["fast", "quick"], ["faster", "quicker"], ["folder", "directory"], ["put", "set"], ["move", "shift"], ["split", "divided"],
          ["safe", "secure"], ["text", "output", "answer"], ["model", "LLM", "network"], ["does Gyre", "can Gyre", "will Gyre"]]
_ALIKE_RE = [(words, re.compile(r"\b(" + "|".join(re.escape(w) for w in sorted(words, key=len, reverse=True)) + r")\b", re.I)) for words in _ALIKE]


def _replace_alike(rng, text):
    words, pattern = rng.choice(_ALIKE_RE)
    found = list(pattern.finditer(text))
    if not found:
        return text
    m = rng.choice(found)
    word = rng.choice(words)
    if m.group(0)[0].isupper():
        word = word[0].upper() + word[1:]
    return text[: m.start()] + word + text[m.end():]


def vary(rng, text):
    """A phrasing as another person might have typed it: other small words, some left out, other case or punctuation."""
    for _ in range(rng.choice([0, 2, 4, 8])):
        text = _replace_alike(rng, text)
    words = text.split(" ")
    if len(words) > 3 and rng.random() < 0.35:
        # Function words go more readily than words that carry the sense.
        kept = [w for w in words if rng.random() > (0.3 if len(w) <= 3 else 0.1)]
        if len(kept) >= 2:
            words = kept
    if len(words) > 3 and rng.random() < 0.1:
        at = rng.randrange(len(words) - 1)
        words[at], words[at + 1] = words[at + 1], words[at]
    text = " ".join(words)
    if rng.random() < 0.2:
        text = rng.choice(_BEFORE) + text[0].lower() + text[1:]
    if rng.random() < 0.1:
        text = text.rstrip("?.!") + rng.choice(_AFTER)
    r = rng.random()
    if r < 0.15:
        text = text.rstrip("?.!")
    elif r < 0.2:
        text = text.rstrip("?.!") + rng.choice(["?", "??", "!", ".", " ?"])
    r = rng.random()
    if r < 0.2:
        text = text.lower()
    elif r < 0.25:
        text = text[0].upper() + text[1:]
    return text


# --- Sums ---------------------------------------------------------------------------------------------------------------------


def held_out_sum(op, a, b):
    """True for the pairs (a tenth of those with two digits that matter) that the model never sees, in either order."""
    low, high = min(a, b), max(a, b)
    return low > 10 and low % 10 and high % 10 and zlib.crc32(f"{op} {low} {high}".encode()) % 10 == 0


def held_out_sums():
    return [(op, a, b) for op in "+-" for a in range(100) for b in range(100) if held_out_sum(op, a, b)]


def sum_steps(op, a, b):
    """The steps that a small model takes in its writing: first the tens, then the ones."""
    if op == "-" and a < b:
        a, b = b, a
    tens, ones = b // 10 * 10, b % 10
    sign = 1 if op == "+" else -1
    if not tens or not ones:
        return [f"{a} {op} {b} = {a + sign * b}"]
    middle = a + sign * tens
    return [f"{a} {op} {tens} = {middle}", f"{middle} {op} {ones} = {middle + sign * ones}"]


def sum_value(op, a, b):
    return a + b if op == "+" else a - b


def sum_answer(op, a, b):
    steps = sum_steps(op, a, b)
    whole = f"{a} {op} {b} = {sum_value(op, a, b)}"
    if steps == [whole]:
        return whole + "."
    return " and ".join(steps) + f", so {whole}."


_SUMS = {"+": ["What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} =", "{a}+{b}=?", "What is {a} plus {b}?", "How much is {a} + {b}?",
               "How much is {a} plus {b}?", "Add {a} and {b}.", "Can you add {a} and {b}?", "Calculate {a} + {b}.", "What do {a} and {b} make?",
               "{a} plus {b}", "What is the sum of {a} and {b}?", "I have {a} apples and get {b} more. How many do I have?",
               "There are {a} birds and {b} more come. How many are there?", "What's {a} + {b}?", "Please compute {a} + {b}"],
         "-": ["What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} =", "{a}-{b}=?", "What is {a} minus {b}?", "How much is {a} - {b}?",
               "How much is {a} minus {b}?", "Subtract {b} from {a}.", "Can you subtract {b} from {a}?", "Calculate {a} - {b}.",
               "Take {b} from {a}.", "{a} minus {b}", "What is {a} less {b}?", "What's {a} - {b}?", "Please compute {a} - {b}"]}
_TAKEN = ["I have {a} apples and eat {b}. How many are left?", "There are {a} birds and {b} fly away. How many are left?"]


def sum_question(rng, op, a, b):
    forms = _SUMS[op] + (_TAKEN if op == "-" and a >= b else [])
    text = rng.choice(forms).format(a=a, b=b)
    return text.lower() if rng.random() < 0.15 else text


def draw_sum(rng):
    while True:
        op = rng.choice("+-")
        a, b = (rng.randrange(100), rng.randrange(100)) if rng.random() < 0.9 else (rng.randrange(20), rng.randrange(20))
        if not held_out_sum(op, a, b):
            return op, a, b


# --- Stories ------------------------------------------------------------------------------------------------------------------

_SLOTS = {
    "kind": ["fox", "bear", "cat", "dog", "mouse", "bird", "rabbit", "turtle", "frog", "duck", "horse", "squirrel", "robot", "dragon", "goat",
             "lamb", "whale", "pig", "wolf", "lion"],
    "helper": ["crow", "hen", "snail", "deer", "donkey", "bee", "fish", "cow", "seal", "swan"],
    "name": ["Tim", "Tom", "Max", "Ben", "Sam", "Leo", "Finn", "Paul", "Lily", "Mia", "Anna", "Lucy", "Ella", "Nora", "Rosa", "Ida"],
    "adj": ["small", "brave", "shy", "clever", "happy", "curious", "quiet", "young"],
    "place": ["a green forest", "a small village", "an old barn", "a garden by the river", "a house on a hill", "a valley full of flowers"],
    "thing": ["ball", "hat", "key", "book", "bell", "blue scarf", "red kite", "wooden boat"],
    "food": ["bread", "honey", "soup", "apples", "berries", "cake"],
    "spot": ["under a stone", "in the tall grass", "behind the old tree", "near the well", "on top of the wall"],
    "weather": ["the sun was shining", "a cold wind blew", "rain was falling", "snow lay on the ground"],
}
_HE = {"Tim", "Tom", "Max", "Ben", "Sam", "Leo", "Finn", "Paul"}
_OPENINGS = ["Once upon a time there was a {adj} {kind} named {name}.", "Once upon a time a {adj} {kind} named {name} lived in {place}.",
             "There once was a {kind} named {name}, who lived in {place}.", "In {place} lived a {adj} {kind} named {name}."]
_PLOTS = [
    [["One day {weather}, and {name} lost the {thing}.", "One morning {name} could not find the {thing}."],
     ["{He} looked everywhere, but it was gone.", "{He} looked in every corner and became sad."],
     ["Then a {helper} came by and asked, \"Why are you sad?\"", "A {helper} saw it and asked, \"What is wrong?\""],
     ["\"I have lost my {thing},\" said {name}.", "\"My {thing} is gone,\" said {name}."],
     ["Together they looked again, and there it was, {spot}.", "They searched together and found it {spot}."],
     ["{name} thanked the {helper}, and from that day they were friends.", "\"Thank you,\" said {name}, and the two became friends."]],
    [["One day {weather}, and {name} met a hungry {helper}.", "One evening a hungry {helper} knocked at the door."],
     ["\"I have had nothing to eat all day,\" said the {helper}.", "\"Do you have something to eat?\" asked the {helper}."],
     ["{name} had only a little {food}, but {he} shared it.", "{name} gave half of {his} {food} away."],
     ["The next day {name} fell into a deep hole {spot}.", "A week later {name} got stuck {spot}."],
     ["The {helper} heard {him} call and pulled {him} out.", "Who came to help? It was the {helper}."],
     ["So {name} learned that kindness comes back.", "Since then they have shared every meal."]],
    [["{name} wanted to learn to sing.", "{name} had one wish: {he} wanted to sing."],
     ["But when {he} tried, everybody laughed.", "But the first song sounded terrible."],
     ["\"Do not give up,\" said an old {helper}.", "\"Try it every day,\" said a wise {helper}."],
     ["So {name} practiced every morning, even when {weather}.", "{name} practiced for a whole year, alone {spot}."],
     ["At the feast {he} sang, and all became silent.", "One night {he} sang again, and nobody laughed."],
     ["Then they clapped, and {name} was the happiest {kind} of all.", "From then on everybody wanted to hear {name}."]],
    [["One night {weather}, and {name} heard a strange noise.", "Late in the evening {name} heard a noise outside."],
     ["{He} was afraid, but {he} took a lamp and went out.", "{His} heart beat fast, but {he} opened the door."],
     ["The noise came from {spot}.", "Something moved {spot}."],
     ["It was a little {helper} that had lost its way.", "There sat a {helper}, cold and alone."],
     ["{name} took it home and gave it {food}.", "\"Come in,\" said {name}, and made some {food}."],
     ["In the morning they found the way home together.", "After that night {name} was never afraid of the dark again."]],
]


def _story_slots(rng, kind=None, name=None):
    slots = {k: rng.choice(v) for k, v in _SLOTS.items()}
    if kind:
        slots["kind"] = kind
    if name:
        slots["name"] = name
    he = slots["name"] in _HE
    slots.update(He="He" if he else "She", he="he" if he else "she", his="his" if he else "her", His="His" if he else "Her",
                 him="him" if he else "her")
    return slots


def story(rng, kind=None, name=None):
    slots = _story_slots(rng, kind, name)
    sentences = [rng.choice(_OPENINGS)] + [rng.choice(s) for s in rng.choice(_PLOTS)]
    return " ".join(sentences).format(**slots)


def story_holds(text, kind=None, name=None):
    """Whether a text is a story without a break: every sentence in its place, one hero, the same names and things all the way."""

    def match(pattern, at, slots):
        regex, names = "", []
        for part in re.split(r"(\{\w+\})", pattern):
            if not part.startswith("{"):
                regex += re.escape(part)
                continue
            key = part[1:-1]
            if key in slots:
                regex += re.escape(slots[key])
            else:
                regex += "(" + "|".join(re.escape(v) for v in _SLOTS[key]) + ")"
                names.append(key)
        m = re.compile(regex).match(text, at)
        return (m.end(), {**slots, **dict(zip(names, m.groups()))}) if m else None

    for opening in _OPENINGS:
        begin = match(opening, 0, {k: v for k, v in (("kind", kind), ("name", name)) if v})
        if begin is None:
            continue
        he = begin[1]["name"] in _HE
        begin[1].update(He="He" if he else "She", he="he" if he else "she", his="his" if he else "her", His="His" if he else "Her",
                        him="him" if he else "her")
        for plot in _PLOTS:
            states = [begin]
            for sentence in plot:
                states = [n for at, slots in states for p in sentence if (n := match(" " + p, at, slots))]
            if any(at == len(text) for at, _ in states):
                return True
    return False


_STORY_ASKS = ["Tell me a story.", "Tell a short story.", "Please tell me a story.", "Can you tell me a story?", "I want to hear a story.",
               "A story, please.", "Write a short story."]
_STORY_ASKS_KIND = ["Tell me a story about a {kind}.", "Write a story about a {kind}.", "Can you tell a story about a {kind}?", "A story about a {kind}, please.",
                    "I want to hear a story about a {kind}.", "Tell me a short story about a {kind}."]
_STORY_ASKS_NAME = ["Tell me a story about a {kind} named {name}.", "Write a short story about a {kind} named {name}.", "Tell the story of {name} the {kind}."]


def story_turn(rng):
    r = rng.random()
    kind = rng.choice(_SLOTS["kind"]) if r > 0.25 else None
    name = rng.choice(_SLOTS["name"]) if r > 0.65 else None
    ask = rng.choice(_STORY_ASKS_NAME if name else _STORY_ASKS_KIND if kind else _STORY_ASKS).format(kind=kind, name=name)
    return ask, story(rng, kind, name)


# --- JSON ---------------------------------------------------------------------------------------------------------------------

_IN_JSON = [" Answer in JSON.", " Reply in JSON.", " Answer as JSON.", " Give the answer in JSON."]
_PEOPLE = ["Mia", "Tom", "Anna", "Ben", "Lucy", "Paul", "Nora", "Max", "Ella", "Sam", "Rosa", "Leo", "Ida", "Finn", "Lily", "Tim", "Emma", "Jack", "Olga",
           "Karl", "Vera", "Hugo", "Ruth", "Otto"]
_CITIES = ["Rome", "Paris", "Oslo", "Berlin", "Vienna", "Madrid", "Lisbon", "Athens", "London", "Prague", "Dublin", "Cairo", "Lima", "Tokyo", "Boston", "Bern"]
_COLOURS = ["red", "blue", "green", "yellow", "black", "white", "brown", "grey"]
_PETS = ["dog", "cat", "horse", "bird", "fish", "rabbit", "mouse", "pony"]
_FOODS = ["soup", "bread", "cake", "rice", "apples", "honey", "cheese", "pasta"]
_FACTS = {"age": [" is {age} years old", " is {age}"], "city": [" lives in {city}", " comes from {city}"], "food": [" likes {food}", " loves {food}"],
          "pet": [" has a {pet}", " has a {colour} {pet}"], "colour": []}


def json_facts(rng):
    """A sentence about a person and the object that says the same: keys in the order in which they are asked for."""
    values = {"name": rng.choice(_PEOPLE), "age": rng.randrange(2, 99), "city": rng.choice(_CITIES), "food": rng.choice(_FOODS),
              "pet": rng.choice(_PETS), "colour": rng.choice(_COLOURS)}
    said = rng.sample(["age", "city", "food", "pet"], rng.choice([1, 2, 2, 3]))
    parts, keys = [], ["name"]
    for key in said:
        form = rng.choice(_FACTS[key])
        parts.append(form.format(**values))
        keys.append(key)
        if "{colour}" in form:
            keys.append("colour")
    sentence = values["name"] + (parts[0] if len(parts) == 1 else "," .join(parts[:-1]) + " and" + parts[-1]) + "."
    if rng.random() < 0.4:
        rng.shuffle(keys)
    if len(keys) > 2 and rng.random() < 0.4:
        keys = rng.sample(keys, len(keys) - 1)
    listed = keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]
    ask = rng.choice([" Answer in JSON with the keys {}.", " Give {} in JSON.", " Write it as JSON with the keys {}.", " Reply in JSON: {}."]) if len(keys) > 1 else \
        rng.choice([" Answer in JSON with the key {}.", " Give the {} in JSON.", " Reply in JSON: {}."])
    return sentence + ask.format(listed), json.dumps({k: values[k] for k in keys})


def json_sum(op, a, b):
    return json.dumps({"steps": sum_steps(op, a, b), "answer": sum_value(op, a, b)})


def json_turn(rng):
    r = rng.random()
    if r < 0.6:
        return json_facts(rng)
    if r < 0.85:
        op, a, b = draw_sum(rng)
        return sum_question(rng, op, a, b) + rng.choice(_IN_JSON), json_sum(op, a, b)
    entry = rng.choice(FAQ)
    return rng.choice(entry.phrasings) + rng.choice(_IN_JSON), json.dumps({"answer": entry.answer})


# --- What it does not know ------------------------------------------------------------------------------------------------------

UNKNOWN = "I do not know that. I only know about Gyre, small sums and short stories."
_UNKNOWN_FORMS = ["What is the capital of {x}?", "Who was {x}?", "Where is {x}?", "What is the weather in {x}?", "How far is it to {x}?", "Who wrote {x}?",
                  "Translate {x} into German.", "What do you think of {x}?", "How do I cook {x}?", "When was {x} born?", "Write a poem about {x}.",
                  "How old is {x}?", "Who is {x}?", "How many people live in {x}?", "What does {x} cost?", "Do you like {x}?"]
_UNKNOWN_THINGS = _CITIES + _FOODS + ["France", "Spain", "Mozart", "Goethe", "the moon", "the sun", "Napoleon", "the president", "Faust", "chess", "football",
                                      "Italy", "Japan", "Einstein", "the queen", "music", "rain", "gold", "a car", "the sea", "Shakespeare", "China", "Norway"]
TOO_LARGE = "I can only add and subtract numbers up to 99."


def other_turn(rng):
    if rng.random() < 0.7:
        return vary(rng, rng.choice(_UNKNOWN_FORMS).format(x=rng.choice(_UNKNOWN_THINGS))), UNKNOWN
    a, b = rng.randrange(100, 1000), rng.randrange(1, 1000)
    if rng.random() < 0.5:
        a, b = b, a
    if rng.random() < 0.3:
        return rng.choice(["What is {} * {}?", "What is {} times {}?", "Divide {} by {}."]).format(a % 100, b % 100), TOO_LARGE
    return sum_question(rng, rng.choice("+-"), a, b), TOO_LARGE


# --- Conversations --------------------------------------------------------------------------------------------------------------

SYSTEMS = ["You are the demo model of Gyre.", "You are a helpful assistant.", "Be brief.", "Answer the questions of the user."]


def turn(rng):
    r = rng.random()
    if r < 0.48:
        entry = rng.choice(FAQ)
        return vary(rng, rng.choice(entry.phrasings)), entry.answer
    if r < 0.74:
        op, a, b = draw_sum(rng)
        return sum_question(rng, op, a, b), sum_answer(op, a, b)
    if r < 0.82:
        return story_turn(rng)
    if r < 0.94:
        return json_turn(rng)
    return other_turn(rng)


def conversation(rng):
    """Messages as (role, text), or one ("text", story) that stands without a conversation."""
    r = rng.random()
    if r < 0.02:
        return [("text", story(rng))]
    turns = 1 if r < 0.5 else rng.randint(2, 4) if r < 0.97 else rng.randint(8, 14)
    messages = [("system", rng.choice(SYSTEMS))] if rng.random() < 0.2 else []
    for _ in range(turns):
        ask, answer = turn(rng)
        messages += [("user", ask), ("assistant", answer)]
    return messages


if __name__ == "__main__":
    sample = random.Random(1)
    for _ in range(20):
        for role, text in conversation(sample):
            print(f"{role}: {text}")
        print()
