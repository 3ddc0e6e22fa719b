#!/usr/bin/env python3
"""Measures the demo model by what it was never trained on; ends with 1 when a figure is below its aim.

usage: evaluate.py GYRE MODEL [--ring N] [--json]

GYRE is the program, MODEL the file. The questions are asked with `gyre chat`, always the best token. With --ring they are asked once
more through a coordinator and N workers on loopback, and every answer must be the same.
"""
import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time

import corpus

AIMS = {"faq": 0.90, "faq in a conversation": 0.90, "sums": 0.95, "stories": 0.95, "json": 0.95}
ANEW = "Conversation cleared."


def questions():
    """Lists of (kind, lines to say, test of the last answer)."""
    rng = random.Random("evaluation")
    out = []
    held_out = [(q, e.answer) for e in corpus.FAQ for q in e.held_out]
    for ask, answer in held_out:
        out.append(("faq", [ask], lambda said, answer=answer: said == answer))
    for ask, answer in rng.sample(held_out, 50):
        before = [corpus.turn(rng)[0] for _ in range(rng.randint(1, 3))]
        out.append(("faq in a conversation", before + [ask], lambda said, answer=answer: said == answer))
    sums = corpus.held_out_sums()
    for op, a, b in rng.sample(sums, 300):
        value = corpus.sum_value(op, a, b)

        def right(said, value=value):
            numbers = re.findall(r"= (-?\d+)", said)
            return bool(numbers) and int(numbers[-1]) == value

        out.append(("sums", [corpus.sum_question(rng, op, a, b)], right))
    for kind in corpus._SLOTS["kind"]:
        out.append(("stories", [f"Tell me a story about a {kind}."], lambda said, kind=kind: corpus.story_holds(said, kind)))
        name = rng.choice(corpus._SLOTS["name"])
        out.append(("stories", [f"Write a short story about a {kind} named {name}."],
                    lambda said, kind=kind, name=name: corpus.story_holds(said, kind, name)))
    for _ in range(60):
        ask, answer = corpus.json_facts(rng)
        out.append(("json", [ask], lambda said, answer=answer: parsed(said) == json.loads(answer)))
    for op, a, b in rng.sample(sums, 40):
        value = corpus.sum_value(op, a, b)
        out.append(("json", [corpus.sum_question(rng, op, a, b) + " Answer in JSON."],
                    lambda said, value=value: isinstance(parsed(said), dict) and parsed(said).get("answer") == value))
    return out


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def ask_all(command, asked):
    """The last answer of each conversation, from one `gyre chat`."""
    lines = []
    for _, says, _ in asked:
        lines += says + ["/reset"]
    done = subprocess.run(command + ["--temp", "0", "-n", "300", "-q"], input="\n".join(lines) + "\n", capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"evaluate: {' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    answers = [part.strip("\n").split("\n") for part in done.stdout.split(ANEW + "\n")[:-1]]
    if len(answers) != len(asked):
        sys.exit(f"evaluate: {len(answers)} answers to {len(asked)} conversations: {done.stderr.strip()}")
    return [lines[-1] for lines in answers]


class Ring:
    """A coordinator and workers on loopback; stops what it started."""

    def __init__(self, gyre, model, workers):
        self.started, self.log = [], tempfile.TemporaryFile("w+")
        serve = subprocess.Popen([gyre, "serve", model, "--cluster", "127.0.0.1:0", "--no-local", "--min-workers", str(workers)],
                                 stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.started.append(serve)
        self.cluster = next((line.split()[1] for line in serve.stdout if line.startswith("listening ")), None)
        if self.cluster is None:
            self.stop("the coordinator ended")
        for i in range(workers):
            self.started.append(subprocess.Popen([gyre, "worker", "--join", self.cluster, "--name", f"w{i + 1}", "--threads", "1"],
                                                 stdout=subprocess.DEVNULL, stderr=self.log))
        deadline = time.time() + 60
        while "serving" not in subprocess.run([gyre, "status", "--cluster", self.cluster], capture_output=True, text=True).stdout:
            if time.time() > deadline:
                self.stop("the workers did not get their layers within 60 s")
            time.sleep(0.1)

    def stop(self, why=None):
        for p in self.started:
            p.send_signal(2)
        for p in self.started:
            p.wait()
        if why:
            self.log.seek(0)
            sys.exit(f"evaluate: {why}: {self.log.read()[-2000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gyre")
    parser.add_argument("model")
    parser.add_argument("--ring", type=int, metavar="N", help="ask again through N workers")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    parser.add_argument("--wrong", action="store_true", help="print what was answered wrong")
    args = parser.parse_args()
    asked = questions()
    answers = ask_all([args.gyre, "chat", args.model], asked)
    right, total = {k: 0 for k in AIMS}, {k: 0 for k in AIMS}
    for (kind, says, test), said in zip(asked, answers):
        total[kind] += 1
        right[kind] += test(said)
        if args.wrong and not test(said):
            print(f"{kind}: {says} -> {said}", file=sys.stderr)
    figures = {k: right[k] / total[k] for k in AIMS}
    failed = [k for k in AIMS if figures[k] < AIMS[k]]
    different = None
    if args.ring:
        ring = Ring(args.gyre, args.model, args.ring)
        try:
            different = sum(a != b for a, b in zip(answers, ask_all([args.gyre, "chat", "--cluster", ring.cluster], asked)))
        finally:
            ring.stop()
    if args.json:
        print(json.dumps({"figures": figures, "counts": total, "different_through_ring": different}))
    else:
        for k in AIMS:
            print(f"{k:24}{right[k]:4} of {total[k]:4}   {figures[k]:6.1%}   aim {AIMS[k]:.0%}")
        if args.ring:
            print(f"through {args.ring} workers: {different} of {len(asked)} answers differ")
    if failed or different:
        sys.exit(f"evaluate: below its aim: {', '.join(failed)}" if failed else "evaluate: the ring's answers are not those of one process")


if __name__ == "__main__":
    main()
